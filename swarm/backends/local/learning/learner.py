"""One training step on a complete batch: advantages, then minibatch updates, all or nothing; and checkpoints."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import copy
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers.utils import logging as transformers_logging

from swarm.backends.local.learning.critic import Critic, ValueTargets
from swarm.backends.local.learning.losses import RolloutCorrection
from swarm.backends.local.learning.microbatches import FollowedBatch, GrammarFollower
from swarm.backends.local.learning.optimizer import PolicyOptimizer
from swarm.backends.local.learning.sharing.prefix_sharing import PrefixSharing
from swarm.backends.local.learning.updater import MiniBatchUpdater, StepInput, TokenScorer
from swarm.backends.local.model.adapter import AdapterFiles, adapter_weights, read_adapter
from swarm.backends.weights import UnfitWeights, load_fitting, refuse_other_shapes, shapes_of
from swarm.errors import CheckpointError
from swarm.job import TrainJob
from swarm.live_settings import with_settings
from swarm.trainer.advantages import compute_advantages, compute_critic_advantages
from swarm.trainer.checkpoint_files import (
    CheckpointInfo,
    fingerprint,
    info_of,
    one_line,
    read_checkpoint_manifest,
    written_checkpoint,
)
from swarm.trainer.description import Meter, describe_batch, describe_demonstrations, describe_values, mean_advantages
from swarm.trainer.schedule import draw_minibatches, learning_rate, step_generator
from swarm.trainer.token_rows import Row, build_demonstration_rows, build_rows
from swarm.types import TrainBatch

TRAINER_STATE = "trainer_state.pt"
FORMAT = 1


@dataclass(frozen=True, slots=True)
class LearnerReport:
    """Measurements of one step. `advantages` maps episode id to the mean advantage of its tokens."""

    metrics: dict[str, float]
    advantages: dict[str, float]


class Learner:
    """Trainer of a Hugging Face causal language model in place, or of its adapter. Used from one thread.

    The module stays in evaluation mode: dropout would make the trained policy differ from the sampled one. With
    `use_kl_loss` the weights at construction are copied as the frozen reference. Construct the learner with the base
    model and then call `load`. With `lora_rank` the reference is the module without its adapter, and no copy is made.
    Turns sampled under a grammar are trained with the masks that `grammars` finds. All randomness derives from
    (job.seed, batch.step), so a resumed run repeats an uninterrupted one bit for bit.
    """

    def __init__(self, module: torch.nn.Module, job: TrainJob, grammars: GrammarFollower | None = None) -> None:
        """Create the learner of a module. Without `grammars`, a batch with a constrained turn is refused."""
        self._job = job.resolve()
        self._grammars = grammars
        self._module = module.eval()
        policy = TokenScorer(module, recompute=bool(self._job.enable_gradient_checkpointing))
        self._optimizer = PolicyOptimizer(module, self._job)
        self._sharing = PrefixSharing(module) if self._job.share_prefixes == "auto" else None
        self._updater = MiniBatchUpdater(
            policy=policy,
            reference=self._reference() if self._job.use_kl_loss else None,
            optimizer=self._optimizer,
            job=self._job,
            device=next(module.parameters()).device,
            sharing=self._sharing,
        )
        self._critic = Critic(module, self._job, next(module.parameters()).device) if self._job.has_critic else None
        self._steps_done = 0

    def step(self, batch: TrainBatch, *, weight_version: int | None = None) -> LearnerReport:
        """Train `ppo_epochs` passes over the batch. On any exception, weights and optimizer are as before.

        `weight_version` is the version of the current weights. It is None if they have no version, and staleness is
        then not reported. Settings of the batch take precedence over those of the job. A batch without a learning
        signal (no groups, or only zero advantages without a KL or entropy term) is reported and leaves the weights
        unchanged. Raise EngineFailure for a batch that cannot be trained.
        """
        started = time.perf_counter()
        job = self._adopt(batch)
        if job.is_supervised(batch.step):
            return self._step_supervised(batch, job, started)
        followed = FollowedBatch(batch) if self._grammars is None else self._grammars.follow(batch)
        rows = build_rows(followed.batch, followed.masks)
        if not rows:
            self._steps_done += 1
            nothing = {"rollout/episodes": 0.0, "rollout/groups": 0.0, "actor/updates": 0.0}
            return LearnerReport({**nothing, **followed.metrics}, {})
        lr, meter = learning_rate(job, self._steps_done + 1), Meter()
        if self._sharing is not None:
            self._sharing.report_to(meter)
        correction = RolloutCorrection(rows, job) if job.has_proximal_policy else None
        policy = self._updater.measure_policy(rows, correction) if job.reads_policy else None
        targets = None
        if self._critic is None:
            advantages_EL = compute_advantages(rows, job, policy)
        else:
            values_EL = self._critic.values(rows)
            advantages_EL, returns_EL = compute_critic_advantages(rows, values_EL, job)
            targets = ValueTargets(values_EL, returns_EL)
        step = StepInput(rows, advantages_EL, lr, weight_version, correction)
        demonstrations = build_demonstration_rows(batch.demonstrations)
        minibatches = list(draw_minibatches(len(rows), job, batch.step))
        prepared = time.perf_counter()
        with self._all_or_nothing(job, batch.step):
            if self._critic is not None and targets is not None:
                for chosen in minibatches:
                    self._critic.run(rows, chosen, targets, meter)
            if (job.critic_warmup or 0) <= batch.step - job.sft_steps:
                self._train_policy(step, minibatches, meter, demonstrations, is_recorded=policy is not None)
        self._steps_done += 1
        finished = time.perf_counter()
        metrics = {
            "actor/updates": 0.0,
            "actor/grad_norm": 0.0,
            **describe_batch(followed.batch, rows, advantages_EL, weight_version),
            **({} if targets is None else _describe_critic(rows, targets, advantages_EL)),
            **followed.metrics,
            **(describe_demonstrations(demonstrations) if demonstrations else {}),
            **meter.read(),
            **({} if correction is None else correction.metrics()),
            "actor/lr": lr,
            "timing_s/prepare": prepared - started,
            "timing_s/update_actor": finished - prepared,
            "timing_s/step": finished - started,
        }
        return LearnerReport(metrics, mean_advantages(rows, advantages_EL))

    def _step_supervised(self, batch: TrainBatch, job: TrainJob, started: float) -> LearnerReport:
        """Update the weights once, with the demonstrations of the batch alone."""
        rows, held_out = build_demonstration_rows(batch.demonstrations), build_demonstration_rows(batch.held_out)
        lr, meter = learning_rate(job, batch.step), Meter()
        if self._sharing is not None:
            self._sharing.report_to(meter)
        prepared = time.perf_counter()
        with self._all_or_nothing(job, batch.step):
            self._updater.run_supervised(rows, lr, meter)
            if batch.step == job.sft_steps:
                # The gradients of rewards are of another size, and AdamW would divide by those of the demonstrations.
                self._optimizer.forget()
        self._steps_done += 1
        updated = time.perf_counter()
        loss = {"sft/held_out_loss": self._updater.measure_supervised(held_out)} if held_out else {}
        metrics = {
            "actor/updates": 0.0,
            "actor/grad_norm": 0.0,
            **meter.read(),
            **loss,
            **describe_demonstrations(rows),
            "actor/lr": lr,
            "timing_s/prepare": prepared - started,
            "timing_s/update_actor": updated - prepared,
            "timing_s/step": time.perf_counter() - started,
        }
        return LearnerReport(metrics, {})

    def _train_policy(
        self,
        step: StepInput,
        minibatches: Sequence[Sequence[int]],
        meter: Meter,
        demonstrations: Sequence[Row],
        *,
        is_recorded: bool,
    ) -> None:
        """Update the policy on every minibatch, each with its part of the demonstrations.

        `is_recorded` tells that the correction already has every row's logprobs under the initial weights.
        """
        if step.correction is not None and not is_recorded and len(minibatches) > 1:
            self._updater.record_proximal(step, step.correction)
        for number, chosen in enumerate(minibatches):
            part = demonstrations[number :: len(minibatches)]
            self._updater.run(step, chosen, meter, on_policy=number == 0, demonstrations=part)

    def save(self, directory: Path, *, step: int, weight_version: int, tokenizer: Any) -> None:
        """Write a checkpoint atomically. Raise CheckpointError and leave the old checkpoint unchanged.

        `tokenizer` is a Hugging Face one, or None: the checkpoint of an adapter needs none.
        """
        state: dict[str, Any] = {"steps_done": self._steps_done, "optimizer": self._optimizer.state()}
        if self._critic is not None:
            state["critic"] = self._critic.state()
        manifest = {"format": FORMAT, "job": self._job.model_dump(mode="json")}
        info, failures = CheckpointInfo(step=step, weight_version=weight_version), (RuntimeError, SafetensorError)
        model: Any = AdapterFiles(self._module) if self._job.lora_rank else self._module
        with written_checkpoint(directory, info, manifest, describe=fingerprint, failures=failures) as draft:
            model.save_pretrained(str(draft))
            if tokenizer is not None:
                tokenizer.save_pretrained(str(draft))
            torch.save(state, draft / TRAINER_STATE)

    def load(self, directory: Path) -> CheckpointInfo:
        """Restore weights and optimizer in place. Raise CheckpointError before anything changes."""
        info, state = read_checkpoint(directory)
        if self._job.lora_rank:
            stored, present = read_adapter(directory, like=self._module), adapter_weights(self._module)
        else:
            stored, present = read_weights(directory, like=self._module), dict(self._module.named_parameters())
        self._optimizer.check(state["optimizer"])
        if self._critic is not None:
            self._critic.check(state.get("critic"))
        with torch.no_grad():
            for name, weight in present.items():
                weight.copy_(stored[name])
        self._optimizer.load(state["optimizer"])
        if self._critic is not None:
            self._critic.load(state.get("critic"))
        self._steps_done = state["steps_done"]
        return info

    def _reference(self) -> TokenScorer:
        if self._job.lora_rank:
            return TokenScorer(self._module, has_adapter=False)
        return TokenScorer(copy.deepcopy(self._module).requires_grad_(False))

    def _adopt(self, batch: TrainBatch) -> TrainJob:
        """Return the job with the settings of the batch, and apply them from now on."""
        job = with_settings(self._job, batch.settings).resolve()
        self._optimizer.adopt(job)
        self._updater.adopt(job)
        if self._critic is not None:
            self._critic.adopt(job)
        return job

    @contextmanager
    def _all_or_nothing(self, job: TrainJob, step: int) -> Generator[None]:
        # A single update changes the weights as its very last act, so only several updates need a copy for a rollback.
        several = job.ppo_epochs * job.mini_batch_num > 1 or self._critic is not None
        before = self._optimizer.snapshot() if several else None
        judged = None if self._critic is None else self._critic.snapshot()
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(int(step_generator(job, step).integers(2**63)))
            try:
                yield
            except BaseException:
                self._optimizer.discard()
                if before is not None:
                    self._optimizer.restore(before)
                if self._critic is not None and judged is not None:
                    self._critic.restore(judged)
                raise


def _describe_critic(rows: Sequence[Row], targets: ValueTargets, advantages_EL: torch.Tensor) -> dict[str, float]:
    tokens_E = torch.tensor([row.tokens for row in rows])
    mask_EL = torch.arange(advantages_EL.shape[1])[None] < tokens_E[:, None]
    return describe_values(targets.values_EL, advantages_EL, targets.returns_EL, mask_EL)


def read_checkpoint(directory: Path) -> tuple[CheckpointInfo, dict[str, Any]]:
    """Return the step and trainer state of a checkpoint with intact files. Raise CheckpointError."""
    info = info_of(directory, read_checkpoint_manifest(directory, FORMAT))
    try:
        state = torch.load(directory / TRAINER_STATE, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, ValueError) as error:
        raise CheckpointError(f"checkpoint {directory} cannot be read: {one_line(error)}") from error
    return info, state


def read_weights(directory: Path, like: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return parameters by name, on the CPU, in the dtype and shapes of `like`, a Hugging Face model.

    Raise CheckpointError if they belong to another model.
    """
    expected = dict(like.named_parameters())
    dtype = next(iter(expected.values())).dtype
    transformers_logging.disable_progress_bar()
    try:
        stored = load_fitting(type(like), directory, dtype=dtype)
    except (OSError, RuntimeError, ValueError, SafetensorError) as error:
        raise CheckpointError(f"checkpoint {directory} cannot be loaded: {one_line(error)}") from error
    weights = {name: weight.detach() for name, weight in stored.named_parameters()}
    try:
        refuse_other_shapes(shapes_of(weights), shapes_of(expected))
    except UnfitWeights as error:
        raise CheckpointError(
            f"checkpoint {directory} is of another model, because names or shapes differ: {error}"
        ) from error
    return weights
