"""The process of an environment server: `python -m swarm.environments.server.main NAME FOLDER`."""

from __future__ import annotations

import argparse
import faulthandler
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any, TextIO

from swarm.environments.registry import load_environment
from swarm.environments.server.listener import UnixListener
from swarm.environments.server.service import EnvironmentService
from swarm.errors import SwarmError
from swarm.processes.announcement import claim_stdout
from swarm.tasks.base import Split

TRAIN_SOCKET = "train.sock"
EVALUATOR_SOCKET = "evaluator.sock"
BEAT_S = 1.0
BLOCKED_MARGIN_S = 10.0
"""Seconds beyond the time limit of a call. The service ends a call at its limit, if its thread gets to run."""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("folder", type=Path)
    options = parser.parse_args(argv)
    announcement = claim_stdout()
    try:
        environment = load_environment(options.name)
    except SwarmError as error:
        _announce(announcement, {"error": {"code": error.code, "message": error.message}})
        return 2
    service = EnvironmentService(environment)
    programs = UnixListener(options.folder / TRAIN_SOCKET, service, frozenset({Split.TRAIN}))
    evaluator = UnixListener(options.folder / EVALUATOR_SOCKET, service, frozenset(Split))
    threading.Thread(target=programs.serve_forever, daemon=True).start()
    threading.Thread(target=_end_when_blocked, args=(environment.time_limit_s + BLOCKED_MARGIN_S,), daemon=True).start()
    _announce(announcement, service.describe().model_dump(mode="json"))
    evaluator.serve_forever()
    return 0


def _end_when_blocked(limit_s: float) -> None:
    """End this process once no other Python thread has run for `limit_s` seconds.

    Code in C can block the interpreter, for example a regular expression that backtracks without end. Then nothing
    written in Python can end the process.
    """
    while True:
        faulthandler.dump_traceback_later(limit_s, exit=True)
        time.sleep(BEAT_S)


def _announce(announcement: TextIO, document: dict[str, Any]) -> None:
    announcement.write(json.dumps(document) + "\n")
    announcement.flush()


if __name__ == "__main__":
    sys.exit(main())
