"""The planner's side of a study: its notebook, reviews, and questions to an external planner."""

from __future__ import annotations

import streamlit as st

from experiments_db import PlannerQuestion, QuestionStatus, Review
from ui import elements, formats
from ui.contents import AUTOMATIC, StudyContents


def show_notebook(contents: StudyContents) -> None:
    """Show open questions first, then the notebook and the rest of the record."""
    for question in contents.questions:
        if question.status is QuestionStatus.OPEN:
            _show_question(question, is_open=True)
    _show_notes(contents)
    _show_reviews(contents)
    closed = [item for item in contents.questions if item.status is not QuestionStatus.OPEN]
    if closed:
        st.subheader("Questions to the external planner", anchor=False)
        for question in closed:
            _show_question(question, is_open=False)


def _show_notes(contents: StudyContents) -> None:
    st.subheader("Notebook", anchor=False)
    notes = elements.store().list_notes(contents.study.id)
    if not notes:
        st.caption("Nothing is written down yet.")
        return
    rows = [
        {
            "Plan": note.iteration + 1,
            "Kind": note.kind.value,
            "By": formats.printable(note.author),
            "Text": formats.printable(note.text),
        }
        for note in notes
    ]
    elements.show_table(rows, columns=elements.wide_column("Text"), alt="The notebook")
    st.caption(f"What is not by {AUTOMATIC} is unchecked.")


def _show_reviews(contents: StudyContents) -> None:
    reviews = elements.store().list_reviews(contents.study.id)
    if not reviews:
        return
    st.subheader("Reviews", anchor=False)
    arms = contents.arms_by_id
    for review in reviews:
        with st.container(border=True):
            _show_review(review, arms[review.experiment_id].name)


def _show_review(review: Review, arm: str) -> None:
    end = " :red-badge[withdrawn]" if review.is_withdrawn else ""
    st.markdown(f"{formats.plain(review.reviewer)} on {formats.name(arm)}, before plan {review.iteration + 1}{end}")
    if not review.objections:
        st.caption("No objection.")
    for item in review.objections:
        grade = ":red-badge[grave]" if item["is_grave"] else ":gray-badge[slight]"
        st.markdown(f"{grade} {formats.plain(str(item['kind']))}: {formats.plain(str(item['sentence']))}")
    if review.response:
        st.markdown(f":material/reply: {formats.plain(review.response)}")
        st.caption("The planner's words, unchecked.")


def _show_question(question: PlannerQuestion, *, is_open: bool) -> None:
    badge = elements.badge(question.status)
    asked = f"asked {formats.moment(question.created_at)}"
    until = f", waits until {formats.moment(question.deadline)}" if is_open and question.deadline else ""
    with st.expander(
        f"Question {question.id}, {formats.plain(question.node)} {badge} {asked}{until}", expanded=is_open
    ):
        elements.show_text(formats.printable(question.prompt), language=None)
        if question.objection:
            st.markdown(f"The last answer was refused: {formats.plain(question.objection)}")
        if question.answer:
            st.caption("The answer")
            elements.show_text(formats.printable(question.answer), language=None)
