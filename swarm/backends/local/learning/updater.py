"""One minibatch: forward and backward passes over its microbatches, then one optimizer update."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import torch

from swarm.backends.local.learning.losses import MiniBatchSize, Objective, RolloutCorrection, Scores
from swarm.backends.local.learning.microbatches import MicroBatch, collate, plan_microbatches
from swarm.backends.local.learning.optimizer import PolicyOptimizer
from swarm.backends.local.learning.sharing.attention import attention_along, tree_attention
from swarm.backends.local.learning.sharing.prefix_sharing import PrefixSharing
from swarm.backends.local.model.adapter import adapter_disabled
from swarm.backends.local.model.computing import LayerRecomputation
from swarm.job import TrainJob
from swarm.trainer.advantages import PolicyStatistics
from swarm.trainer.description import Meter
from swarm.trainer.token_rows import Row

PROBE_TOKENS = 8


@dataclass(frozen=True, slots=True)
class TokenScores:
    """Natural-log probabilities of the trained tokens, and entropies in nats of their distributions.

    Entropies are NaN if they were not asked for. `squared_N` are the sums of the squared probabilities of those
    distributions, None if they were not asked for.
    """

    logprobs_N: torch.Tensor
    entropies_N: torch.Tensor
    squared_N: torch.Tensor | None = None


class TokenScorer:
    """Causal language model as a function from a microbatch to token scores.

    Only the positions that predict a trained token go through the output head. This works if the model is its base
    model plus that head alone (no logit scaling or capping), which is tried once on a few tokens. Otherwise logits of
    all positions are computed.
    """

    def __init__(self, module: torch.nn.Module, *, recompute: bool = False, has_adapter: bool = True) -> None:
        """Wrap the module. With `recompute`, passes before a backward pass keep only the inputs of the layers.

        Without `has_adapter`, the adapter of the module is disabled during a pass, which then has no gradient.
        """
        self._module = module
        self._has_adapter = has_adapter
        self._parts = _split(module)
        self._recomputation = LayerRecomputation(module) if recompute else None

    def __call__(
        self,
        micro: MicroBatch,
        *,
        entropy_gradient: bool = False,
        with_squares: bool = False,
        with_entropy: bool = True,
    ) -> TokenScores:
        recomputation = self._recomputation if torch.is_grad_enabled() else None
        again = nullcontext if micro.tree is None else partial(tree_attention, self._module)
        without = nullcontext() if self._has_adapter else adapter_disabled(self._module)
        with without, nullcontext() if recomputation is None else recomputation.around_forward(again):
            # In place: with a vocabulary of 150,000, these matrices are most of a step's memory.
            logits_NV = self._logits(micro).float().div_(micro.temperatures_N[:, None])
        if micro.masks is not None:
            micro.masks.apply(logits_NV)
        logprobs_NV = torch.log_softmax(logits_NV, dim=-1)
        logprobs_N = logprobs_NV.gather(1, micro.targets_N[:, None])[:, 0]
        if not with_entropy:
            return TokenScores(logprobs_N, torch.full_like(logprobs_N, math.nan))
        with torch.set_grad_enabled(torch.is_grad_enabled() and entropy_gradient):
            # Both give the probabilities. exp is faster, except where a mask makes it underflow.
            probs_NV = logprobs_NV.exp() if micro.masks is None else torch.softmax(logits_NV, dim=-1)
            del logits_NV
            entropies_N = -(probs_NV * logprobs_NV).sum(-1)
        squared_N = probs_NV.detach().square().sum(-1) if with_squares else None
        return TokenScores(logprobs_N, entropies_N, squared_N)

    def _logits(self, micro: MicroBatch) -> torch.Tensor:
        base, head = self._parts or (self._module, None)
        with attention_along(self._module, micro.tree) as along:
            outputs = base(input_ids=micro.input_ids_ST, use_cache=False, **along)
        if head is None:
            return outputs.logits.flatten(0, 1)[micro.sources_N]
        hidden_STH = outputs.last_hidden_state
        return head(hidden_STH.flatten(0, 1)[micro.sources_N])


def _split(module: torch.nn.Module) -> tuple[torch.nn.Module, torch.nn.Module] | None:
    base = getattr(module, "base_model", None)
    find_head: Callable[[], torch.nn.Module | None] | None = getattr(module, "get_output_embeddings", None)
    head = find_head() if find_head is not None else None
    if not isinstance(base, torch.nn.Module) or base is module or head is None:
        return None
    weight = next(head.parameters())
    ids = (torch.arange(PROBE_TOKENS, device=weight.device) % weight.shape[0])[None]
    with torch.no_grad():
        hidden = getattr(base(input_ids=ids, use_cache=False), "last_hidden_state", None)
        if hidden is None:
            return None
        logits, expected = head(hidden), module(input_ids=ids, use_cache=False).logits
    # The kernels and shapes are the same, so more than rounding noise means that the model does more than this.
    same = logits.shape == expected.shape and torch.allclose(logits, expected, rtol=1e-6, atol=1e-6)
    return (base, head) if same else None


@dataclass(frozen=True, slots=True)
class StepInput:
    """Common input of all minibatches of a step. `advantages_EL` has one line per row.

    `weight_version` is the version of the weights before the step, None if they have none. `correction` is None unless
    the job asks for importance sampling.
    """

    rows: Sequence[Row]
    advantages_EL: torch.Tensor
    lr: float
    weight_version: int | None
    correction: RolloutCorrection | None


class MiniBatchUpdater:
    """Policy, reference and optimizer of one learner."""

    def __init__(
        self,
        policy: TokenScorer,
        reference: TokenScorer | None,
        optimizer: PolicyOptimizer,
        job: TrainJob,
        device: torch.device,
        sharing: PrefixSharing | None = None,
    ) -> None:
        """Create the updater. Without `sharing`, every sample is computed on its own."""
        self._policy = policy
        self._reference = reference
        self._sharing = sharing
        self._optimizer = optimizer
        self._device = device
        self.adopt(job)

    def adopt(self, job: TrainJob) -> None:
        """Apply the settings of `job` from now on."""
        self._objective = Objective(job)
        self._entropy_gradient = job.entropy_coeff != 0
        self._sft_coeff = job.sft_coeff
        self._largest_pass = job.ppo_max_token_len
        self._largest_microbatch = None if self._objective.needs_whole_minibatch else job.ppo_max_token_len

    def measure_policy(self, rows: Sequence[Row], correction: RolloutCorrection | None) -> PolicyStatistics:
        """Return the statistics of every row under the current weights, and record them in the correction if given."""
        logprobs_EL = torch.zeros(len(rows), max(row.tokens for row in rows))
        squared_EL = torch.zeros_like(logprobs_EL)
        with torch.no_grad():
            nothing_EL = torch.zeros_like(logprobs_EL)
            for numbers, micro in self._microbatches(rows, range(len(rows)), nothing_EL, self._largest_pass):
                scores = self._policy(micro, with_squares=True)
                assert scores.squared_N is not None
                logprobs_RL, squared_RL = micro.spread(scores.logprobs_N), micro.spread(scores.squared_N)
                logprobs_EL[numbers, : logprobs_RL.shape[1]] = logprobs_RL.float().cpu()
                squared_EL[numbers, : squared_RL.shape[1]] = squared_RL.float().cpu()
                if correction is not None:
                    correction.record(numbers, logprobs_RL)
        return PolicyStatistics(logprobs_EL, squared_EL, None if correction is None else correction.weights())

    def record_proximal(self, step: StepInput, correction: RolloutCorrection) -> None:
        """Record the logprobs under the current weights of every row that a minibatch of the step may train.

        A step with a single minibatch does not need this: its own forward pass still uses the initial weights.
        """
        with torch.no_grad():
            trained = self._trained(step, range(len(step.rows)))
            for numbers, micro in self._microbatches(step.rows, trained, step.advantages_EL, self._largest_pass):
                correction.record(numbers, micro.spread(self._policy(micro).logprobs_N))

    def run(
        self,
        step: StepInput,
        chosen: Sequence[int],
        meter: Meter,
        *,
        on_policy: bool,
        demonstrations: Sequence[Row] = (),
    ) -> None:
        """Update the weights with the rows numbered `chosen`, and with `demonstrations` at the weight `sft_coeff`.

        The weights stay as they are without a learning signal (`actor/updates_without_signal`), or if the loss or its
        gradient is not finite (`actor/updates_not_finite`). `on_policy` tells that this is the first update of the
        step. Logprobs should then equal the recorded ones, and the gap is measured.
        """
        measured: Meter | None = Meter()
        if self._objective.trains_zero_advantage or any(step.advantages_EL[number].any() for number in chosen):
            measured = self.accumulate(step, chosen, on_policy=on_policy)
        elif not demonstrations:
            meter.count("actor/updates_without_signal")
            return
        if measured is not None and demonstrations:
            supervised = self.accumulate_supervised(demonstrations, self._sft_coeff)
            if supervised is not None:
                supervised.add_from(measured)
            measured = supervised
        self._update(measured, step.lr, meter)

    def run_supervised(self, demonstrations: Sequence[Row], lr: float, meter: Meter) -> None:
        """Update the weights with demonstrations alone, as `run` does."""
        self._update(self.accumulate_supervised(demonstrations, 1.0), lr, meter)

    def _update(self, measured: Meter | None, lr: float, meter: Meter) -> None:
        """Make the update of the accumulated gradient, unless its loss was not finite (None)."""
        norm = None if measured is None else self._optimizer.update(lr)
        if measured is None or norm is None:
            meter.count("actor/updates_not_finite")
            return
        meter.count("actor/updates")
        meter.average({"actor/grad_norm": norm})
        meter.include(measured)

    def accumulate(self, step: StepInput, chosen: Sequence[int], *, on_policy: bool) -> Meter | None:
        """Leave the gradient of this minibatch's loss in the module.

        Return None, and leave no gradient, if the loss is not finite.
        """
        size = MiniBatchSize(rows=len(chosen), tokens=sum(step.rows[number].tokens for number in chosen))
        measured = Meter()
        trained = self._trained(step, chosen)
        for numbers, micro in self._microbatches(step.rows, trained, step.advantages_EL, self._largest_microbatch):
            if self._sharing is not None:
                self._sharing.count(step.rows, numbers, micro)
            scores = self._score(step, numbers, micro)
            loss = self._objective(micro, scores, size)
            if not torch.isfinite(loss.total):
                self._optimizer.discard()
                return None
            measured.add(loss.sums)
            measured.average(loss.means, weight=float(sum(step.rows[number].tokens for number in numbers)))
            if on_policy:
                _measure_gap(measured, micro, scores, step.weight_version)
            # Last, because reading a number waits for the device: the next microbatch is collated during this pass.
            loss.total.backward()
        return measured

    def accumulate_supervised(self, demonstrations: Sequence[Row], coefficient: float) -> Meter | None:
        """Add the gradient of the supervised loss to that in the module, and return the loss `sft/loss`.

        The loss is the mean of -log π over the trained tokens, in nats. Return None, and leave no gradient, if it is
        not finite.
        """
        measured = Meter()
        for share in self._supervised_shares(demonstrations):
            if not torch.isfinite(share):
                self._optimizer.discard()
                return None
            measured.add({"sft/loss": share.item()})
            (coefficient * share).backward()
        return measured

    def measure_supervised(self, demonstrations: Sequence[Row]) -> float:
        """Return the supervised loss of demonstrations under the current weights."""
        with torch.no_grad():
            return sum(share.item() for share in self._supervised_shares(demonstrations))

    def _supervised_shares(self, rows: Sequence[Row]) -> Iterator[torch.Tensor]:
        """Yield the parts of the supervised loss, one for each microbatch."""
        tokens = sum(row.tokens for row in rows)
        ones_EL = torch.ones(len(rows), max(row.tokens for row in rows))
        for _numbers, micro in self._microbatches(rows, range(len(rows)), ones_EL, self._largest_pass):
            yield -self._policy(micro, with_entropy=False).logprobs_N.sum() / tokens

    def _microbatches(
        self, rows: Sequence[Row], chosen: Sequence[int], advantages_EL: torch.Tensor, max_tokens: int | None
    ) -> Iterator[tuple[Sequence[int], MicroBatch]]:
        """Yield the rows numbered `chosen` in parts: numbers and tensors of each."""
        plan = None if self._sharing is None else self._sharing.plan(rows, chosen, max_tokens)
        for numbers in plan_microbatches(rows, chosen, max_tokens) if plan is None else plan.microbatches:
            yield numbers, collate(rows, numbers, advantages_EL, self._device, shared=plan is not None)

    def _trained(self, step: StepInput, chosen: Sequence[int]) -> list[int]:
        """Return the chosen rows that go through the forward pass."""
        every = self._objective.needs_all_rows
        return [number for number in chosen if every or step.advantages_EL[number].any()]

    def _score(self, step: StepInput, numbers: Sequence[int], micro: MicroBatch) -> Scores:
        # The reference comes first: it may be the policy's own module in another state, and that state must not change
        # between the policy's forward and backward pass.
        reference_RL = None
        if self._reference is not None:
            with torch.no_grad():
                reference_RL = micro.spread(self._reference(micro).logprobs_N)
        policy = self._policy(micro, entropy_gradient=self._entropy_gradient)
        logprobs_RL = micro.spread(policy.logprobs_N)
        correction = None
        if step.correction is not None:
            step.correction.record(numbers, logprobs_RL)
            correction = step.correction.of(numbers, micro)
        return Scores(logprobs_RL, micro.spread(policy.entropies_N), reference_RL, correction)


def _measure_gap(meter: Meter, micro: MicroBatch, scores: Scores, weight_version: int | None) -> None:
    """Measure the gap between the logprobs recorded by the sampler and those of the same weights here.

    Tokens sampled by older weights are left out: training caused their difference.
    """
    compared_RL = micro.mask_RL
    if weight_version is not None:
        compared_RL = compared_RL & (micro.weight_versions_RL == weight_version)
    if not compared_RL.any():
        return
    new_N = scores.logprobs_RL.detach()[compared_RL]
    old_N = micro.rollout_logprobs_RL[compared_RL]
    gap_N = (new_N - old_N).abs()
    meter.maximum("training/rollout_logprob_gap_max", gap_N.max().item())
    meter.maximum("training/rollout_probs_diff_max", (new_N.exp() - old_N.exp()).abs().max().item())
    meter.average({"training/rollout_logprob_gap_mean": gap_N.mean().item()}, weight=float(len(gap_N)))
