"""The rules between the settings of a job: what its estimator and its loss need, and what nothing would read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from swarm.estimators import ESTIMATORS, Estimator
from swarm.job.settings import TRAITS, JobSettings
from swarm.schemas import STOP_RULES

REJECTIONS: Final = (
    "token_k1", "token_k2", "token_k3", "seq_sum_k1", "seq_sum_k2", "seq_sum_k3", "seq_mean_k1", "seq_mean_k2",
    "seq_mean_k3", "seq_max_k2", "seq_max_k3",
)  # fmt: skip
"""Criteria of `rollout_rs`, by verl's names. Each names a token or sequence statistic and a divergence."""


def check_estimator(job: JobSettings) -> None:
    """Raise ValueError, which names the setting, if the estimator and the other settings do not fit together."""
    estimator = ESTIMATORS[job.algorithm]
    for problem in (
        *_of_engine(job, estimator),
        *_of_missing(job),
        *_of_greedy(job, estimator),
        *_of_named_rewards(job),
    ):
        raise ValueError(problem)


def check_loss(job: JobSettings) -> None:
    """Raise ValueError if the policy loss and the settings of its correction do not fit together."""
    for problem in _of_bypass(job):
        raise ValueError(problem)


def check_supervision(job: JobSettings) -> None:
    """Raise ValueError if the settings of supervised training do not fit the other settings."""
    for problem in _of_supervision(job):
        raise ValueError(problem)


def check_mixture(mixture: Mapping[str, float]) -> None:
    """Raise ValueError unless the shares are positive and sum to 1 within 1e-6, because 1/3 is written rounded."""
    if not mixture or any(not share > 0 for share in mixture.values()):
        raise ValueError("mixture: every data source needs a share above 0")
    if abs(sum(mixture.values()) - 1) > 1e-6:
        raise ValueError(f"mixture: the shares must sum to 1, not {sum(mixture.values()):g}")


def bypass_settings(job: JobSettings) -> dict[str, Any]:
    """Return the settings of the loss bypass_mode, by the field names of verl's RolloutCorrectionConfig.

    The job must be resolved.
    """
    return {
        "rollout_is": None if job.rollout_is == "off" else job.rollout_is,
        "rollout_is_threshold": job.rollout_is_threshold,
        "rollout_is_batch_normalize": job.rollout_is_batch_normalize,
        "rollout_rs": job.rollout_rs,
        "rollout_rs_threshold": job.rollout_rs_threshold,
        "bypass_mode": True,
        "loss_type": job.loss_type,
    }


def _of_supervision(job: JobSettings) -> Iterator[str]:
    if job.demonstrations is None:
        return
    # A run may end in its supervised steps. The record of such a job states every setting.
    is_record = job.model_fields_set == type(job).model_fields.keys()
    if not is_record and job.total_steps is not None and job.sft_steps > job.total_steps:
        yield (
            f"sft_steps ({job.sft_steps}) must not exceed total_steps ({job.total_steps}), in which they count: set"
            " total_steps to the steps of both stages"
        )
    if job.chosen_engine == "verl" and job.sft_coeff:
        yield (
            "sft_coeff: engine verl has no supervised loss beside the policy loss: leave it out and set sft_steps, or"
            " set engine to local"
        )
    if job.use_kl_loss and job.sft_steps:
        yield (
            "use_kl_loss would hold the model to its weights before the sft_steps: train the demonstrations in a run of"
            " their own, export it, and begin a run with that model"
        )


def _of_engine(job: JobSettings, estimator: Estimator) -> Iterator[str]:
    engine = job.chosen_engine
    if engine != "fake" and engine in estimator.unserved:
        yield f"algorithm {job.algorithm}: {estimator.unserved[engine]}"
    if estimator.has_critic and job.lora_rank and engine == "local":
        yield "lora_rank: engine local trains no critic beside an adapter: set lora_rank to 0, or engine to verl"


def _of_missing(job: JobSettings) -> Iterator[str]:
    for name, traits in TRAITS.items():
        if traits.needed and getattr(job, name) is None:
            wanted = [f"{need.setting} {need.adds}" for need in traits.needs]
            if all(need.is_met(getattr(job, need.setting)) for need in traits.needs):
                yield f"{' and '.join(wanted)} needs {name}, {traits.needed}: set it"


