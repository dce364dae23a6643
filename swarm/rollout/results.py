"""The result of an episode: the report of its client, combined with its record, in the form that the pool takes."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Mapping, Sequence

from swarm.errors import BadRequest, Conflict, EpisodeEnded
from swarm.job import TrainJob
from swarm.ledger import NO_USE, EpisodeRow, ModelUse, ReportedResult
from swarm.schemas import EndEpisodeRequest, EpisodeState
from swarm.tracker.merge import merge
from swarm.types import EpisodeType, FinishedEpisode, FinishReason, Turn

logger = logging.getLogger(__name__)

_REPORTED = {"task_id", "reward", "is_success", "turn_rewards", "rewards", "metadata", "replies"}


def payload_digest(request: EndEpisodeRequest) -> str:
    """Return a digest of the reported result, whoever sent it."""
    payload = request.model_dump(mode="json", include=_REPORTED)
    return hashlib.sha256(json.dumps(payload, sort_keys=True).encode()).hexdigest()


def ending_of(
    episode_id: str,
    request: EndEpisodeRequest,
    turn_rewards: tuple[float, ...] | None = None,
    *,
    unrecorded: ModelUse = NO_USE,
    model_share: float | None = None,
) -> ReportedResult:
    """Return the ending to record for a result that came just now."""
    return ReportedResult(
        episode_id=episode_id,
        idempotency_key=request.idempotency_key or episode_id,
        payload_digest=payload_digest(request),
        task_id=request.task_id,
        reward=request.reward,
        is_success=request.is_success,
        metadata=request.metadata,
        ended_at=time.time(),
        turn_rewards=turn_rewards,
        rewards=request.rewards,
        unrecorded=unrecorded,
        model_share=model_share,
    )


def align_turn_rewards(given: Sequence[float] | None, turns: Sequence[Turn]) -> tuple[float, ...] | None:
    """Return turn rewards by turn index, 0 where nothing was reported.

    `given` has one entry per recorded turn in order; entry t belongs to the turn with index t. Aborted turns may be
    left out, since the caller got no reply to reward. Raise BadRequest for any other length.
    """
    if given is None:
        return None
    answered = [turn for turn in turns if turn.finish_reason is not FinishReason.ABORT]
    if len(given) not in {len(answered), len(turns)}:
        aborted = len(turns) - len(answered)
        besides = f" (and {aborted} aborted)" if aborted else ""
        raise BadRequest(
            f"turn_rewards: {len(given)} given, but the episode has {len(answered)} recorded turns{besides}:"
            " give one per turn",
            param="turn_rewards",
        )
    rewarded = answered if len(given) == len(answered) else turns
    aligned = [0.0] * (1 + max((turn.index for turn in turns), default=-1))
    for turn, reward in zip(rewarded, given, strict=True):
        aligned[turn.index] = reward
    return tuple(aligned)


def check_rewards(job: TrainJob, rewards: Mapping[str, float] | None, turn_rewards: Sequence[float] | None) -> None:
    """Raise BadRequest for a result that the job cannot learn from.

    Such a result lacks a named reward that the job asks for. Or it has turn rewards, while the estimator takes named
    rewards alone.
    """
    if job.gdpo_reward_keys is None:
        return
    missing = [name for name in job.gdpo_reward_keys if name not in (rewards or {})]
    if missing:
        raise BadRequest(
            f"rewards: the job's gdpo_reward_keys ask for {', '.join(missing)}, which the episode was not given: end it"
            f" with rewards for {', '.join(job.gdpo_reward_keys)}",
            param="rewards",
        )
    if turn_rewards:
        raise BadRequest(
            "turn_rewards: algorithm gdpo learns from named rewards of whole episodes: leave them out",
            param="turn_rewards",
        )


def finished_episode(row: EpisodeRow, turns: Sequence[Turn]) -> FinishedEpisode:
    """Return a completed train episode as the pool takes it. Raise ValueError if its turns do not fit together."""
    assert row.task_id is not None and row.reward is not None and row.ended_at is not None, "only of ended episodes"
    return FinishedEpisode(
        episode_id=row.episode_id,
        task_id=row.task_id,
        client_id=row.client_id,
        reward=row.reward,
        is_success=row.is_success,
        samples=merge(turns),
        ended_at=row.ended_at,
        data_source=row.data_source,
        turn_rewards=row.turn_rewards,
        rewards=row.rewards,
        is_greedy=row.is_greedy,
    )


def salvaged_episode(row: EpisodeRow, turns: Sequence[Turn]) -> FinishedEpisode:
    """Return a completed train episode, without samples if its turns do not fit together.

    The pool drops and counts an episode without samples when it closes the next batch.
    """
    try:
        return finished_episode(row, turns)
    except ValueError:
        logger.exception("the turns of episode %s do not fit together", row.episode_id)
        return finished_episode(row, ())


def require_revisable(row: EpisodeRow) -> None:
    """Raise Conflict, or EpisodeEnded with how the episode ended, unless the episode waits for a batch."""
    if row.episode_type is not EpisodeType.TRAIN:
        raise Conflict(f"episode {row.episode_id} is an eval episode: its reward is final")
    if row.state is EpisodeState.RUNNING:
        raise Conflict(f"episode {row.episode_id} is running: end it with the reward it deserves")
    if row.state is EpisodeState.PREPARED:
        raise Conflict(f"episode {row.episode_id} is prepared: its transaction comes first")
    if row.state is not EpisodeState.COMPLETED:
        why = f" ({row.outcome})" if row.outcome else ""
        raise EpisodeEnded(f"episode {row.episode_id} is {row.state}{why}: its reward is final")
    if row.batch_id is not None:
        raise closed_already(row.episode_id)


def closed_already(episode_id: str) -> EpisodeEnded:
    return EpisodeEnded(f"the batch of episode {episode_id} is closed: its reward is final")
