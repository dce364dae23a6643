"""The tables of every documented field of every model API, for docs/http-api.md, from the tables in the code."""

from __future__ import annotations

from swarm.gateway.dialects.fields import FieldRule, FieldTable, Handling
from swarm.gateway.dialects.tables import TABLES


def matrix() -> str:
    """Return one section for each API: its plain fields in lists, then a table of those with a condition or a note."""
    return "\n".join(f"**`{route}`**\n\n{_lists(fields)}\n{_table(fields)}" for route, fields in TABLES.items())


def _lists(fields: FieldTable) -> str:
    plain: dict[str, list[str]] = {}
    for name in sorted(fields):
        if _is_plain(fields[name]):
            plain.setdefault(str(fields[name].handling), []).append(f"`{name}`")
    return "".join(f"- {handling}: {', '.join(names)}\n" for handling, names in sorted(plain.items()))


def _table(fields: FieldTable) -> str:
    rows = [f"| `{name}` | {_fate(fields[name])} |\n" for name in sorted(fields) if not _is_plain(fields[name])]
    return "| field | |\n|---|---|\n" + "".join(rows)


def _is_plain(field: FieldRule) -> bool:
    return _fate(field) == str(field.handling)


def _fate(field: FieldRule) -> str:
    fate = str(field.handling)
    if field.handling is Handling.NEUTRAL_ONLY and field.neutral:
        fate += f", but for {' or '.join(f'`{_json(value)}`' for value in field.neutral)}"
    return f"{fate}: {field.note}" if field.note else fate


def _json(value: object) -> str:
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value).replace("'", '"')
