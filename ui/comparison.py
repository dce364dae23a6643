"""Comparisons of scored runs or trainings by their settings: what differs, and how the score goes with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import pandas as pd
import streamlit as st

from experiments_db import Experiment
from ui import charts, differences, elements, formats

MOST_AXES = 12


@dataclass(frozen=True, slots=True)
class ScoredItem:
    """A run or a training with its score and its settings; `seed` tells apart what has the same settings."""

    label: str
    score: float
    settings: Mapping[str, Any]
    seed: object


def varied(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the settings that do not have the same value in all of these, sorted."""
    names = sorted({name for each in configs for name in each})
    return [name for name in names if len({formats.setting(each.get(name)) for each in configs}) > 1]


def show_differing(configs: Sequence[tuple[str, Mapping[str, Any]]], *, same: str) -> None:
    """Show the settings that differ, by label; `same` says that none does."""
    table = differences.differing_settings(configs)
    if table.empty:
        st.caption(same)
        return
    st.dataframe(table, height=elements.table_height(len(table)), alt="Settings that differ")
    st.caption("Only what differs. Names and seeds are left out.")


def show_change(experiment: Experiment, parent: Experiment | None) -> None:
    """Show what an arm changes of its parent: settings and program."""
    if parent is None:
        st.caption("It has no parent.")
        return
    st.caption(f"Against {formats.name(parent.name)}")
    settings = differences.differing_settings([(parent.name, parent.job), (experiment.name, experiment.job)])
    if not settings.empty:
        st.table(settings, border="horizontal", alt="Settings that differ")
    diff = differences.code_diff(
        parent.program_code, experiment.program_code, old_name=parent.name, new_name=experiment.name
    )
    if diff:
        elements.show_text(diff, language="diff")
    if not diff and settings.empty:
        st.caption("Program and settings are the same.")


def show_effects(items: Sequence[ScoredItem], *, explanation: str) -> None:
    """Show the score by each setting that has scores at more than one value."""
    names = [name for name in varied([item.settings for item in items]) if name != "seed"]
    if not names:
        st.caption("Nothing has scores at more than one value.")
        return
    with st.grid(2, min_column_width=420):
        for name in names[:MOST_AXES]:
            with st.container(border=True, height="stretch"):
                _show_effect(items, name)
    st.caption(explanation)


def _show_effect(items: Sequence[ScoredItem], factor: str) -> None:
    levels = sorted((item.settings.get(factor) for item in items), key=formats.order_of)
    rows = [
        {
            "level": _level_text(level),
            "number": float(level) if _is_number(level) else None,
            "score": item.score,
            "arm": formats.printable(item.label),
            "seed": item.seed,
        }
        for item in items
        for level in (item.settings.get(factor),)
    ]
    order = list(dict.fromkeys(_level_text(level) for level in levels))
    chart = charts.effects(pd.DataFrame(rows), factor=formats.printable(factor), order=order)
    elements.show_chart(charts.to_spec(chart), alt=f"Score by {factor}")


def show_parallel(items: Sequence[ScoredItem], names: Sequence[str], *, score: str) -> None:
    """Show each item as a line through its values under these names and its score."""
    titles = [formats.printable(name) for name in names]
    rows = [
        {"item": formats.printable(item.label), score: item.score}
        | {title: item.settings.get(name) for title, name in zip(titles, names, strict=True)}
        for item in items
    ]
    chart = charts.parallel(pd.DataFrame(rows), columns=[*titles, score], score=score)
    elements.show_chart(charts.to_spec(chart), alt="Parallel coordinates")


def _level_text(level: object) -> str:
    return formats.printable(formats.setting(level))


def _is_number(level: object) -> TypeGuard[int | float]:
    return isinstance(level, int | float) and not isinstance(level, bool)
