"""The recording of one ledger into one sink, from a position that is kept on disk."""

from __future__ import annotations

import hashlib
import json
import logging
import sqlite3
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path

from swarm.recorder.reading import LedgerReader, Position
from swarm.sinks import Sink, SystemReading

logger = logging.getLogger(__name__)

MOST_READINGS = 360
"""The newest readings that are kept for a sink that fails: an hour of them."""
FOLDER = "recorded"
"""The folder in a server's home with one file per sink: the position up to which the sink has the ledger."""


class Recording:
    """The recording of a ledger into the sink `name`.

    A sink that fails is tried again with the same update at the next call; the failure is logged once.
    """

    def __init__(self, reader: LedgerReader, name: str, sink: Sink, home: Path) -> None:
        self._reader = reader
        self._name = name
        self._sink = sink
        place = hashlib.sha256(sink.place.encode()).hexdigest()[:12]
        self._file = home / FOLDER / f"{name}-{place}.json"
        self._position: Position = _read_position(self._file)
        self._is_checked = False
        self._readings: list[SystemReading] = []
        self.failure: str | None = None
        """The reason why the last call did not write everything."""
        self.steps = 0
        """The number of steps that were written."""

    def catch_up(self, system: Iterable[SystemReading] = (), *, is_served: bool = True) -> bool:
        """Write everything that is new, and return whether all of it was written.

        Readings wait for the next update, to whose training they belong.
        """
        self._readings += system
        del self._readings[:-MOST_READINGS]
        while True:
            try:
                found = self._reader.read(self._position, is_served=is_served)
            except sqlite3.Error as error:
                self._note(f"the ledger cannot be read just now: {error}")
                return False
            try:
                if not self._is_checked and not self._holds_what_it_had():
                    self._position = Position()
                    continue
                if found is None:
                    return True
                update, after = found
                self._sink.write(replace(update, system=tuple(self._readings)))
            except Exception as error:  # noqa: BLE001 - the boundary: a failure of a tracker is logged
                # A tracker may raise anything; its failure must not end the recording into it.
                self._note(f"{type(error).__name__}: {error}")
                return False
            self._readings.clear()
            self.failure = None
            self.steps += len(update.steps)
            self._position = after
            _write_position(self._file, after)

    def _holds_what_it_had(self) -> bool:
        """Return whether the sink still has the training that was written last. A sink that lost it is filled anew."""
        self._is_checked = True
        return not self._position.key or self._sink.holds(self._position.key)

    def _note(self, failure: str) -> None:
        if failure != self.failure:
            logger.error("sink %s: %s; it is tried again", self._name, failure)
        self.failure = failure


def _read_position(file: Path) -> Position:
    """Return the position on disk. Without a readable one, the whole ledger is recorded again, which loses nothing."""
    try:
        return Position(**json.loads(file.read_bytes()))
    except (OSError, ValueError, TypeError):
        return Position()


def _write_position(file: Path, position: Position) -> None:
    file.parent.mkdir(exist_ok=True)
    draft = file.with_suffix(".draft")
    draft.write_text(json.dumps(asdict(position)))
    draft.replace(file)
