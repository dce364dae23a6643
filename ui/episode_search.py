"""The kept episodes of a run, of all runs of a study, or of a training: a search, and one of them with its group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import Literal

import pandas as pd
import streamlit as st

from experiments_db import (
    EpisodeFilter,
    EpisodeOrder,
    EpisodeSample,
    EpisodeSummary,
    TrainedEpisode,
    TrainedEpisodeSummary,
)
from ui import elements, episode_view, formats, queries

PER_PAGE = 50
LONGEST_TEXT = 200
CHOSEN_HEIGHT = 300
EPISODE = "episode"
"""The name of the chosen episode in the address."""
SUCCESS = {True: "yes", False: "no", None: None}

EpisodeRecord = EpisodeSummary | TrainedEpisodeSummary


@dataclass(frozen=True, slots=True)
class EpisodeOwner:
    """A run, a study or a training whose episodes are shown."""

    kind: Literal["run", "study", "training"]
    id: str

    @property
    def key(self) -> str:
        return f"{self.kind}/{self.id}"


def show_search(owner: EpisodeOwner) -> None:
    """Show the search for episodes of the owner, and the episode that the address names."""
    show_found(owner, choose_filter(owner))
    if asked := st.query_params.get(EPISODE):
        show_episode(owner, asked)


def count_episodes(owner: EpisodeOwner) -> int:
    """Return how many episodes there are by now."""
    return search(owner, EpisodeFilter(), page=1)[1]


def choose_filter(owner: EpisodeOwner) -> EpisodeFilter:
    """Return the conditions that the user sets; the address has them."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        text = st.text_input(
            "Text in the conversation", key="text", bind="query-params", max_chars=LONGEST_TEXT, width=260
        )
        kind = None
        if owner.kind != "training":
            kind = st.segmented_control("Kind", ["train", "eval"], key="kind", bind="query-params")
        number = partial(st.number_input, value=None, placeholder="any", width=120, bind="query-params")
        lowest = number("Reward from", step=0.1, format="%.3g", key="reward_from")
        highest = number("Reward to", step=0.1, format="%.3g", key="reward_to")
        first = number("Step from", step=1, key="step_from")
        last = number("Step to", step=1, key="step_to")
        order = st.selectbox("Order", list(EpisodeOrder), key="order", bind="query-params", width=170)
    return EpisodeFilter(
        kind=kind,
        reward_from=lowest,
        reward_to=highest,
        step_from=first,
        step_to=last,
        text=text,
        order=EpisodeOrder(order),
    )


def search(owner: EpisodeOwner, wanted: EpisodeFilter, page: int) -> tuple[Sequence[EpisodeRecord], int]:
    """Return a page of the episodes, counted from 1, and how many match in all."""
    offset = (page - 1) * PER_PAGE
    if owner.kind == "training":
        return elements.store().search_trained_episodes(owner.id, wanted, limit=PER_PAGE, offset=offset)
    ids = {f"{owner.kind}_id": owner.id}
    return elements.store().search_episodes(wanted, **ids, limit=PER_PAGE, offset=offset)


def key_of(owner: EpisodeOwner, episode: EpisodeRecord) -> str:
    """Return what names an episode in the address, beside its owner."""
    return f"{owner_of(episode)}/{episode.episode_id}" if owner.kind == "study" else episode.episode_id


def owner_of(episode: EpisodeRecord) -> str:
    return episode.training_id if isinstance(episode, TrainedEpisodeSummary) else episode.run_id


def run_names(owner: EpisodeOwner) -> dict[str, str]:
    """Return the names of the runs of a study, by id; empty for one run or training."""
    if owner.kind != "study":
        return {}
    contents = queries.load_study(elements.database(), owner.id)
    arms = contents.arms_by_id
    return {run.id: elements.run_name(formats.printable(arms[run.experiment_id].name), run) for run in contents.runs}


def table_of(episodes: Sequence[EpisodeRecord], names: dict[str, str]) -> pd.DataFrame:
    """Return one row per episode; a column in which nothing is known is left out."""
    rows = [
        {
            "Step": item.step,
            "Run": names.get(owner_of(item)),
            "Kind": "train" if isinstance(item, TrainedEpisodeSummary) else formats.printable(item.kind),
            "Split": None if isinstance(item, TrainedEpisodeSummary) else formats.printable(item.split),
            "Source": formats.printable(item.data_source) if isinstance(item, TrainedEpisodeSummary) else None,
            "Task": formats.shortened(formats.printable(item.task_id), 120),
            "Reward": item.reward,
            "Advantage": item.advantage,
            "Success": SUCCESS[item.is_success],
            "Group": item.group_number if isinstance(item, TrainedEpisodeSummary) else None,
            "Weights": item.weight_version,
            "Kept as": formats.printable(item.chosen_as) if isinstance(item, TrainedEpisodeSummary) else None,
        }
        for item in episodes
    ]
    return pd.DataFrame(rows).dropna(axis="columns", how="all")