def _of_greedy(job: JobSettings, estimator: Estimator) -> Iterator[str]:
    if not estimator.has_greedy:
        return
    needing = f"algorithm {job.algorithm} needs"
    if job.num_repeat < 2:
        yield f"{needing} num_repeat 2 or more: one episode of a group is what the others are compared with"
    if not STOP_RULES[job.stop_rule].is_grouped:
        grouped = sorted(name for name, traits in STOP_RULES.items() if traits.is_grouped)
        yield f"{needing} batches of whole groups: set stop_rule to {' or '.join(grouped)}"
    if job.mini_batch_num > job.batch_size * (job.num_repeat - 1):
        yield (
            "mini_batch_num must not exceed batch_size * (num_repeat - 1), which is what algorithm"
            f" {job.algorithm} trains"
        )


def _of_named_rewards(job: JobSettings) -> Iterator[str]:
    keys, weights = job.gdpo_reward_keys or [], job.gdpo_reward_weights
    if len(set(keys)) != len(keys):
        yield f"gdpo_reward_keys names {next(key for key in keys if keys.count(key) > 1)} twice"
    elif weights is not None and len(weights) != len(keys):
        yield f"gdpo_reward_weights has {len(weights)} weights for {len(keys)} rewards: give one for each"


def _of_bypass(job: JobSettings) -> Iterator[str]:
    if job.policy_loss == "bypass_mode" and job.loss_type == "ppo_clip" and job.rollout_is not in {None, "off"}:
        yield (
            "rollout_is has no place in policy_loss bypass_mode with loss_type ppo_clip, whose ratio is the correction:"
            " leave it out, or set loss_type to reinforce"
        )
    if (job.rollout_rs is None) != (job.rollout_rs_threshold is None):
        yield "rollout_rs needs rollout_rs_threshold, one bound for all criteria or one for each: give both, or neither"
    if job.rollout_rs is not None and job.rollout_rs_threshold is not None:
        yield from _of_rejection(job.rollout_rs, str(job.rollout_rs_threshold))


def _of_rejection(rollout_rs: str, threshold: str) -> Iterator[str]:
    criteria = list(dict.fromkeys(part.strip() for part in rollout_rs.split(",") if part.strip()))
    unknown = [name for name in criteria if name not in REJECTIONS]
    if unknown or not criteria:
        given = unknown[0] if unknown else "an empty list"
        yield f"rollout_rs: {given} is no criterion: name some of {', '.join(REJECTIONS)}, separated by commas"
        return
    bounds = [part.strip() for part in threshold.split(",") if part.strip()]
    if len(bounds) not in {1, len(criteria)}:
        yield f"rollout_rs_threshold has {len(bounds)} bounds for {len(criteria)} criteria: give one, or one for each"
        return
    for criterion, bound in zip(criteria, bounds * (len(criteria) // len(bounds)), strict=True):
        if not _is_bound(bound, is_ratio=criterion.endswith("k1")):
            form = "LOWER_UPPER, two ratios above 0, or one above 1" if criterion.endswith("k1") else "a number above 0"
            yield f"rollout_rs_threshold: {bound!r} is no bound of {criterion}: it must be {form}"


def _is_bound(text: str, *, is_ratio: bool) -> bool:
    """Return whether the text is a valid bound.

    A ratio has a lower and an upper bound, written LOW_HIGH. If only one is given, the lower bound is its reciprocal.
    """
    numbers = _numbers(text.split("_", 1) if is_ratio else [text])
    if not numbers or min(numbers) <= 0:
        return False
    low, high = (1 / numbers[0], numbers[0]) if len(numbers) == 1 else numbers
    return not is_ratio or low <= high


def _numbers(parts: Sequence[str]) -> list[float]:
    """Return the parts as numbers, or an empty list unless all of them are finite numbers."""
    try:
        # Python reads 0.5_2 as 0.52.
        numbers = [float(part.replace("_", "?")) for part in parts]
    except ValueError:
        return []
    return numbers if all(abs(number) < float("inf") for number in numbers) else []
