"""The search for episodes of runs and of trainings, a page at a time, without conversations and tokens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Text, and_, cast, func, select

from experiments_db.kinds import EpisodeOrder
from experiments_db.records import EpisodeFilter, EpisodeSummary
from experiments_db.stores.base import StoreBase, read
from experiments_db.tables import EPISODES, RUNS, TRAINED_EPISODES, Rows
from experiments_db.trainings import TrainedEpisodeSummary

RecordT = TypeVar("RecordT")

MOST_OF_GROUP = 256


class EpisodeSearch(StoreBase):
    def search_episodes(
        self,
        wanted: EpisodeFilter,
        *,
        run_id: str | None = None,
        study_id: str | None = None,
        limit: int = 50,
        offset: int = 0,
    ) -> tuple[list[EpisodeSummary], int]:
        """Return a page of the episodes of a run, of a study's runs, or of all runs, and how many match in all."""
        conditions: list[ColumnElement[bool]] = []
        if wanted.kind is not None:
            conditions.append(EPISODES.c.kind == wanted.kind)
        if run_id is not None:
            conditions.append(EPISODES.c.run_id == run_id)
        if study_id is not None:
            conditions.append(EPISODES.c.run_id.in_(select(RUNS.c.id).where(RUNS.c.study_id == study_id)))
        return self._search(EPISODES, wanted, conditions, limit, offset)

    def search_trained_episodes(
        self, training_id: str, wanted: EpisodeFilter, *, limit: int = 50, offset: int = 0
    ) -> tuple[list[TrainedEpisodeSummary], int]:
        """Return a page of the kept episodes of a training, and how many match in all. All are of the kind "train"."""
        if wanted.kind not in (None, "train"):
            return [], 0
        of_training = TRAINED_EPISODES.c.training_id == training_id
        return self._search(TRAINED_EPISODES, wanted, [of_training], limit, offset)

    def _search(
        self,
        rows: Rows[RecordT],
        wanted: EpisodeFilter,
        conditions: Sequence[ColumnElement[bool]],
        limit: int,
        offset: int,
    ) -> tuple[list[RecordT], int]:
        conditions = (*conditions, *_conditions(rows, wanted))
        statement = rows.select(*conditions).order_by(*_order(rows, wanted.order), *rows.table.primary_key.columns)
        count = select(func.count()).select_from(rows.table).where(*conditions)
        with self._read() as connection:
            page = read(connection, rows, statement.limit(limit).offset(offset))
            return [*page], connection.execute(count).scalar_one()

    def list_episode_group(self, run_id: str, episode_id: str) -> list[EpisodeSummary]:
        """Return the kept attempts at an episode's task in the same step, itself included, the highest reward first.

        The list is empty if there is no such episode.
        """
        return self._list_group(EPISODES, ("kind", "split", "step", "task_id"), run_id=run_id, episode_id=episode_id)

    def list_trained_group(self, training_id: str, episode_id: str) -> list[TrainedEpisodeSummary]:
        """Return the kept episodes of an episode's group, itself included, the highest reward first.

        The list is empty if there is no such episode.
        """
        same = ("step", "group_number")
        return self._list_group(TRAINED_EPISODES, same, training_id=training_id, episode_id=episode_id)

    def _list_group(self, rows: Rows[RecordT], same: Sequence[str], **key: str) -> list[RecordT]:
        """Return the episodes of the owner in `key` that have the `same` columns as the one with this key."""
        chosen = rows.table.alias()
        owner = next(iter(key))
        group = and_(*(rows.c[name] == chosen.c[name] for name in (owner, *same)))
        its = (chosen.c[name] == value for name, value in key.items())
        statement = rows.select(*its).join(chosen, group)
        statement = statement.order_by(*_order(rows, EpisodeOrder.HIGHEST), rows.c.episode_id).limit(MOST_OF_GROUP)
        with self._read() as connection:
            return [*read(connection, rows, statement)]


def _conditions(rows: Rows[Any], wanted: EpisodeFilter) -> list[ColumnElement[bool]]:
    """Return the conditions that both kinds of episodes have."""
    ends = (("reward", wanted.reward_from, wanted.reward_to), ("step", wanted.step_from, wanted.step_to))
    conditions: list[ColumnElement[bool]] = []
    for name, low, high in ends:
        if low is not None:
            conditions.append(rows.c[name] >= low)
        if high is not None:
            conditions.append(rows.c[name] <= high)
    if wanted.text:
        # The text is looked for as JSON writes it, because that is how conversations are stored.
        part = json.dumps(wanted.text, ensure_ascii=False)[1:-1]
        conditions.append(cast(rows.c.messages, Text).icontains(part, autoescape=True))
    return conditions


def _order(rows: Rows[Any], order: EpisodeOrder) -> tuple[ColumnElement[Any], ...]:
    """Return what to sort by. Episodes without a reward come last."""
    newest = rows.c.step.desc()
    match order:
        case EpisodeOrder.NEWEST:
            return (newest,)
        case EpisodeOrder.OLDEST:
            return (rows.c.step.asc(),)
        case EpisodeOrder.HIGHEST:
            return (rows.c.reward.desc().nulls_last(), newest)
        case EpisodeOrder.LOWEST:
            return (rows.c.reward.asc().nulls_last(), newest)
