"""Values as the JSON text of a column."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from swarm.errors import LedgerError

# json.dumps makes a new encoder at each call that asks for other separators.
_ENCODER = json.JSONEncoder(separators=(",", ":"))


def to_json(value: object) -> str:
    """Return a value as compact JSON. Raise LedgerError for a value that JSON cannot express."""
    try:
        return _ENCODER.encode(value)
    except (TypeError, ValueError) as error:
        raise LedgerError(f"cannot be stored as JSON: {error}") from error


def to_json_or_null(values: Sequence[float] | Mapping[str, float] | None) -> str | None:
    """Return rewards of turns, or rewards by name, as JSON, or None without any."""
    if values is None:
        return None
    return to_json(dict(values) if isinstance(values, Mapping) else list(values))
