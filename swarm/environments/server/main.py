"""The process of an environment server: `python -m swarm.environments.server.main NAME FOLDER`.

Place in the flow: process.py starts this, in the interpreter that the environment asks for. It opens `train.sock` for
programs and `evaluator.sock` in the folder, then says so in one line of JSON on standard output: the description of
the environment, or {"error": {"code", "message"}} and exit code 2 for one that cannot be used.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
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


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("folder", type=Path)
    options = parser.parse_args(argv)
    announcement = claim_stdout()
    try:
        environment = load_environment(options.name)
    except SwarmError as error:
        _say(announcement, {"error": {"code": error.code, "message": error.message}})
        return 2
    service = EnvironmentService(environment)
    programs = UnixListener(options.folder / TRAIN_SOCKET, service, frozenset({Split.TRAIN}))
    evaluator = UnixListener(options.folder / EVALUATOR_SOCKET, service, frozenset(Split))
    threading.Thread(target=programs.serve_forever, daemon=True).start()
    _say(announcement, service.describe().model_dump(mode="json"))
    evaluator.serve_forever()
    return 0


def _say(announcement: TextIO, document: dict[str, Any]) -> None:
    announcement.write(json.dumps(document) + "\n")
    announcement.flush()


if __name__ == "__main__":
    sys.exit(main())
