"""The plan of a study: its hypotheses with the arms that test them, and its charter."""

from __future__ import annotations

import streamlit as st

from experiments_db import StoredHypothesis
from ui import elements, formats
from ui.contents import ArmScore, StudyContents


def show_arm_line(contents: StudyContents, item: ArmScore) -> None:
    arm = item.arm
    runs = contents.runs_by_arm[arm.id]
    facts = [formats.count(runs, "run"), arm.status.value, formats.plain(formats.settings(arm.factors))]
    if arm.note:
        facts.append(formats.plain(arm.note))
    mark = " :blue-badge[baseline]" if arm.is_baseline else ""
    st.markdown(f"{formats.name(arm.name)}{mark} **{formats.score(item.mean)}** :small[{' · '.join(facts)}]")


def show_hypotheses(contents: StudyContents) -> None:
    """Show hypotheses with the arms that test them."""
    scores = {item.arm.id: item for item in contents.ranking}
    groups: list[tuple[str | None, str, str]] = [
        (item.id, " ".join([formats.plain(item.statement), *verdict_badge(item)]), item.rationale)
        for item in contents.hypotheses
    ]
    groups.insert(0, (None, "Baseline and arms of no hypothesis", ""))
    for hypothesis_id, statement, rationale in groups:
        arms = [arm for arm in contents.experiments if arm.hypothesis_id == hypothesis_id]
        if hypothesis_id is None and not arms:
            continue
        with st.container(border=True):
            st.markdown(f"**{statement}**" if hypothesis_id is None else f":material/science: {statement}")
            if rationale:
                st.caption(formats.plain(rationale))
            for arm in arms:
                show_arm_line(contents, scores[arm.id])


def verdict_badge(hypothesis: StoredHypothesis) -> list[str]:
    return [] if hypothesis.verdict is None else [elements.badge(hypothesis.verdict)]


def show_charter(contents: StudyContents) -> None:
    charter = contents.charter
    if charter is None:
        st.caption("The charter is not written yet.")
        return
    rows: dict[str, str] = {}
    for key, value in charter.document.items():
        if key in ("topic", "budget") or value in ((), [], None):
            continue
        text = formats.settings(value) if isinstance(value, dict) else formats.setting(value)
        if isinstance(value, list | tuple):
            text = " ".join(str(entry) for entry in value)
        rows[formats.plain(str(key).replace("_", " "))] = formats.plain(text)
    rows["frozen"] = f"{formats.moment(charter.created_at)}, SHA-256 `{charter.content_hash[:12]}`"
    if charter.test_opened_at is not None:
        purpose = formats.plain(charter.test_opened_for or "")
        rows["test split opened"] = f"{formats.moment(charter.test_opened_at)}, to {purpose}"
    st.table(rows, border="horizontal", alt="The charter")


def show_plan(contents: StudyContents) -> None:
    st.subheader("Hypotheses and arms", anchor=False)
    if contents.experiments:
        show_hypotheses(contents)
    else:
        st.caption("Nothing is planned yet.")
    st.subheader("Charter", anchor=False)
    show_charter(contents)
