"""The table of runs or trainings: a filter, columns, groups and an order that the user chooses, and selected rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any, TypeVar

import pandas as pd
import streamlit as st

from ui import elements, formats
from ui.tables.filters import Filter, ListedItem, UnreadableFilter, parse_filter

AS_READ = "newest"
FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""A spreadsheet runs text that begins with one of these as a formula."""
HELP = (
    "Words that occur in a row, and conditions: `lr>=1e-3`, `status=complete`, `model!=nano`, `note~figure`, "
    '`"two words"`. All have to hold. Any column, setting or metric has a name.'
)


ItemT = TypeVar("ItemT", bound=ListedItem)


@dataclass(frozen=True, slots=True)
class ListView:
    """The choices of the user above a table."""

    filter: Filter
    columns: Sequence[str]
    groups: Sequence[str]
    order: str
    is_descending: bool

    @property
    def names(self) -> set[str]:
        """The names of all values that the choices are about."""
        return {*self.filter.names, *self.columns, *self.groups, self.order}

    def arrange(self, items: Sequence[ItemT]) -> list[ItemT]:
        """Return the items that the filter keeps, in the chosen order; those without the value come last."""
        kept = [item for item in items if self.filter.keeps(item.values)]
        if self.order == AS_READ:
            return kept
        filled = [item for item in kept if not formats.is_missing(item.values.get(self.order))]
        empty = [item for item in kept if formats.is_missing(item.values.get(self.order))]
        filled.sort(key=lambda item: formats.order_of(item.values[self.order]), reverse=self.is_descending)
        return [*filled, *empty]

    def group(self, items: Sequence[ItemT]) -> dict[str, list[ItemT]]:
        """Return the items by their values under the chosen names, in the order in which the values occur."""
        groups: dict[str, list[ItemT]] = {}
        for item in items:
            label = ", ".join(f"{name}={_level(item.values.get(name))}" for name in self.groups)
            groups.setdefault(formats.printable(label), []).append(item)
        return groups


def _level(value: Any) -> str:
    if isinstance(value, tuple):
        return "+".join(map(str, value)) or formats.MISSING
    return formats.MISSING if formats.is_missing(value) else formats.shortened(formats.setting(value), 60)


def choose_view(names: Sequence[str], *, example: str) -> ListView | None:
    """Show the filter and the other choices; explain a filter that cannot be read, and return None."""
    left, right = st.columns([6, 1], vertical_alignment="bottom")
    with left:
        text = st.text_input("Filter", placeholder=example, key="filter", bind="query-params", help=HELP)
    with right, st.popover("View", icon=":material/tune:"):
        columns = st.multiselect("Columns", names, key="columns", bind="query-params", placeholder="more values")
        groups = st.multiselect("Group by", names, key="group", bind="query-params", placeholder="no groups")
        order = st.selectbox("Sort by", [AS_READ, *names], key="sort", bind="query-params")
        is_descending = st.toggle("Largest first", True, key="descending", bind="query-params")
    try:
        return ListView(parse_filter(text, names), columns, groups, order, is_descending)
    except UnreadableFilter as error:
        st.warning(f"The filter cannot be read: {formats.plain(str(error))}.", icon=":material/filter_alt_off:")
        return None


def cell(value: Any) -> Any:
    # A column has one type: numbers sort as numbers, all else is text.
    if formats.is_missing(value) or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    return formats.printable(formats.setting(value))


def choose_rows(
    items: Sequence[ItemT], table: Sequence[Mapping[str, Any]], *, columns: Mapping[str, Any], alt: str
) -> list[ItemT]:
    """Show the table of the items, and return those that are selected, which the address names."""
    named = set(st.query_params.get("chosen", "").split(","))

    def follow_choice(chosen: Sequence[str]) -> None:
        st.query_params["chosen"] = ",".join(chosen)

    frame = pd.DataFrame(table).dropna(axis="columns", how="all")
    elements.choose_rows(frame, [item.id for item in items], named, follow_choice, column_config=columns, alt=alt)
    return [item for item in items if item.id in named]


def choose_groups(groups: Mapping[str, Sequence[ItemT]], numbers: Mapping[str, str], *, noun: str) -> list[str]:
    """Show the groups with the means of these numbers, by title, and return those selected, or else all of them."""
    rows: list[dict[str, Any]] = []
    for label, members in groups.items():
        found: dict[str, Any] = {"Group": label, noun: len(members)}
        for title, name in numbers.items():
            given = [item.values.get(name) for item in members]
            known = [float(each) for each in given if isinstance(each, int | float) and not formats.is_missing(each)]
            found[title] = fmean(known) if known else None
            found[f"{title} ±"] = stdev(known) if len(known) > 1 else None
        rows.append(found)
    table = pd.DataFrame(rows).dropna(axis="columns", how="all")
    event = st.dataframe(
        table,
        hide_index=True,
        height=elements.table_height(len(table)),
        placeholder=formats.MISSING,
        column_config=elements.number_columns(*table.columns[2:], format="%.4g"),
        on_select="rerun",
        selection_mode="multi-row",
        key="chosen_groups",
        alt=f"Groups of {noun.lower()}",
    )
    st.caption(f"Mean and standard deviation (±) over the {noun.lower()} of a group.")
    labels = list(groups)
    return [labels[number] for number in event.selection.rows if number < len(labels)] or labels


def to_csv(frame: pd.DataFrame) -> bytes:
    """Return a table as CSV. A text that a spreadsheet would take for a formula gets a leading apostrophe."""

    def defuse(value: Any) -> Any:
        return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value

    return frame.apply(lambda column: column.map(defuse)).to_csv(index=False).encode()


def show_download(items: Sequence[ListedItem], name: str) -> None:
    """Offer everything that is known of the items as a file."""
    st.download_button(
        "CSV",
        lambda: to_csv(pd.DataFrame([{"id": item.id, **item.values} for item in items])),
        f"{name}.csv",
        "text/csv",
        icon=":material/download:",
        on_click="ignore",
        type="tertiary",
    )
