"""The sinks that are installed, found by entry point."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec

from swarm.errors import BadRequest
from swarm.extras import missing_extra
from swarm.sinks.base import Sink

ENTRY_POINTS = "swarm.sinks"
"""The entry point group. An entry point names a function that takes the directory of runs and returns a Sink.

The module of the function may name the package that it needs as LIBRARY.
"""


def list_sinks() -> list[str]:
    """Return the names of the sinks that are known, sorted. A sink's library may be missing all the same."""
    return sorted(entry.name for entry in entry_points(group=ENTRY_POINTS))


def open_sink(name: str, runs: str) -> Sink:
    """Open a sink for a directory of runs. Raise BadRequest if it is unknown or its library is missing."""
    try:
        return _entry(name).load()(runs)
    except ModuleNotFoundError as error:
        raise _missing(name, error) from error


def check_sinks(names: Iterable[str]) -> None:
    """Raise BadRequest if a sink is unknown or its library is missing. The libraries themselves are not imported."""
    for name in names:
        library = getattr(importlib.import_module(_entry(name).module), "LIBRARY", None)
        if library is not None and find_spec(library) is None:
            raise _missing(name, ModuleNotFoundError(name=library))


def _entry(name: str) -> EntryPoint:
    found = [entry for entry in entry_points(group=ENTRY_POINTS) if entry.name == name]
    if not found:
        raise BadRequest(f"there is no sink {name!r}: use {', '.join(list_sinks())}", param="log")
    return found[0]


def _missing(name: str, error: ModuleNotFoundError) -> BadRequest:
    advice = missing_extra(error, name) or f"{error.name} is not installed: run pip install {error.name}"
    return BadRequest(f"the sink {name!r} cannot be used: {advice}", param="log")
