"""The choice of trained episodes that are kept with a training, with their conversations and tokens."""

from __future__ import annotations

import logging
import random
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from swarm.errors import EngineFailure, LedgerError
from swarm.ledger import EpisodeRow, queries
from swarm.model_path import read_tokenizer, resolve_model
from swarm.sinks import ChosenEpisode, TrainingDescription
from swarm.sinks.base import ChosenAs
from swarm.tracker.merge import merge
from swarm.types import Sample

logger = logging.getLogger(__name__)

EVERY_STEP_UP_TO = 100
"""Steps of which each is looked at. Beyond, one of ten is, and beyond ten times as many, one of a hundred."""

TokenTexts = Callable[[Sequence[int]], list[str]]


def is_looked_at(step: int) -> bool:
    """Return whether episodes of this step are kept. Their number grows with the logarithm of the steps."""
    stride = 1
    while step > EVERY_STEP_UP_TO * stride:
        stride *= 10
    return step % stride == 0


def choose_episodes(
    connection: sqlite3.Connection, training: TrainingDescription, job_id: int, step: int
) -> list[ChosenEpisode]:
    """Return the episodes to keep of a trained step, each once."""
    if not is_looked_at(step):
        return []
    rows = connection.execute(
        "SELECT e.* FROM episodes AS e JOIN batches AS b ON b.batch_id = e.batch_id WHERE b.job_id = ?"
        " AND b.step = ? AND b.state = 'trained' AND e.reward IS NOT NULL ORDER BY e.number",
        (job_id, step),
    ).fetchall()
    try:
        chosen = choose_by_rule([queries.to_episode(row) for row in rows], random.Random(f"{training.key} {step}"))
        return [_to_keep(connection, training, step, row, chosen_as) for chosen_as, row in chosen.items()]
    except (LedgerError, ValueError) as error:
        # A damaged row, or turns that were deleted: the curves are recorded all the same.
        logger.warning("no episodes of step %d of %s are kept: %s", step, training.key, error)
        return []


def _to_keep(
    connection: sqlite3.Connection, training: TrainingDescription, step: int, row: EpisodeRow, chosen_as: ChosenAs
) -> ChosenEpisode:
    turns = queries.turns(connection, row.episode_id)
    last = turns[-1] if turns else None
    assert row.reward is not None
    texts = _texts_of(training.model)
    return ChosenEpisode(
        step=step,
        episode_id=row.episode_id,
        chosen_as=chosen_as,
        task_id=row.task_id or "",
        data_source=row.data_source,
        group=row.batch_group or 0,
        reward=row.reward,
        is_success=row.is_success,
        advantage=row.advantage,
        weight_version=max(row.weight_versions, default=None),
        at=row.ended_at or row.begun_at,
        messages=() if last is None else tuple(dict(message) for message in (*last.messages, last.reply)),
        samples=tuple(_columns(sample, texts) for sample in merge(turns)),
    )


def choose_by_rule(rows: Sequence[EpisodeRow], rng: random.Random) -> dict[ChosenAs, EpisodeRow]:
    """Return the episodes of a step to keep by the reason for it; no episode has two reasons."""
    chosen: dict[ChosenAs, EpisodeRow] = {}

    def take(chosen_as: ChosenAs, candidates: Sequence[EpisodeRow]) -> None:
        left = [row for row in candidates if row not in chosen.values()]
        if left:
            chosen[chosen_as] = left[0]

    ranked = sorted(rows, key=lambda row: row.reward or 0.0, reverse=True)
    take("best", ranked)
    take("worst", ranked[::-1])
    take("random", rng.sample(list(rows), len(rows)))
    silent = _silent_groups(rows)
    take("no signal", [row for row in rows if row.batch_group in silent])
    return chosen


def _silent_groups(rows: Sequence[EpisodeRow]) -> set[int | None]:
    """Return the groups whose rewards are all equal, which teach nothing."""
    rewards: dict[int | None, set[float | None]] = {}
    for row in rows:
        rewards.setdefault(row.batch_group, set()).add(row.reward)
    return {group for group, values in rewards.items() if len(values) == 1}


def _columns(sample: Sample, texts: TokenTexts) -> Mapping[str, Any]:
    return {
        "token_ids": list(sample.token_ids_T),
        "tokens": texts(sample.token_ids_T),
        "loss_mask": list(sample.loss_mask_T),
        "logprobs": list(sample.logprobs_T),
        "weight_versions": list(sample.weight_versions_T),
        "turn_indices": list(sample.turn_indices_T),
    }


@cache
def _texts_of(model: str) -> TokenTexts:
    """Return a function that gives each token's text. Without the model's files the texts are empty."""
    try:
        tokenizer: Any = read_tokenizer(resolve_model(model))
    except EngineFailure:
        return lambda ids: [""] * len(ids)

    @cache
    def text_of(token: int) -> str:
        return str(tokenizer.decode([token], skip_special_tokens=False))

    return lambda ids: [text_of(token) for token in ids]
