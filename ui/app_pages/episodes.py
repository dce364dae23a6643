"""The episodes of a run, of all runs of a study, or of a training: a search, one episode, and its group beside it."""

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
    RecordedTraining,
    TrainedEpisode,
    TrainedEpisodeSummary,
)
from ui import elements, episode_view, formats, live, queries

PER_PAGE = 50
MOST_OFFERED = 100
LONGEST_TEXT = 200
CHOSEN_HEIGHT = 300
# The names in the address of the chosen episode and of what it belongs to.
EPISODE = "episode"
KINDS = ("run", "study", "training")
OVER = frozenset({"COMPLETE", "REPLACED", "FAILED", "OFFLINE"})
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


def choose_owner() -> EpisodeOwner | None:
    """Return what the address names, or else the newest training or study; None if there is neither."""
    asked = next((EpisodeOwner(kind, st.query_params[kind]) for kind in KINDS if kind in st.query_params), None)
    names = offer_owners()
    if asked is None:
        if not names:
            return None
        asked = next(iter(names))
        st.query_params[asked.kind] = asked.id
    names.setdefault(asked, f"{asked.kind} {asked.id}")
    owners = {owner.key: owner for owner in names}
    st.session_state["episode_owner"] = asked.key
    st.selectbox(
        "Episodes of",
        list(owners),
        key="episode_owner",
        format_func=lambda key: names[owners[key]],
        on_change=lambda: follow_owner(owners[st.session_state["episode_owner"]]),
    )
    return asked


def offer_owners() -> dict[EpisodeOwner, str]:
    """Return trainings, then studies, the newest first, with their names."""
    trainings = queries.list_trainings(elements.database())[:MOST_OFFERED]
    studies = queries.list_studies(elements.database())[:MOST_OFFERED]
    names = {EpisodeOwner("training", item.id): f"training {title_of(item)}" for item in trainings}
    for study in studies:
        topic = formats.shortened(formats.printable(study.topic), 90)
        names[EpisodeOwner("study", study.id)] = f"study {topic} · {study.id}"
    return names


def title_of(training: RecordedTraining) -> str:
    name = formats.printable(f"{training.project}/{training.experiment}")
    return f"{name} · {formats.moment(training.begun_at)}"


def follow_owner(owner: EpisodeOwner) -> None:
    st.query_params.clear()
    st.query_params.update(elements.address(**{owner.kind: owner.id}))


def show_owner(owner: EpisodeOwner) -> None:
    """Show links to the owner, and to the other episodes of a run. Raises RecordNotFound."""
    with st.container(horizontal=True):
        if owner.kind == "training":
            training = queries.find_training(elements.database(), owner.id)
            name = formats.plain(f"{training.project}/{training.experiment}")
            elements.link("training", f"Training {name}", icon=":material/monitoring:", training=owner.id)
        elif owner.kind == "study":
            elements.link_study(queries.load_study(elements.database(), owner.id))
        else:
            run = queries.find_run(elements.database(), owner.id)
            elements.link("run", f"Run `{run.id}`", icon=":material/show_chart:", run=run.id)
            elements.link("episodes", "All runs of its study", icon=":material/forum:", study=run.study_id)
            if training := queries.find_launched_training(elements.database(), run.idempotency_key):
                elements.link("episodes", "Its trained episodes", icon=":material/forum:", training=training.id)


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
        return queries.search_trained_episodes(
            elements.database(), wanted, training_id=owner.id, limit=PER_PAGE, offset=offset
        )
    ids = {f"{owner.kind}_id": owner.id}
    return queries.search_episodes(elements.database(), wanted, **ids, limit=PER_PAGE, offset=offset)


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
        return queries.find_trained_episode(elements.database(), owner.id, asked)
    run_id, _, episode_id = asked.rpartition("/") if owner.kind == "study" else (owner.id, "", asked)
    return queries.find_episode(elements.database(), run_id, episode_id)


def list_group(episode: EpisodeRecord) -> Sequence[EpisodeRecord]:
    if isinstance(episode, TrainedEpisodeSummary):
        return queries.list_trained_group(elements.database(), episode.training_id, episode.episode_id)
    return queries.list_episode_group(elements.database(), episode.run_id, episode.episode_id)


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


def show_episodes(kind: Literal["run", "study", "training"], owner_id: str) -> None:
    with elements.store_errors():
        owner = EpisodeOwner(kind, owner_id)
        show_owner(owner)
        show_found(owner, choose_filter(owner))
        if asked := st.query_params.get(EPISODE):
            show_episode(owner, asked)


def is_unfinished(owner: EpisodeOwner) -> bool:
    """Return whether more episodes may come. Raises RecordNotFound."""
    if owner.kind == "training":
        return queries.find_training(elements.database(), owner.id).status not in OVER
    if owner.kind == "study":
        return queries.load_study(elements.database(), owner.id).is_live
    return not queries.find_run(elements.database(), owner.id).status.is_over


def count_episodes(owner: EpisodeOwner) -> int:
    """Return how many episodes there are by now."""
    return search(owner, EpisodeFilter(), page=1)[1]


st.title("Episodes", anchor=False)
owner = choose_owner()
if owner is None:
    st.info("No episode has been recorded here yet. A training records some of each step:", icon=":material/info:")
    st.code("swarm train --env reverse", language=None)
else:
    is_followed = is_unfinished(owner)
    live.follow(show_episodes, owner.kind, owner.id, token=partial(count_episodes, owner), is_on=is_followed)
