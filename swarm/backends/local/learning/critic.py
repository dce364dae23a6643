"""The critic of algorithm gae: a network that learns the value of each token's state beside the policy."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from verl.trainer.ppo.core_algos import compute_value_loss

from swarm.backends.local.learning.microbatches import MicroBatch, collate, plan_microbatches
from swarm.backends.local.learning.optimizer import OptimizerSnapshot, PolicyOptimizer
from swarm.backends.local.model.computing import LayerRecomputation
from swarm.errors import CheckpointError, EngineFailure
from swarm.job import TrainJob
from swarm.trainer.description import Meter
from swarm.trainer.token_rows import Row


@dataclass(frozen=True, slots=True)
class ValueTargets:
    """Training targets of the critic in one step, [E, L]: its values before the step, and the returns."""

    values_EL: torch.Tensor
    returns_EL: torch.Tensor


class ValueModel(torch.nn.Module):
    """Body of a causal language model with one output per position."""

    def __init__(self, policy: torch.nn.Module) -> None:
        """Copy the body of the policy. Raise EngineFailure if the model has no separable body."""
        super().__init__()
        body, head = getattr(policy, "base_model", None), getattr(policy, "get_output_embeddings", lambda: None)()
        if not isinstance(body, torch.nn.Module) or body is policy or head is None:
            raise EngineFailure(
                f"algorithm gae: {type(policy).__name__} has no body below its output head that a critic could be"
            )
        self.body = copy.deepcopy(body)
        self.head = torch.nn.Linear(head.weight.shape[1], 1, device=head.weight.device)
        with torch.no_grad():
            for weight in self.head.parameters():
                weight.zero_()

    def forward(self, micro: MicroBatch) -> torch.Tensor:
        """Return the value of the state before each trained token, [N]."""
        hidden_STH = self.body(input_ids=micro.input_ids_ST, use_cache=False).last_hidden_state
        return self.head(hidden_STH.flatten(0, 1)[micro.sources_N].float())[:, 0]


class Critic:
    """Value model and its optimizer. Used from the learner's thread."""

    def __init__(self, policy: torch.nn.Module, job: TrainJob, device: torch.device) -> None:
        self._device = device
        self._policy = policy
        self._begin_anew(job)
        self.adopt(job)

    def adopt(self, job: TrainJob) -> None:
        """Apply the settings of `job` from now on."""
        assert job.critic_lr is not None and job.cliprange_value is not None, "a resolved job with a critic has both"
        self._job, self._lr, self._cliprange = job, job.critic_lr, job.cliprange_value
        self._optimizer.adopt(job)

    def values(self, rows: Sequence[Row]) -> torch.Tensor:
        """Return the values under the current weights, [E, L] on the CPU; 0 past the end of a row."""
        values_EL = torch.zeros(len(rows), max(row.tokens for row in rows))
        with torch.no_grad():
            for numbers in plan_microbatches(rows, range(len(rows)), self._job.ppo_max_token_len):
                micro = collate(rows, numbers, torch.zeros_like(values_EL), self._device)
                values_RL = micro.spread(self._module(micro))
                values_EL[numbers, : values_RL.shape[1]] = values_RL.cpu()
        return values_EL

    def run(
        self,
        rows: Sequence[Row],
        chosen: Sequence[int],
        targets: ValueTargets,
        meter: Meter,
    ) -> None:
        """Update once with the rows numbered `chosen`; skip the update if the loss or its gradient is not finite."""
        tokens, measured = sum(rows[number].tokens for number in chosen), Meter()
        norm: float | None = None
        for numbers in plan_microbatches(rows, chosen, self._job.ppo_max_token_len):
            loss = self._loss(rows, numbers, targets, tokens, measured)
            if not torch.isfinite(loss):
                self._optimizer.discard()
                break
            loss.backward()
        else:
            norm = self._optimizer.update(self._lr)
        if norm is None:
            meter.count("critic/updates_not_finite")
            return
        meter.count("critic/updates")
        meter.average({"critic/grad_norm": norm, "critic/lr": self._lr})
        meter.include(measured)

    def _loss(
        self, rows: Sequence[Row], numbers: list[int], targets: ValueTargets, tokens: int, measured: Meter
    ) -> torch.Tensor:
        """Return this microbatch's share of the mean over the minibatch's tokens."""
        micro = collate(rows, numbers, torch.zeros_like(targets.values_EL), self._device)
        width = micro.mask_RL.shape[1]
        with nullcontext() if self._recomputation is None else self._recomputation.around_forward():
            found_RL = micro.spread(self._module(micro))
        loss, clipped = compute_value_loss(
            vpreds=found_RL,
            returns=targets.returns_EL[numbers, :width].to(self._device),
            values=targets.values_EL[numbers, :width].to(self._device),
            response_mask=micro.mask_RL,
            cliprange_value=self._cliprange,
            batch_num_tokens=tokens,
        )
        measured.add({"critic/vf_loss": loss.item()})
        means = {"critic/vf_clipfrac": clipped.item(), "critic/vpred_mean": found_RL[micro.mask_RL].mean().item()}
        measured.average(means, weight=float(micro.mask_RL.sum()))
        return loss

    def snapshot(self) -> OptimizerSnapshot:
        return self._optimizer.snapshot()

    def restore(self, snapshot: OptimizerSnapshot) -> None:
        self._optimizer.restore(snapshot)

    def state(self) -> dict[str, Any]:
        """Return weights and optimizer, in types that `torch.load(weights_only=True)` accepts."""
        return {"weights": self._module.state_dict(), "optimizer": self._optimizer.state()}

    def check(self, state: dict[str, Any] | None) -> None:
        """Raise CheckpointError if `state` belongs to another model's critic."""
        if state is None:
            return
        shapes = {name: weight.shape for name, weight in state["weights"].items()}
        if shapes != {name: weight.shape for name, weight in self._module.state_dict().items()}:
            raise CheckpointError("the critic in the checkpoint is that of another model")
        self._optimizer.check(state["optimizer"])

    def load(self, state: dict[str, Any] | None) -> None:
        """Restore the result of `state`.

        The checkpoint of a job without a critic has no state. The critic then begins anew from the policy, which must
        be restored first.
        """
        if state is None:
            self._begin_anew(self._job)
            return
        self._module.load_state_dict(state["weights"])
        self._optimizer.load(state["optimizer"])

    def _begin_anew(self, job: TrainJob) -> None:
        self._module = ValueModel(self._policy).eval()
        self._optimizer = PolicyOptimizer(self._module, job)
        self._recomputation = LayerRecomputation(self._module) if job.enable_gradient_checkpointing else None
