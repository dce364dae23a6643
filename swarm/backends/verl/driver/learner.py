"""verl's v1 trainer, stepped from outside: one call trains one complete batch."""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportAttributeAccessIssue=false, reportIndexIssue=false
# pyright: reportUntypedBaseClass=false, reportUnknownParameterType=false, reportUnknownLambdaType=false
# pyright: reportOptionalMemberAccess=false, reportOptionalSubscript=false, reportIncompatibleMethodOverride=false

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, cast

import ray
import torch
import transfer_queue as tq
from omegaconf import open_dict
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.protocol import DataProto
from verl.trainer.ppo.core_algos import compute_gae_advantage_return
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_add_to_batch
from verl.trainer.ppo.utils import Role
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.utils.debug.metrics import calculate_debug_metrics
from verl.utils.metric import reduce_metrics
from verl.utils.py_functional import rename_dict
from verl.utils.seqlen_balancing import calculate_workload, get_seqlen_balanced_partitions
from verl.utils.tensordict_utils import list_of_dict_to_tensordict
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry
from verl.workers.utils.padding import response_from_nested, response_to_nested

from swarm.backends.verl.driver.sequences import Sequences, padding_fields
from swarm.backends.verl.ranks.losses import SUPERVISED
from swarm.backends.verl.ranks.weights import WEIGHTS_PATH
from swarm.backends.verl.ranks.worker import PolicyWorker, ValueWorker
from swarm.trainer.description import describe_values


def measure_gap(
    data: TensorDict, logprobs: torch.Tensor, entropies: torch.Tensor, weight_version: int
) -> dict[str, float]:
    """Return the gap over the trained tokens that weights of this version sampled.

    Training caused the gap of older tokens. `data` has the nested fields response_mask, rollout_log_probs and
    weight_versions; `logprobs` and `entropies` are nested the same way. The entropy covers all trained tokens.
    """
    mask_N = data["response_mask"].values().bool()
    fresh_N = mask_N & (data["weight_versions"].values() == weight_version)
    metrics = {"actor/entropy": entropies.values()[mask_N].mean().item()}
    if not fresh_N.any():
        return metrics
    own_N, recorded_N = logprobs.values()[fresh_N], data["rollout_log_probs"].values()[fresh_N]
    compared = DataProto.from_single_dict(
        {
            "responses": torch.zeros_like(own_N)[None],
            "response_mask": torch.ones_like(own_N)[None],
            "old_log_probs": own_N[None],
            "rollout_log_probs": recorded_N[None],
        }
    )
    gap_N = (own_N - recorded_N).abs()
    return {
        **metrics,
        **{name: float(value) for name, value in calculate_debug_metrics(compared).items()},
        "training/rollout_logprob_gap_max": gap_N.max().item(),
        "training/rollout_logprob_gap_mean": gap_N.mean().item(),
    }


PARTITION: Final = "train"
WEIGHTS_FILE: Final = "model.safetensors"
WHOLE_BATCH_LOSSES: Final = frozenset({"clip_cov", "kl_cov"})
"""Losses that compare each token with all others of the call. On each rank, a minibatch is then one microbatch."""
OUTSIDE_SAMPLER: Final = "swarm"
"""Name of our replicas for verl, which starts no sampler of this name."""
OWN_NAMES: Final = ("actor/rollout_corr/", "actor/sft/")
"""Metrics of a loss that have the same name on every engine, after the prefix that verl puts before them."""
SCORED_FIELDS: Final = ("prompts", "responses", "input_ids", "position_ids", "loss_mask", "response_mask")


@dataclass(frozen=True, slots=True)
class MiniBatch:
    """Numbers of a minibatch's sequences, and the number of their episodes."""

    sequences: tuple[int, ...]
    episodes: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Plan of one step. `weight_version` is the version of the weights before it.

    With a `supervised_lr` the sequences are demonstrations. The loss of `held_out` ones is measured after the step. A
    step that `forgets` begins with new moments of AdamW.
    """

    step: int
    weight_version: int
    sequences: Sequences
    minibatches: Sequence[MiniBatch]
    supervised_lr: float | None = None
    held_out: Sequences | None = None
    forgets: bool = False


RolloutReplicaRegistry.register(OUTSIDE_SAMPLER, lambda: RolloutReplica)


class _NoData:
    """Replacement for verl's dataloader."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        return None


