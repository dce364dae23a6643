"""Filter expressions of tables, such as `lr>=1e-3 status=complete "word order" tag!=old`."""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from ui import formats

_TERM = re.compile(
    r'\s*(?:(?P<name>[^\s"<>=!~]+)\s*(?P<op><=|>=|!=|=|<|>|~)\s*(?P<value>"[^"]*"|[^\s"<>=!~][^\s"]*)'
    r'|(?P<word>"[^"]*"|[^\s"<>=!~]+)(?=[\s"]|$)(?!\s*[<>=!~]))'
)
_ORDERS: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge,
}  # fmt: skip


class UnreadableFilter(ValueError):
    """An expression that cannot be read. The message says which part, and why."""


@dataclass(frozen=True, slots=True)
class ListedItem:
    """A run or a training, with everything by name that it can be filtered, sorted, grouped and compared by."""

    id: str
    title: str
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Condition:
    """One part of an expression. Without a `name` it is a word that occurs somewhere in the row."""

    name: str
    op: str
    value: str

    def holds(self, row: Mapping[str, Any]) -> bool:
        if not self.name:
            return any(self.value.lower() in _text(value) for value in row.values())
        found = row.get(self.name)
        values: Collection[Any] = found if isinstance(found, tuple | list) else (found,)
        if self.op == "!=":
            return not any(_equals(value, self.value) for value in values)
        return any(_agrees(value, self.op, self.value) for value in values)


@dataclass(frozen=True, slots=True)
class Filter:
    """A conjunction of conditions."""

    conditions: tuple[Condition, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that the conditions are about."""
        return tuple(dict.fromkeys(each.name for each in self.conditions if each.name))

    def keeps(self, row: Mapping[str, Any]) -> bool:
        """Return whether a row, with its values by name, agrees with every condition."""
        return all(each.holds(row) for each in self.conditions)


def parse_filter(text: str, names: Collection[str]) -> Filter:
    """Return the filter of an expression; `names` are the known columns.

    Raises UnreadableFilter for an unknown name, an unfinished quotation, or an order of something that is no number.
    """
    conditions: list[Condition] = []
    at = 0
    while text[at:].strip():
        match = _TERM.match(text, at)
        if match is None:
            raise UnreadableFilter(f"{formats.shortened(text[at:].strip(), 40)!r} is neither a word nor a condition")
        if match["word"] is not None:
            conditions.append(Condition("", "", match["word"].strip('"')))
        else:
            value = match["value"].strip('"')
            name = _known(match["name"], names)
            if match["op"] in _ORDERS and _number(value) is None:
                raise UnreadableFilter(f"{match['name']}{match['op']} needs a number, not {value!r}")
            conditions.append(Condition(name, match["op"], value))
        at = match.end()
    return Filter(tuple(conditions))


def _known(name: str, names: Collection[str]) -> str:
    by_lower = {each.lower(): each for each in names}
    if (found := by_lower.get(name.lower())) is not None:
        return found
    # The last part of a long name is enough where only one name ends with it.
    ending = [each for each in names if re.split(r"[/.]", each.lower())[-1] == name.lower()]
    if len(ending) == 1:
        return ending[0]
    near = difflib.get_close_matches(name.lower(), list(by_lower), n=3, cutoff=0.5)
    known = ", ".join(by_lower[each] for each in near) or ", ".join(sorted(names)[:6])
    raise UnreadableFilter(f"there is no column {name!r}; there is {known}")


def _agrees(value: Any, op: str, wanted: str) -> bool:
    if op == "=":
        return _equals(value, wanted)
    if op == "~":
        return wanted.lower() in _text(value)
    number = _number(value)
    limit = _number(wanted)
    return number is not None and limit is not None and _ORDERS[op](number, limit)


def _equals(value: Any, wanted: str) -> bool:
    number, other = _number(value), _number(wanted)
    if number is not None and other is not None:
        return number == other
    return _text(value) == wanted.lower()


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or value is None:
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _text(value: Any) -> str:
    if value is None:
        return ""
    return (" ".join(map(str, value)) if isinstance(value, tuple | list) else formats.setting(value)).lower()
