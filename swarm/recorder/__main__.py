"""The process that records the trainings of a server until the server is gone and all is written."""

from __future__ import annotations

import argparse
import fcntl
import logging
import os
import sys
import time
from functools import partial
from pathlib import Path

import psutil

from swarm.config import LEDGER
from swarm.errors import SwarmError
from swarm.ledger import RecordLoss
from swarm.processes import is_dead
from swarm.recorder.progress import ProgressRecording
from swarm.recorder.reading import LedgerReader
from swarm.recorder.recording import FOLDER, Recording
from swarm.recorder.system import SystemReader
from swarm.schemas import Receipt
from swarm.sinks import ProgressSink, Sink, SystemReading, open_sink

EVERY_S = 1.0
SYSTEM_EVERY_S = 10.0
TELL_LIMIT_S = 10.0
LAST_TRIES = 10
"""Looks at a ledger that cannot be written to a sink, after its server has ended."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m swarm.recorder", description=__doc__)
    parser.add_argument("home", type=Path)
    parser.add_argument("--runs", required=True)
    parser.add_argument("--server", required=True, help="the server's process, as swarm.processes names it")
    parser.add_argument("--url", required=True, help="the server's address")
    parser.add_argument("--sink", action="append", required=True)
    asked = parser.parse_args(arguments)
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.WARNING)
    (asked.home / FOLDER).mkdir(parents=True, exist_ok=True)
    with (asked.home / FOLDER / "lock").open("w") as lock:
        # The recorder of a server that was killed ends its work before the next one begins.
        fcntl.flock(lock, fcntl.LOCK_EX)
        record(asked.home, asked.runs, asked.server, asked.url, asked.sink)
    return 0


def record(home: Path, runs: str, server: str, url: str, sinks: list[str]) -> None:
    """Record until the server is gone and all was written. A sink that cannot be opened is left out and named."""
    reader = LedgerReader(home / LEDGER)
    opened = {name: sink for name in sinks if (sink := _open(name, runs)) is not None}
    recordings = [Recording(reader, name, sink, home) for name, sink in opened.items()]
    progress = [
        ProgressRecording(reader, sink, home, partial(_tell, url))
        for sink in opened.values()
        if isinstance(sink, ProgressSink)
    ]
    system, readings = _system_of(server), list[SystemReading]()
    read_at, tries = 0.0, 0
    while recordings:
        is_over = is_dead(server)
        if system is not None and time.monotonic() - read_at > SYSTEM_EVERY_S:
            read_at = time.monotonic()
            reading = system.read()
            readings = [] if reading is None else [reading]
        done = [recording.catch_up(readings, is_served=not is_over) for recording in recordings]
        done += [each.catch_up(is_served=not is_over) for each in progress]
        readings = []
        if is_over:
            tries += 1
            if all(done) or tries >= LAST_TRIES:
                break
        time.sleep(EVERY_S)
    for sink in opened.values():
        sink.close()


def _open(name: str, runs: str) -> Sink | None:
    try:
        return open_sink(name, runs)
    except Exception as error:  # noqa: BLE001 - the boundary: a failure of a tracker is logged
        # A tracker's library may raise anything on opening; the other sinks go on.
        logging.getLogger(__name__).error("sink %s is not used: %s", name, error)
        return None


def _tell(url: str, receipt: Receipt, loss: RecordLoss) -> bool:
    """Bring a receipt to the server, as a client does, and return whether the loss that it proves is on record."""
    from swarm.client import SwarmClient

    tokens = (os.environ.get(name) for name in ("SWARM_TOKEN", "SWARM_ROLLOUT_TOKEN", "SWARM_OBSERVER_TOKEN"))
    try:
        with SwarmClient(url, next(filter(None, tokens), None), timeout=TELL_LIMIT_S) as client:
            return any(each.missing >= loss.missing for each in client.tell(str(receipt)).lost)
    except SwarmError as error:
        logging.getLogger(__name__).warning("the server does not hear of its loss yet: %s", error.message)
        return False


def _system_of(server: str) -> SystemReader | None:
    try:
        return SystemReader(int(server.split(":")[1]))
    except (psutil.Error, ValueError, IndexError):
        return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
