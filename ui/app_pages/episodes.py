"""The episodes of a run, of all runs of a study, or of a training: a search, one episode, and its group beside it."""

from __future__ import annotations

from functools import partial
from typing import Literal

import streamlit as st

from experiments_db import RecordedTraining
from ui import elements, formats, live, queries
from ui.episode_search import EpisodeOwner, count_episodes, show_search
from ui.tables.training_rows import OVER, name_of

MOST_OFFERED = 100
# The names in the address of what the episodes belong to.
KINDS = ("run", "study", "training")


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
    studies = elements.store().list_studies(limit=None)[:MOST_OFFERED]
    names = {EpisodeOwner("training", item.id): f"training {title_of(item)}" for item in trainings}
    for study in studies:
        topic = formats.shortened(formats.printable(study.topic), 90)
        names[EpisodeOwner("study", study.id)] = f"study {topic} · {study.id}"
    return names


def title_of(training: RecordedTraining) -> str:
    return f"{formats.printable(name_of(training))} · {formats.moment(training.begun_at)}"


def follow_owner(owner: EpisodeOwner) -> None:
    st.query_params.clear()
    st.query_params.update(elements.address(**{owner.kind: owner.id}))


def show_owner(owner: EpisodeOwner) -> None:
    """Show links to the owner, and to the other episodes of a run. Raises RecordNotFound."""
    with st.container(horizontal=True):
        if owner.kind == "training":
            training = elements.store().get_training(owner.id)
            elements.link(
                "training",
                f"Training {formats.plain(name_of(training))}",
                icon=":material/monitoring:",
                training=owner.id,
            )
        elif owner.kind == "study":
            elements.link_study(queries.load_study(elements.database(), owner.id))
        else:
            run = elements.store().get_run(owner.id)
            elements.link("run", f"Run `{run.id}`", icon=":material/show_chart:", run=run.id)
            elements.link("episodes", "All runs of its study", icon=":material/forum:", study=run.study_id)
            if training := elements.store().find_launched_training(run.idempotency_key):
                elements.link("episodes", "Its trained episodes", icon=":material/forum:", training=training.id)


def show_episodes(kind: Literal["run", "study", "training"], owner_id: str) -> None:
    with elements.store_errors():
        owner = EpisodeOwner(kind, owner_id)
        show_owner(owner)
        show_search(owner)


def is_unfinished(owner: EpisodeOwner) -> bool:
    """Return whether more episodes may come. Raises RecordNotFound."""
    if owner.kind == "training":
        return elements.store().get_training(owner.id).status not in OVER
    if owner.kind == "study":
        return queries.load_study(elements.database(), owner.id).is_live
    return not elements.store().get_run(owner.id).status.is_over


st.title("Episodes", anchor=False)
owner = choose_owner()
if owner is None:
    st.info("No episode has been recorded here yet. A training records some of each step:", icon=":material/info:")
    st.code("swarm train --env reverse", language=None)
else:
    is_followed = is_unfinished(owner)
    live.follow(show_episodes, owner.kind, owner.id, token=partial(count_episodes, owner), is_on=is_followed)
