"""Notes when each function of the service is first called, in every process that finds this folder on its path.

Place in the flow: Python imports a module of this name at its start. Each line of CALL_RECORD/<pid> has nanoseconds of
the monotonic clock, a file below swarm/ and a function. The record of the main thread begins with SIGUSR1, which also
begins every later record: what is called from then on is noted again.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

INSIDE = f"{os.sep}swarm{os.sep}"


def begin(directory: Path) -> None:
    record = os.open(directory / str(os.getpid()), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    noted: set[Any] = set()

    def note(frame: Any, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or code in noted:
            return
        noted.add(code)
        _root, found, path = code.co_filename.rpartition(INSIDE)
        if found:
            os.write(record, f"{time.monotonic_ns()} swarm/{path} {code.co_qualname}\n".encode())

    def begin_anew(*_: object) -> None:
        # Not from the start: the libraries that a worker imports would take several times as long.
        sys.setprofile(note)
        noted.clear()
        os.write(record, f"{time.monotonic_ns()} - begun\n".encode())

    signal.signal(signal.SIGUSR1, begin_anew)
    threading.setprofile(note)


if directory := os.environ.get("CALL_RECORD"):
    begin(Path(directory))