COLUMNS = {
    "Reward": st.column_config.NumberColumn(format="%.3f"),
    "Advantage": st.column_config.NumberColumn(format="%+.3f"),
    "Weights": st.column_config.NumberColumn(help="The newest version of the weights that sampled the episode"),
    "Group": st.column_config.NumberColumn(help="Episodes of one task whose rewards are compared"),
    "Kept as": st.column_config.TextColumn(help="The reason why this episode of its step was kept"),
}


def show_found(owner: EpisodeOwner, wanted: EpisodeFilter) -> None:
    """Show the page of the search that the user is on."""
    found, total = search(owner, wanted, 1)
    if not total:
        st.caption("No episode matches." if wanted != EpisodeFilter() else "No episode has been kept yet.")
        return
    pages = ceil(total / PER_PAGE)
    listing = st.container()
    page = min(st.pagination(pages, key="page", bind="query-params"), pages) if pages > 1 else 1
    if page > 1:
        found, total = search(owner, wanted, page)
    first = (page - 1) * PER_PAGE + 1
    span = f"{first} to {first + len(found) - 1} of " if pages > 1 else ""
    # Below a shorter table the chosen episode is in sight.
    height = min(CHOSEN_HEIGHT, 36 * (len(found) + 1)) if EPISODE in st.query_params else None
    with listing:
        st.caption(f"{span}{formats.count(total, 'episode')}. {why_kept(owner)}")
        elements.choose_row(
            table_of(found, run_names(owner)),
            [key_of(owner, item) for item in found],
            param=EPISODE,
            alt="Episodes",
            column_config=COLUMNS,
            height=height,
        )


def why_kept(owner: EpisodeOwner) -> str:
    if owner.kind == "training":
        return "Of a step some are kept: the best, the worst, a random one, and one of a group without a signal."
    return "Of each score some are kept."


def read_episode(owner: EpisodeOwner, asked: str) -> EpisodeSample | TrainedEpisode:
    """Return the episode that the address names. Raises RecordNotFound."""
    if owner.kind == "training":
        return elements.store().get_trained_episode(owner.id, asked)
    run_id, _, episode_id = asked.rpartition("/") if owner.kind == "study" else (owner.id, "", asked)
    return elements.store().get_episode(run_id, episode_id)


def list_group(episode: EpisodeRecord) -> Sequence[EpisodeRecord]:
    if isinstance(episode, TrainedEpisodeSummary):
        return elements.store().list_trained_group(episode.training_id, episode.episode_id)
    return elements.store().list_episode_group(episode.run_id, episode.episode_id)


def show_episode(owner: EpisodeOwner, asked: str) -> None:
    """Show one episode, with its group beside it."""
    episode = read_episode(owner, asked)
    summary = episode.summary
    st.subheader(f"Episode `{formats.printable(summary.episode_id)}`", anchor=False)
    st.markdown(" · ".join(facts_of(summary)))
    coloring = episode_view.choose_coloring(episode_view.colorings_of(summary.advantage))
    wide, narrow = st.columns([3, 1], gap="medium")
    with narrow:
        show_group(owner, summary)
    with wide:
        episode_view.show_episode(episode.messages, episode.samples, coloring, advantage=summary.advantage)


def facts_of(summary: EpisodeRecord) -> list[str]:
    reward = "no reward" if summary.reward is None else f"reward **{summary.reward:g}**"
    facts = [f"task {formats.name(summary.task_id)}", f"step {summary.step}", reward]
    if summary.advantage is not None:
        facts.append(f"advantage **{summary.advantage:+.3f}**")
    if summary.weight_version is not None:
        facts.append(f"weights of version {summary.weight_version}")
    if isinstance(summary, TrainedEpisodeSummary):
        return [*facts, f"kept as: {formats.plain(summary.chosen_as)}", formats.moment(summary.recorded_at)]
    return [
        *facts,
        f"{formats.plain(summary.kind)}, {formats.plain(summary.split)}",
        formats.moment(summary.created_at),
    ]


def show_group(owner: EpisodeOwner, summary: EpisodeRecord) -> None:
    """Show the episodes of the group with their rewards and advantages, each one click away."""
    group = list_group(summary)
    st.subheader("Its group", anchor=False)
    rewards = [item.reward for item in group if item.reward is not None]
    if len(group) < 2:
        st.caption("No other episode of its group was kept.")
        return
    mean = formats.score(sum(rewards) / len(rewards) if rewards else None)
    st.caption(f"{len(group)} kept episodes of this task in this step, with a mean reward of {mean}.")
    table = pd.DataFrame(
        [{"Reward": item.reward, "Advantage": item.advantage, "Success": SUCCESS[item.is_success]} for item in group]
    ).dropna(axis="columns", how="all")
    elements.choose_row(
        table, [key_of(owner, item) for item in group], param=EPISODE, alt="The group", column_config=COLUMNS
    )
