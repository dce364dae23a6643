"""The sinks that are installed, found by entry point.

Place in the flow: the recorder opens sinks by name, and `swarm start` asks which ones there are. The module knows no
sink.
"""

from __future__ import annotations

from importlib.metadata import entry_points

from swarm.errors import BadRequest
from swarm.sinks.base import Sink

ENTRY_POINTS = "swarm.sinks"
"""The entry point group. An entry point names a function that takes the directory of runs and returns a Sink."""


def list_sinks() -> list[str]:
    """Return the names of the sinks that are known, sorted. A sink's library may be missing all the same."""
    return sorted(entry.name for entry in entry_points(group=ENTRY_POINTS))


def open_sink(name: str, runs: str) -> Sink:
    """Open a sink for a directory of runs. Raise BadRequest if it is unknown or its library is missing."""
    found = [entry for entry in entry_points(group=ENTRY_POINTS) if entry.name == name]
    if not found:
        raise BadRequest(f"there is no sink {name!r}: use {', '.join(list_sinks())}", param="log")
    try:
        return found[0].load()(runs)
    except ModuleNotFoundError as error:
        raise BadRequest(f"the sink {name!r} needs {error.name}: pip install {error.name}", param="log") from error
