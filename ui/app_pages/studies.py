"""All studies, newest first, with the findings of each so far."""

from __future__ import annotations

from math import ceil

import streamlit as st

from experiments_db import RunStatus, Study, StudyStatus
from ui import elements, formats, queries

PER_PAGE = 10


def show_card(study: Study) -> None:
    contents = queries.load_study(elements.database(), study.id)
    tally = elements.store().tally_runs().get(study.id, {})
    finished, failed = tally.get(RunStatus.FINISHED, 0), tally.get(RunStatus.FAILED, 0)
    with st.container(border=True):
        topic = formats.plain(formats.shortened(study.topic, 150))
        elements.link("study", f"**{topic}**", icon=":material/account_tree:", study=study.id)
        elements.show_facts(
            elements.badge(study.status),
            f"planner {formats.plain(study.planner)}",
            f"started {formats.moment(study.created_at)}",
            f"`{study.id}`",
        )
        elements.show_silence(contents)
        with st.grid(4, min_column_width=150):
            elements.show_best_arm(contents, border=False)
            elements.show_metric("Arms", str(len(contents.experiments)), border=False)
            note = f"{finished} finished, {failed} failed"
            elements.show_metric("Trainings finished", f"{finished} / {sum(tally.values())}", border=False, help=note)
            elements.show_metric("Time at work", elements.worked(contents), border=False, help="Without pauses.")


st.title("Studies", anchor=False)
studies = elements.store().list_studies(limit=None)
if not studies:
    elements.show_no_studies()
    st.stop()

with st.container(horizontal=True, vertical_alignment="bottom"):
    words = st.text_input("Topic contains", key="topic", bind="query-params", width=320)
    present = [status.value for status in StudyStatus if any(study.status is status for study in studies)]
    statuses = st.pills("Status", present, selection_mode="multi", key="status", bind="query-params")

shown = [
    study
    for study in studies
    if words.casefold() in study.topic.casefold() and (not statuses or study.status.value in statuses)
]
if not shown:
    st.caption("No study matches.")
    st.stop()
pages = ceil(len(shown) / PER_PAGE)
number = st.session_state.get("page", 1) if pages > 1 else 1
first = (min(number, pages) - 1) * PER_PAGE
for study in shown[first : first + PER_PAGE]:
    show_card(study)
if pages > 1:
    st.pagination(pages, key="page")
st.caption(f"{formats.count(len(shown), 'study').replace('studys', 'studies')} in {formats.name(elements.database())}")
