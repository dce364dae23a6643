"""Ledger rows and turns to the bodies of the control API.

Place in the flow: last conversion before the wire. It reads nothing by itself.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from swarm.ledger import AuditRow, BatchRow, EpisodeRow, EvaluationRow, EventRow, TaskRow
from swarm.schemas import (
    AuditView,
    BatchView,
    EpisodeDetail,
    EpisodeSamples,
    EpisodeView,
    EvaluationView,
    EventView,
    HeldTask,
    SampleView,
    TurnView,
)
from swarm.tracker.codec import Codec
from swarm.tracker.merge import merge
from swarm.types import Sample, Turn


def view_episode(row: EpisodeRow, last_seen_at: float | None = None) -> EpisodeView:
    """`last_seen_at` of a running episode is known to the rollout alone."""
    return EpisodeView(
        episode_id=row.episode_id,
        episode_type=row.episode_type,
        state=row.state,
        client_id=row.client_id,
        task_id=row.task_id,
        data_source=row.data_source,
        reward=row.reward,
        is_success=row.is_success,
        turn_rewards=None if row.turn_rewards is None else list(row.turn_rewards),
        rewards=None if row.rewards is None else dict(row.rewards),
        outcome=row.outcome,
        turns=row.turns,
        begun_at=row.begun_at,
        last_seen_at=last_seen_at or row.last_seen_at or row.ended_at or row.begun_at,
        ended_at=row.ended_at,
        weight_versions=list(row.weight_versions),
        batch_id=row.batch_id,
        job_id=row.job_id,
        is_greedy=row.is_greedy,
    )


def view_task(row: TaskRow) -> HeldTask:
    return HeldTask(task_id=row.task_id, data_source=row.data_source, groups=row.groups, waiting=row.waiting)


def view_detail(
    row: EpisodeRow, turns: tuple[Turn, ...], codec: Codec | None, last_seen_at: float | None
) -> EpisodeDetail:
    """Without a codec (no model is loaded) the token texts are empty strings; everything else is the same."""
    return EpisodeDetail(
        episode=view_episode(row, last_seen_at),
        turns=[_view_turn(turn, codec) for turn in turns],
        samples=[_view_sample(sample, codec) for sample in merge(turns)],
        advantage=row.advantage,
    )


def view_state(row: EpisodeRow, last_seen_at: float | None) -> EpisodeDetail:
    """What of an episode is shown to those who may not read its tokens."""
    return EpisodeDetail(episode=view_episode(row, last_seen_at), turns=[], samples=[], advantage=row.advantage)


def view_samples(row: EpisodeRow, turns: tuple[Turn, ...], codec: Codec | None) -> EpisodeSamples:
    """As `view_detail`, without the turns."""
    return EpisodeSamples(
        episode_id=row.episode_id,
        batch_id=row.batch_id,
        advantage=row.advantage,
        samples=[_view_sample(sample, codec) for sample in merge(turns)],
    )


def view_batch(row: BatchRow) -> BatchView:
    return BatchView(
        batch_id=row.batch_id,
        step=row.step,
        state=row.state,
        reason=row.reason,
        sealed_at=row.sealed_at,
        finished_at=row.finished_at,
        weight_version=row.weight_version,
        metrics=dict(row.metrics),
        settings=dict(row.settings),
    )


def view_evaluation(row: EvaluationRow) -> EvaluationView:
    fields = asdict(row)
    del fields["evaluation_id"]
    return EvaluationView(**fields)


def view_event(row: EventRow) -> EventView:
    return EventView(event_id=row.event_id, kind=row.kind, detail=dict(row.detail), at=row.at)


def view_audit(row: AuditRow) -> AuditView:
    return AuditView(**asdict(row))


def _view_turn(turn: Turn, codec: Codec | None) -> TurnView:
    return TurnView(
        index=turn.index,
        parent=turn.parent,
        fork_reason=turn.fork_reason,
        messages=[_plain(message) for message in turn.messages],
        reply=_plain(turn.reply),
        tools=[_plain(tool) for tool in turn.tools],
        prompt_ids=list(turn.prompt_ids),
        output_ids=list(turn.output_ids_T),
        output_tokens=_texts(turn.output_ids_T, codec),
        logprobs=list(turn.logprobs_T),
        weight_versions=list(turn.weight_versions_T),
        finish_reason=turn.finish_reason,
        params=asdict(turn.params),
        call_id=turn.call_id,
        choice=turn.choice,
        attempt=turn.attempt,
        withheld=turn.withheld,
    )


def _view_sample(sample: Sample, codec: Codec | None) -> SampleView:
    return SampleView(
        token_ids=list(sample.token_ids_T),
        tokens=_texts(sample.token_ids_T, codec),
        loss_mask=list(sample.loss_mask_T),
        logprobs=list(sample.logprobs_T),
        weight_versions=list(sample.weight_versions_T),
        turn_indices=list(sample.turn_indices_T),
    )


def _texts(ids: tuple[int, ...], codec: Codec | None) -> list[str]:
    return [""] * len(ids) if codec is None else codec.token_text(ids)


def _plain(value: Any) -> dict[str, Any]:
    return dict(value)