class SteppedTrainer(PPOTrainer):
    """verl's trainer for one batch at a time. Used from one thread: `init()` once, then `train` per batch.

    Worker methods raise Ray's errors if a worker dies.
    """

    # The samplers are not verl's, so verl starts none.
    _enable_hybrid_replicas = False
    _tensors: list[tuple[str, str, list[int]]] | None = None

    def _build_replay_buffer(self) -> None:
        return None

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()
        for role in self.role_worker_mapping:
            self.role_worker_mapping[role] = ray.remote(ValueWorker if role == Role.Critic else PolicyWorker)

    def _init_dataloader(self) -> None:
        self.train_dataloader = self.val_dataloader = _NoData()
        total = self.config.trainer.total_training_steps or -1
        self.steps_per_epoch = self.total_training_steps = total
        with open_dict(self.config):
            self.config.actor_rollout_ref.actor.optim.total_training_steps = total
            self.config.critic.optim.total_training_steps = total

    def on_sample_end(self) -> None:
        return None

    def on_step_end(self) -> None:
        return None

    def train(self, plan: StepPlan) -> dict[str, float]:
        """Score the batch, compute advantages, and update. Return verl's metrics of the step.

        After an exception, `has_updated` tells whether the weights have changed. With a critic, `judged_advantages` has
        the sum and the number of the advantages of each sequence.
        """
        self.has_updated = False
        self.judged_advantages = dict[int, tuple[float, int]]()
        self.global_steps = plan.step
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._plan = plan
        with open_dict(self.config):
            self.config.actor_rollout_ref.rollout.temperature = plan.sequences.temperature
        metrics: dict[str, Any] = {}
        with self._timed("step"):
            if plan.supervised_lr is not None:
                metrics = self._train_demonstrations(plan, plan.supervised_lr)
            else:
                if plan.forgets:
                    self.actor_rollout_wg.forget_moments()
                if plan.minibatches:
                    metrics = self._train_rows(plan)
                self.has_updated = True
                self._end_step()
        metrics.update({f"timing_s/{name}": seconds for name, seconds in self._seconds.items()})
        tokens = sum(sequence.length for sequence in plan.sequences.trained)
        metrics["perf/total_num_tokens"] = tokens
        metrics["perf/time_per_step"] = self._seconds["step"]
        metrics["perf/throughput"] = tokens / (self._seconds["step"] * self._get_n_gpus_for_throughput())
        return metrics

    def export(self, version: int) -> str:
        """Write the current weights as a file, and return its path."""
        answers = ray.get(self.actor_rollout_wg.update_weights(global_steps=version))
        merged = {name: value for answer in answers if answer for name, value in answer.items()}
        return str(merged[WEIGHTS_PATH])

    def prepare_broadcast(self) -> dict[str, Any]:
        """Return the meeting point of rank 0 and the samplers on other hosts, and the list of tensors to come."""
        group = self.actor_rollout_wg
        answers = ray.get(group.execute_checkpoint_engine(["prepare"] * group.world_size))
        if self._tensors is None:
            dtype = str(self.config.actor_rollout_ref.rollout.dtype)
            described = group.describe_weights()[0]
            self._tensors = [(name, dtype if "float" in own else own, shape) for name, own, shape in described]
        return {**answers[0], "tensors": self._tensors}

    def broadcast(self, version: int) -> None:
        """Send the current weights to all samplers that wait at the meeting point."""
        ray.get(self.actor_rollout_wg.update_weights(global_steps=version))

    def save(self, directory: Path, step: int) -> None:
        """Save the shards of every rank, and the weights as one file that other programs load."""
        dtype = str(self.config.actor_rollout_ref.rollout.dtype)
        self.actor_rollout_wg.save_weights(str(directory / WEIGHTS_FILE), dtype)
        self.actor_rollout_wg.save_checkpoint(str(directory / "actor"), None, step)
        if self.use_critic:
            self.critic_wg.save_checkpoint(str(directory / str(Role.Critic)), None, step)

    def load(self, directory: Path) -> None:
        self.actor_rollout_wg.load_checkpoint(str(directory / "actor"))
        if self.use_critic:
            self.critic_wg.load_checkpoint(str(directory / str(Role.Critic)))

    def restore_base(self) -> None:
        """Restore weights, optimizers and schedules from before the first step."""
        self.actor_rollout_wg.restore_base()
        if self.use_critic:
            self.critic_wg.reset()

    def _train_rows(self, plan: StepPlan) -> dict[str, Any]:
        keys = self._put(plan)
        metrics: dict[str, Any] = {}
        try:
            batch = self._batch(keys)
            with self._timed("old_log_prob"):
                self._compute_old_log_prob(batch, metrics)
            if self.use_reference_policy:
                with self._timed("ref"):
                    self._compute_ref_log_prob(self._batch(keys), metrics)
            if self.use_critic:
                with self._timed("values"):
                    self._compute_values(self._batch(keys), metrics)
            with self._timed("adv"):
                self._compute_advantage(batch, metrics)
            self.has_updated = True
            if self.use_critic:
                with self._timed("update_critic"):
                    self._update(keys, metrics, is_critic=True)
            if self.config.trainer.critic_warmup <= self.global_steps:
                with self._timed("update_actor"):
                    self._update(keys, metrics, is_critic=False)
        finally:
            tq.kv_clear(keys=keys, partition_id=PARTITION)
        return metrics

    def _train_demonstrations(self, plan: StepPlan, lr: float) -> dict[str, Any]:
        """Update once with demonstrations. The schedule of the learning rate stays where it is."""
        keys, metrics = self._put(plan), dict[str, Any]()
        try:
            self.has_updated = True
            self.actor_rollout_wg.set_rate(lr)
            with self._timed("update_actor"):
                self._update(keys, metrics, is_critic=False)
            self.actor_rollout_wg.set_rate(None)
        finally:
            tq.kv_clear(keys=keys, partition_id=PARTITION)
        metrics["actor/lr"] = lr
        if plan.held_out is not None:
            metrics["sft/held_out_loss"] = self._measure_loss(replace(plan, sequences=plan.held_out))
        return metrics

    def _measure_loss(self, plan: StepPlan) -> float:
        """Return the mean of -log π over the trained tokens of the sequences."""
        keys = self._put(plan)
        try:
            batch = self._batch(keys)
            temperature = self.config.actor_rollout_ref.rollout.temperature
            batch.extra_info.update(calculate_entropy=False, compute_loss=False, temperature=temperature)
            self.actor_rollout_wg.compute_log_prob(batch)
            fields = ["log_probs", "response_mask"]
            data = tq.kv_batch_get(keys=batch.keys, partition_id=PARTITION, select_fields=fields)
            mask = data["response_mask"]
            return -response_from_nested(data["log_probs"], mask).values()[mask.values().bool()].mean().item()
        finally:
            tq.kv_clear(keys=keys, partition_id=PARTITION)

    def _put(self, plan: StepPlan) -> list[str]:
        """Store the sequences in the queue and return their keys.

        Padding sequences, which train nothing, make every minibatch divisible by the number of ranks.
        """
        trained = plan.sequences.trained
        ranks = self._ranks()
        filling = ranks - 1
        filling += -(len(trained) + filling) % ranks
        fields = [sequence.fields for sequence in trained]
        fields += [padding_fields(fields[0])] * filling
        keys = [f"{plan.step}-{number}" for number in range(len(fields))]
        self._lengths = {key: len(each["input_ids"]) for key, each in zip(keys, fields, strict=True)}
        tq.kv_batch_put(keys=keys, partition_id=PARTITION, fields=list_of_dict_to_tensordict(fields))
        return keys

    def _batch(self, keys: Sequence[str], fields: Sequence[str] | None = None, **extra: Any) -> KVBatchMeta:
        """Return the rows of these keys, ordered so that each rank gets a share of similar work."""
        workload = calculate_workload(torch.tensor([self._lengths[key] for key in keys], dtype=torch.int64))
        shares = get_seqlen_balanced_partitions(workload.tolist(), k_partitions=self._ranks(), equal_size=True)
        ordered = [str(keys[place]) for share in cast("list[list[int]]", shares) for place in share]
        longest = max(int(self.config.actor_rollout_ref.actor.ppo_max_token_len_per_gpu), *self._lengths.values())
        return KVBatchMeta(
            keys=ordered,
            tags=[{} for _ in ordered],
            partition_id=PARTITION,
            fields=None if fields is None else list(fields),
            extra_info={"max_token_len_per_gpu": longest, **extra},
        )

    def _ranks(self) -> int:
        """Return the number of processes that share the rows."""
        mapping = self.actor_rollout_wg._dispatch_info.get("actor")
        if mapping is None:
            mapping = self.actor_rollout_wg._query_dispatch_info("actor")
            self.actor_rollout_wg._dispatch_info["actor"] = mapping
        return max(mapping) + 1

    def _compute_old_log_prob(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        """Score with the policy at the start of the step, and measure its distance from the sampler's logprobs.

        Without a correction, the loss compares the policy with the recorded logprobs of the sampler.
        """
        rollout, correction = self.config.actor_rollout_ref.rollout, self.config.algorithm.rollout_correction
        if correction.bypass_mode and not rollout.calculate_log_probs:
            self._rewrite(batch, ["rollout_log_probs"], lambda data: {"old_log_probs": data["rollout_log_probs"]})
            return batch
        batch.extra_info.update(calculate_entropy=True, compute_loss=False, temperature=rollout.temperature)
        self.actor_rollout_wg.compute_log_prob(batch)

        def keep(data: TensorDict) -> dict[str, torch.Tensor]:
            mask = data["response_mask"]
            own = response_from_nested(data["log_probs"], mask)
            entropy = response_from_nested(data["entropy"], mask)
            metrics.update(measure_gap(data, own, entropy, self._plan.weight_version))
            return {"old_log_probs": data["rollout_log_probs"] if correction.bypass_mode else own}

        fields = ["log_probs", "entropy", "response_mask", "rollout_log_probs", "weight_versions"]
        self._rewrite(batch, fields, keep)
        return batch

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        """Compute the advantages of a critic by verl's estimator, and the rollout correction.

        Other advantages were computed before.
        """
        algorithm = self.config.algorithm
        correction = algorithm.rollout_correction
        if self.use_critic:

            def judge(data: TensorDict) -> dict[str, torch.Tensor]:
                padded = data.to_padded_tensor()
                mask = padded["response_mask"]
                advantages, returns = compute_gae_advantage_return(
                    padded["rm_scores"], padded["values"], mask, algorithm.gamma, algorithm.lam
                )
                metrics.update(describe_values(padded["values"], advantages, returns, mask.bool()))
                self._keep_judged(batch.keys, advantages, mask)
                nested = data["response_mask"]
                found = {"advantages": advantages, "returns": returns}
                return {name: response_to_nested(value, nested) for name, value in found.items()}

            self._rewrite(batch, ["rm_scores", "values", "response_mask"], judge)
        if correction.rollout_is or correction.rollout_rs:

            def correct(data: TensorDict) -> dict[str, torch.Tensor]:
                nested = data["response_mask"]
                corrected, measured = compute_rollout_correction_and_add_to_batch(
                    DataProto(batch=data.to_padded_tensor()), correction
                )
                metrics.update(measured)
                names = [name for name in ("rollout_is_weights", "response_mask") if name in corrected.batch]
                new = {name: response_to_nested(corrected.batch[name], nested) for name in names}
                return {**new, "loss_mask": new["response_mask"]}

            self._rewrite(batch, ["old_log_probs", "rollout_log_probs", "response_mask"], correct)
        return batch

    def _keep_judged(self, keys: Sequence[str], advantages: torch.Tensor, mask: torch.Tensor) -> None:
        sums, counts = (advantages * mask).sum(dim=1).tolist(), mask.sum(dim=1).tolist()
        for key, total, count in zip(keys, sums, counts, strict=True):
            self.judged_advantages[int(key.rsplit("-", 1)[1])] = total, int(count)

    def _rewrite(self, batch: KVBatchMeta, fields: list[str], change: Any) -> None:
        data = tq.kv_batch_get(keys=batch.keys, partition_id=PARTITION, select_fields=fields)
        new = TensorDict(change(data), batch_size=len(batch))
        tq.kv_batch_put(keys=batch.keys, partition_id=PARTITION, fields=new)

    def _update(self, keys: Sequence[str], metrics: dict[str, Any], *, is_critic: bool) -> None:
        role, config = ("critic", self.config.critic) if is_critic else ("actor", self.config.actor_rollout_ref.actor)
        measured: defaultdict[str, list[float]] = defaultdict(list)
        for minibatch in self._plan.minibatches:
            chosen = [keys[number] for number in minibatch.sequences]
            chosen += keys[len(self._plan.sequences.trained) :][: -len(chosen) % self._ranks()]
            batch = self._batch(
                chosen,
                self._updated_fields(is_critic),
                global_batch_size=minibatch.episodes,
                mini_batch_size=len(chosen),
                epochs=1,
                seed=int(config.data_loader_seed),
                dataloader_kwargs={"shuffle": False},
                temperature=self.config.actor_rollout_ref.rollout.temperature,
                calculate_entropy=not is_critic and config.entropy_coeff != 0,
            )
            if self._plan.supervised_lr is not None:
                batch.extra_info[SUPERVISED] = True
            if not is_critic and _compares_all_tokens(config.policy_loss):
                batch.extra_info["max_token_len_per_gpu"] = sum(self._lengths[key] for key in chosen)
            if is_critic:
                answer = self.critic_wg.train_mini_batch(batch).get()
            else:
                answer = self.actor_rollout_wg.update_actor(batch)
            for name, value in reduce_metrics(rename_dict(answer["metrics"], f"{role}/")).items():
                known = name.removeprefix("actor/") if name.startswith(OWN_NAMES) else name
                measured[known].append(float(value))
        metrics.update(_over_updates(measured, role))

    def _updated_fields(self, is_critic: bool) -> list[str]:
        if self._plan.supervised_lr is not None:
            return list(SCORED_FIELDS)
        if is_critic:
            return [*SCORED_FIELDS, "values", "returns"]
        names = [*SCORED_FIELDS, "old_log_probs", "advantages", "row_weight"]
        if "token_temperatures" in self._plan.sequences.trained[0].fields:
            names.append("token_temperatures")
        if self.config.algorithm.rollout_correction.rollout_is:
            names.append("rollout_is_weights")
        return [*names, "ref_log_prob"] if self.config.actor_rollout_ref.actor.use_kl_loss else names

    def _end_step(self) -> None:
        self.actor_rollout_wg.end_step()
        if self.use_critic:
            self.critic_wg.end_step()

    @contextmanager
    def _timed(self, name: str) -> Generator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[name] += time.perf_counter() - began


def _compares_all_tokens(policy_loss: Any) -> bool:
    normalizes = bool(policy_loss.rollout_correction.rollout_is_batch_normalize)
    return policy_loss.loss_mode in WHOLE_BATCH_LOSSES or normalizes


def _over_updates(measured: Mapping[str, Sequence[float]], role: str) -> dict[str, float]:
    """Return means over the updates of a step.

    verl skips updates whose gradient is not finite; these are only counted.
    """
    norms = torch.tensor(measured.get(f"{role}/grad_norm", []))
    finite = torch.isfinite(norms)
    metrics: dict[str, float] = {}
    for name, values in measured.items():
        kept = [value for value, is_done in zip(values, finite.tolist(), strict=True) if is_done]
        if kept:
            metrics[f"perf/mfu/{role}" if name == f"{role}/mfu" else name] = sum(kept) / len(kept)
    metrics[f"{role}/updates"] = float(finite.sum())
    if not bool(finite.all()):
        metrics[f"{role}/updates_not_finite"] = float((~finite).sum())
    return metrics
