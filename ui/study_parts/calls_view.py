"""The calls of a language model that a study's planner and reviewer made: what they cost, and what was said."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd
import streamlit as st

from experiments_db import LLMCall
from ui import elements, episode_view, formats, queries
from ui.contents import StudyContents

WITHOUT_MODEL = frozenset({"rules", "scripted"})
"""The planners that ask no language model."""
UNKNOWN = "unknown"
NO_PRICE = "No price was given with `--llm-price`, so what the calls cost is unknown."
NUMBERS = ["Calls", "Failed", "Tokens in", "Tokens out", "Cost", "Seconds"]
CALL = "call"


def show_calls(contents: StudyContents) -> None:
    """Show the totals, the sums by node and by model, one row per call, and the call that the user selects."""
    calls = queries.llm_calls(elements.database(), contents.study.id)
    if calls.empty:
        st.caption(_why_there_is_none(contents))
        return
    has_price = contents.study.settings.get("llm_price") is not None or bool((calls["cost_usd"] > 0).any())
    rows = _rows(calls, has_price=has_price)
    _show_totals(rows, has_price=has_price)
    with st.grid(2, min_column_width=420):
        for column in ("Node", "Model"):
            with st.container():
                st.subheader(f"By {column.lower()}", anchor=False)
                _show_sums(rows, column)
    st.subheader("Calls", anchor=False)
    chosen = _choose_call(rows)
    if chosen is None:
        st.caption("Select a call to read it.")
    else:
        _show_call(elements.store().list_llm_calls(contents.study.id, limit=1, offset=chosen)[0])


def _why_there_is_none(contents: StudyContents) -> str:
    planner = contents.study.planner
    if planner in WITHOUT_MODEL:
        return f"The planner {formats.name(planner)} asks no language model, so the study made no call."
    if planner == "external":
        return "The planner is outside of this program, which made no call. Its answers are in the notebook."
    return "No language model has been called yet." if contents.is_live else "No language model was called."


def _rows(calls: pd.DataFrame, *, has_price: bool) -> pd.DataFrame:
    """Return one row per call, oldest first, with the titles of the columns."""
    return pd.DataFrame(
        {
            "Time (UTC)": [formats.clock(at) for at in calls["created_at"]],
            "Node": [formats.printable(node) for node in calls["node"]],
            "Model": [formats.printable(model) for model in calls["model"]],
            "Attempt": calls["attempt"],
            "Tokens in": calls["input_tokens"],
            "Tokens out": calls["output_tokens"],
            "Seconds": calls["latency_s"],
            "Cost": calls["cost_usd"] if has_price else float("nan"),
            "Prompt": [None if pd.isna(each) else str(each)[:12] for each in calls["prompt_hash"]],
            "Failed": [None if pd.isna(error) else formats.printable(str(error)) for error in calls["error"]],
            "id": calls["id"],
        }
    )


def _show_totals(rows: pd.DataFrame, *, has_price: bool) -> None:
    with st.grid(6, min_column_width=140):
        elements.show_metric("Calls", f"{len(rows):,}")
        elements.show_metric("Failed", f"{rows['Failed'].notna().sum():,}")
        elements.show_metric("Tokens in", f"{rows['Tokens in'].sum():,}")
        elements.show_metric("Tokens out", f"{rows['Tokens out'].sum():,}")
        elements.show_metric("Cost", f"${rows['Cost'].sum():,.4f}" if has_price else UNKNOWN)
        elements.show_metric("Waited", formats.duration(sum(rows["Seconds"].tolist())))
    if not has_price:
        st.caption(NO_PRICE)


def _show_sums(rows: pd.DataFrame, column: str) -> None:
    counted = rows.assign(Calls=1, Failed=rows["Failed"].notna().astype(int))
    # Without a price the sum is missing, not 0.
    sums = counted.groupby(column, sort=False)[NUMBERS].agg(lambda values: values.sum(min_count=1)).reset_index()
    elements.show_table(sums, columns=_formats(), placeholder=UNKNOWN, alt=f"Calls by {column.lower()}")


def _formats() -> dict[str, Any]:
    return {
        "Cost": st.column_config.NumberColumn("Cost ($)", format="%.4f"),
        "Seconds": st.column_config.NumberColumn(format="%.1f"),
        "Tokens in": st.column_config.NumberColumn(format="localized"),
        "Tokens out": st.column_config.NumberColumn(format="localized"),
        "Prompt": st.column_config.TextColumn("Prompt hash", help="SHA-256 of the template of the question"),
        "id": None,
    }


def _choose_call(rows: pd.DataFrame) -> int | None:
    """Return the position in the study of the call that the user selects, or of the one in the address."""
    ids = [str(each) for each in rows["id"]]
    asked = elements.choose_row(rows, ids, param=CALL, alt="Calls of the language model", column_config=_formats())
    return ids.index(asked) if asked in ids else None


def _show_call(call: LLMCall) -> None:
    facts = [
        formats.name(call.node),
        formats.plain(call.model),
        f"attempt {call.attempt}",
        formats.moment(call.created_at),
        f"{call.input_tokens:,} tokens in, {call.output_tokens:,} out",
        formats.duration(call.latency_s),
    ]
    elements.show_facts(*facts)
    if call.prompt_hash:
        st.caption(f"Template {formats.name(call.prompt_hash)}")
    if call.error is not None:
        st.error(formats.plain(call.error), icon=":material/error:")
    with st.grid(2, min_column_width=420):
        with st.container():
            st.subheader("Prompt", anchor=False)
            st.caption("Of a question with several calls, each has only the messages that are new.")
            _show_said(call.prompt, role="user")
        with st.container():
            st.subheader("Response", anchor=False)
            if call.response is None:
                st.caption("There was no response.")
            else:
                _show_said(call.response, role="assistant")


def _show_said(text: str, *, role: str) -> None:
    """Show what was said as messages if it is stored as such, else as text."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = None
    with st.container(border=True):
        if isinstance(document, list) and all(isinstance(each, dict) and "role" in each for each in document):
            episode_view.show_messages(document)
        elif isinstance(document, dict) and document.keys() <= {"reasoning", "content", "tool_calls"}:
            episode_view.show_message({"role": role, **document})
        else:
            episode_view.show_message({"role": role, "content": text})
