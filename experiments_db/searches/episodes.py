"""The search for episodes: those of runs, which a study kept, and those of trainings, which a server recorded.

Place in the flow: a part of ExperimentStore; the explorer asks. The database searches, and answers one page at a time
without conversations and tokens.
"""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import ColumnElement, Text, and_, cast, func, select
from sqlalchemy.orm import aliased, defer

from experiments_db.models import EpisodeSampleRow, RunRow
from experiments_db.records import EpisodeSummary
from experiments_db.searches.records import EpisodeFilter, EpisodeOrder
from experiments_db.stores.base import StoreBase, to_record
from experiments_db.training_models import TrainedEpisodeRow
from experiments_db.trainings import TrainedEpisodeSummary

EpisodeTable = type[EpisodeSampleRow] | type[TrainedEpisodeRow]

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
        row = EpisodeSampleRow
        conditions = _conditions(row, wanted)
        if wanted.kind is not None:
            conditions.append(row.kind == wanted.kind)
        if run_id is not None:
            conditions.append(row.run_id == run_id)
        if study_id is not None:
            conditions.append(row.run_id.in_(select(RunRow.id).where(RunRow.study_id == study_id)))
        statement = select(row).where(*conditions).options(defer(row.messages), defer(row.samples))
        statement = statement.order_by(*_order(row, wanted.order), row.run_id, row.episode_id)
        with self._read() as session:
            found = session.scalars(statement.limit(limit).offset(offset))
            page = [to_record(EpisodeSummary, each) for each in found]
            return page, session.scalar(select(func.count()).select_from(row).where(*conditions)) or 0

    def search_trained_episodes(
        self, training_id: str, wanted: EpisodeFilter, *, limit: int = 50, offset: int = 0
    ) -> tuple[list[TrainedEpisodeSummary], int]:
        """Return a page of the kept episodes of a training, and how many match in all. All are of the kind "train"."""
        row = TrainedEpisodeRow
        conditions = [row.training_id == training_id, *_conditions(row, wanted)]
        if wanted.kind not in (None, "train"):
            return [], 0
        statement = select(row).where(*conditions).options(defer(row.messages), defer(row.samples))
        statement = statement.order_by(*_order(row, wanted.order), row.episode_id)
        with self._read() as session:
            found = session.scalars(statement.limit(limit).offset(offset))
            page = [to_record(TrainedEpisodeSummary, each) for each in found]
            return page, session.scalar(select(func.count()).select_from(row).where(*conditions)) or 0

    def list_episode_group(self, run_id: str, episode_id: str) -> list[EpisodeSummary]:
        """Return the kept attempts at an episode's task in the same step, itself included, the highest reward first.

        The list is empty if there is no such episode.
        """
        row, chosen = EpisodeSampleRow, aliased(EpisodeSampleRow)
        same = (row.run_id, row.kind, row.split, row.step, row.task_id)
        its = (chosen.run_id, chosen.kind, chosen.split, chosen.step, chosen.task_id)
        statement = (
            select(row)
            .join(chosen, and_(*(left == right for left, right in zip(same, its, strict=True))))
            .where(chosen.run_id == run_id, chosen.episode_id == episode_id)
            .options(defer(row.messages), defer(row.samples))
            .order_by(*_order(row, EpisodeOrder.HIGHEST), row.episode_id)
        )
        return self._list(statement.limit(MOST_OF_GROUP), EpisodeSummary)

    def list_trained_group(self, training_id: str, episode_id: str) -> list[TrainedEpisodeSummary]:
        """Return the kept episodes of an episode's group, itself included, the highest reward first.

        The list is empty if there is no such episode.
        """
        row, chosen = TrainedEpisodeRow, aliased(TrainedEpisodeRow)
        same = (row.training_id, row.step, row.group_number)
        its = (chosen.training_id, chosen.step, chosen.group_number)
        statement = (
            select(row)
            .join(chosen, and_(*(left == right for left, right in zip(same, its, strict=True))))
            .where(chosen.training_id == training_id, chosen.episode_id == episode_id)
            .options(defer(row.messages), defer(row.samples))
            .order_by(*_order(row, EpisodeOrder.HIGHEST), row.episode_id)
        )
        return self._list(statement.limit(MOST_OF_GROUP), TrainedEpisodeSummary)


def _conditions(row: EpisodeTable, wanted: EpisodeFilter) -> list[ColumnElement[bool]]:
    """Return the conditions that both kinds of episodes have."""
    conditions: list[ColumnElement[bool]] = []
    if wanted.reward_from is not None:
        conditions.append(row.reward >= wanted.reward_from)
    if wanted.reward_to is not None:
        conditions.append(row.reward <= wanted.reward_to)
    if wanted.step_from is not None:
        conditions.append(row.step >= wanted.step_from)
    if wanted.step_to is not None:
        conditions.append(row.step <= wanted.step_to)
    if wanted.text:
        # The text is looked for as JSON writes it, because that is how conversations are stored.
        part = json.dumps(wanted.text, ensure_ascii=False)[1:-1]
        conditions.append(cast(row.messages, Text).icontains(part, autoescape=True))
    return conditions


def _order(row: EpisodeTable, order: EpisodeOrder) -> tuple[ColumnElement[Any], ...]:
    """Return what to sort by. Episodes without a reward come last."""
    newest = row.step.desc()
    match order:
        case EpisodeOrder.NEWEST:
            return (newest,)
        case EpisodeOrder.OLDEST:
            return (row.step.asc(),)
        case EpisodeOrder.HIGHEST:
            return (row.reward.desc().nulls_last(), newest)
        case EpisodeOrder.LOWEST:
            return (row.reward.asc().nulls_last(), newest)
