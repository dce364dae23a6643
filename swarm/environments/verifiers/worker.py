"""The process that runs verifiers, which many threads call through JSON lines."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTime
from itertools import count
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from swarm.errors import EnvironmentFailure, EnvironmentInvalid, NotFound, SwarmError
from swarm.processes.child import KILL_TIMEOUT_S

logger = logging.getLogger(__name__)

SCRIPT = Path(__file__).resolve().with_name("rollouts.py")
STOP_S = 20.0
"""Seconds in which the worker must end, more than rollouts.py gives its rollouts to clean up."""
LAST_WORDS_S = 5.0
KEPT_LINES = 50
LONGEST_REASON = 400
NOT_PASSED_ON = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
"""Environment variables that lead to the modules of this interpreter."""


class ModelCallFailed(Exception):
    """A failed model call of an agent, whose `status_code` tells a client whether to try again."""

    def __init__(self, status_code: int) -> None:
        super().__init__(f"status {status_code}")
        self.status_code = status_code


class WorkerFailure(BaseModel):
    """An error of the worker.

    `kind` is library, unknown, options or failed, and `status` is that of a failed model call.
    """

    kind: str
    message: str
    status: int | None = None


class Reply(BaseModel):
    """One line of the worker's output: a result or an error."""

    number: int
    result: dict[str, Any] | None = None
    error: WorkerFailure | None = None


class VerifiersWorker:
    """One process that runs the script."""

    def __init__(self, python: Path) -> None:
        """Start the process.

        Raises EnvironmentInvalid if there is no such interpreter.
        """
        try:
            self._process = subprocess.Popen(
                [str(python), str(SCRIPT)],
                env=_environment(python),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                # Ctrl-C in the terminal must reach this process alone, which then ends the worker in order.
                start_new_session=True,
            )
        except OSError as error:
            raise EnvironmentInvalid(f"{python} cannot be run: {error.strerror}", param="python") from error
        self.pid = self._process.pid
        self._lock = threading.Lock()
        self._numbers = count()
        self._pending: dict[int, Future[dict[str, Any]]] = {}
        self._reason: str | None = None
        self._output: deque[str] = deque(maxlen=KEPT_LINES)
        self._listener = threading.Thread(target=self._listen, name="verifiers-log", daemon=True)
        self._reader = threading.Thread(target=self._read, name="verifiers-replies", daemon=True)
        self._listener.start()
        self._reader.start()

    @property
    def has_ended(self) -> bool:
        return self._reason is not None

    def ask(self, method: str, parameters: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        """Send one request and return its result.

        Raises the error in the answer. Raises EnvironmentFailure if the worker ends before it answers, or takes longer
        than `limit_s` seconds, which ends it.
        """
        reply: Future[dict[str, Any]] = Future()
        with self._lock:
            if self._reason is not None:
                raise self._lost(self._reason)
            number = next(self._numbers)
            self._pending[number] = reply
            line = json.dumps({"number": number, "method": method, "parameters": dict(parameters)}) + "\n"
            assert self._process.stdin is not None
            # If the process has ended, the reader thread reports it.
            with contextlib.suppress(OSError, ValueError):
                self._process.stdin.write(line.encode())
                self._process.stdin.flush()
        try:
            return reply.result(limit_s)
        except NotInTime:
            self._kill()
            raise self._lost(f"did not answer within {limit_s:g} s and was ended") from None

    def stop(self) -> None:
        """End the process and everything that it runs, and wait for that.

        Idempotent.
        """
        with self._lock:
            self._end_input()
        self._await_end()
        self._reader.join(STOP_S)

    def _end_input(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def _await_end(self) -> int | None:
        """Return the exit status. A process that does not end in time is killed; None if it outlives even that."""
        for patience_s in (STOP_S, KILL_TIMEOUT_S):
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self._process.wait(patience_s)
            self._kill()
        return None

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as replies:
            for line in replies:
                try:
                    self._take(Reply.model_validate_json(line))
                except ValidationError:
                    self._output.append(f"it sent the invalid answer {line[:200]!r}")
                    self._kill()
                    break
        status = self._await_end()
        # Its last lines on standard error come through another pipe.
        self._listener.join(LAST_WORDS_S)
        reason = self._describe(status)
        with self._lock:
            self._end_input()
            self._reason = reason
            left = list(self._pending.values())
            self._pending.clear()
        for reply in left:
            reply.set_exception(self._lost(reason))

    def _take(self, reply: Reply) -> None:
        with self._lock:
            waiting = self._pending.pop(reply.number, None)
        if waiting is None:
            return
        if reply.error is None:
            waiting.set_result(reply.result or {})
        else:
            waiting.set_exception(_error_of(reply.error))

    def _listen(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            for line in lines:
                if text := line.decode(errors="replace").strip():
                    logger.debug("verifiers: %s", text)
                    self._output.append(text)

    def _describe(self, status: int | None) -> str:
        how = "cannot be ended, not even with SIGKILL" if status is None else f"ended with status {status}"
        if status is not None and status < 0:
            how = f"was killed by {signal.Signals(-status).name}"
        return f"{how}: {self._output[-1][:LONGEST_REASON]}" if self._output else how

    def _lost(self, reason: str) -> EnvironmentFailure:
        """Return an error whose cause, a lost connection, tells the client library to try again.

        Another attempt with another worker may succeed.
        """
        error = EnvironmentFailure(f"the worker of verifiers {reason}")
        error.__cause__ = ConnectionError(reason)
        return error


def _error_of(problem: WorkerFailure) -> SwarmError:
    message = " ".join(problem.message.split())
    if problem.kind == "unknown":
        return NotFound(message, param="env")
    if problem.kind in {"library", "options"}:
        return EnvironmentInvalid(message, param="env")
    error = EnvironmentFailure(message)
    if problem.status is not None:
        error.__cause__ = ModelCallFailed(problem.status)
    return error


def _environment(python: Path) -> dict[str, str]:
    """Return our environment without tokens of servers, and with the other interpreter's folder first in PATH."""
    passed = {
        name: value for name, value in os.environ.items() if name not in NOT_PASSED_ON and not name.startswith("SWARM_")
    }
    return passed | {"PATH": os.pathsep.join([str(python.absolute().parent), passed.get("PATH", os.defpath)])}
