"""The conversion of ledger rows and turns to response bodies of the control API."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from swarm.ledger import EndReceipt, EpisodeRow, EvaluationRow, JobUse, ModelUse
from swarm.schemas import (
    EndEpisodeResponse,
    EpisodeDetail,
    EpisodeUsage,
    EpisodeView,
    EvaluationView,
    JobUsage,
    SampleView,
    TurnView,
)
from swarm.tracker.codec import Codec
from swarm.tracker.merge import merge
from swarm.types import EpisodeType, Sample, Turn


def view_episode(row: EpisodeRow) -> EpisodeView:
    seen = row.last_seen_at or row.ended_at or row.begun_at
    view = EpisodeView.model_validate(replace(row, last_seen_at=seen), from_attributes=True)
    view.usage = view_usage(row.use, row.begun_at, row.ended_at)
    return view


def view_usage(use: ModelUse, begun_at: float, ended_at: float | None) -> EpisodeUsage:
    seconds = None if ended_at is None else max(0.0, ended_at - begun_at)
    return EpisodeUsage(seconds=seconds, limited=use.is_limited, **_counts(use))


def view_job_usage(episode_type: EpisodeType, used: JobUse) -> JobUsage:
    return JobUsage(
        episode_type=episode_type,
        episodes=used.episodes,
        seconds=used.seconds,
        limited=used.limited,
        faulty=used.faulty,
        unrewarded=dict(used.unrewarded),
        model_share=used.model_share,
        **_counts(used.use),
    )


def _counts(use: ModelUse) -> dict[str, Any]:
    """Return the counts, and the distinct values of each sampling setting."""
    others = {(name, value) for each in use.sampling for name, value in each.others}
    return {
        "calls": use.calls,
        "prompt_tokens": use.prompt_tokens,
        "sampled_tokens": use.sampled_tokens,
        "system_failures": use.system_failures,
        "overruled": use.overruled,
        "asked_sampling": sorted(use.asked),
        "temperatures": sorted({each.temperature for each in use.sampling}),
        "top_p": sorted(value for name, value in others if name == "top_p"),
        "top_k": sorted(int(value) for name, value in others if name == "top_k"),
        "other_sampling": sorted(f"{name}={value:g}" for name, value in others if name not in {"top_p", "top_k"}),
    }


def view_detail(row: EpisodeRow, turns: tuple[Turn, ...], codec: Codec | None) -> EpisodeDetail:
    """Return an episode with its turns and samples.

    Without a codec, which is the case while no model is loaded, all token texts are empty strings.
    """
    return EpisodeDetail(
        episode=view_episode(row),
        turns=[_view_turn(turn, codec) for turn in turns],
        samples=[_view_sample(sample, codec) for sample in merge(turns)],
        advantage=row.advantage,
    )


def view_state(row: EpisodeRow) -> EpisodeDetail:
    """Return an episode without turns and samples, for callers that may not read its tokens."""
    return EpisodeDetail(episode=view_episode(row), turns=[], samples=[], advantage=row.advantage)


def view_receipt(ended: EndReceipt, receipt: str) -> EndEpisodeResponse:
    """Return the answer to an end, with a receipt of the ledger."""
    row = ended.episode
    return EndEpisodeResponse(
        episode_id=row.episode_id,
        state=row.state,
        outcome=row.outcome,
        batch_id=row.batch_id,
        replayed=ended.replayed,
        weight_versions=list(row.weight_versions),
        usage=view_usage(row.use, row.begun_at, row.ended_at),
        model_share=row.model_share,
        receipt=receipt,
    )


def view_evaluation(row: EvaluationRow) -> EvaluationView:
    return EvaluationView.model_validate(row, from_attributes=True)


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
        template_options=_plain(turn.template_options),
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
