"""Child processes that end with their parent, the line that says that one is ready, and names of processes."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from enum import StrEnum
from io import BufferedReader, RawIOBase
from pathlib import Path
from typing import Any, TextIO, cast

logger = logging.getLogger(__name__)

_SUPERVISOR = Path(__file__).with_name("supervise.py")
KILLED = 128 + signal.SIGKILL
"""Exit code of a child that was killed from outside: by the kernel for lack of memory, or by a person."""
STOP_TIMEOUT_S = 12.0
"""Seconds before the supervisor is killed. This is more than the grace that supervise.py gives its command."""
KILL_TIMEOUT_S = 5.0
"""Seconds in which a killed process must be gone. One that waits in the kernel, as for a broken disk, may stay."""
OWN_END_S = 2.0
"""Seconds in which a command that reads standard input may end by itself after that has closed."""
PARENT_FLAG = "--parent"

TAIL_BYTES = 4000

_OF_PROVIDERS = ("OPENAI_", "AZURE_OPENAI_", "ANTHROPIC_")
_PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "PYTHONPATH", "VIRTUAL_ENV", "SWARM_TOKEN", "HF_HOME")


def python_module(module: str, *arguments: str, python: str | Path | None = None) -> list[str]:
    """Return the command that runs a module with `arguments`, by this interpreter unless `python` names another one.

    The module imports nothing from its working directory. A user's file `types.py` or `cmd.py` there would hide a
    module of the standard library.
    """
    return [str(python or sys.executable), "-P", "-m", module, *arguments]


class Child:
    """A running command under its supervisor, whose process id is `pid`.

    When the supervisor ends, so do the command and all its descendants.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        out: Path | None,
        errors: Path,
        on_stop: Callable[[], None] | None = None,
    ) -> None:
        """Start the command, with its standard output and error appended to the files `out` and `errors`.

        Without `out`, `write` and `lines` communicate with the command, which should end when its standard input
        closes. `stop` calls `on_stop` once the process is gone.
        """
        self._on_stop = on_stop
        self._stopping = threading.Lock()
        supervisor = [sys.executable, "-I", "-S", str(_SUPERVISOR)]
        if out is None:
            supervisor += [PARENT_FLAG, str(os.getpid())]
        with ExitStack() as files:
            self._process = subprocess.Popen(
                [*supervisor, *argv],
                env=dict(env),
                cwd=cwd,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if out is None else files.enter_context(out.open("ab")),
                stderr=files.enter_context(errors.open("ab")),
                start_new_session=True,
                # Unbuffered: a pipe that is full must not keep another thread from closing it.
                bufsize=0,
            )
        self._is_spoken_with = out is None
        self.pid = self._process.pid
        self.started = process_start(self.pid)

    def poll(self) -> int | None:
        """Return the exit code, which is 128 + signal if a signal ended the command, or None while it runs."""
        return self._process.poll()

    def wait(self, timeout_s: float) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout_s)
        return None

    def write(self, data: bytes) -> None:
        """Write to the command's standard input, from one thread at a time.

        Raises BrokenPipeError once the command has ended or is being stopped.
        """
        assert self._process.stdin is not None
        try:
            while data:
                data = data[self._process.stdin.write(data) :]
        except ValueError as error:
            raise BrokenPipeError("standard input is closed") from error

    def lines(self, limit: int) -> Iterator[bytes]:
        """Yield the lines of its standard output until it ends; a line longer than `limit` bytes comes in parts."""
        assert self._process.stdout is not None
        with BufferedReader(cast(RawIOBase, self._process.stdout)) as output:
            while line := output.readline(limit):
                yield line

    def stop(self) -> None:
        """End the command and wait until it is gone, or has outlived SIGKILL for KILL_TIMEOUT_S. Idempotent."""
        with self._stopping:
            if self._process.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    self._process.stdin.close()
            if self._is_spoken_with and self.wait(OWN_END_S) is None:
                self._process.terminate()
            if self.wait(STOP_TIMEOUT_S) is None:
                kill(self._process)
            if self._on_stop is not None:
                self._on_stop()
                self._on_stop = None


def kill(process: subprocess.Popen[bytes]) -> int | None:
    """Kill a process and return its status once it is gone. After KILL_TIMEOUT_S, log that it stays and return None."""
    process.kill()
    try:
        return process.wait(KILL_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        logger.error("process %d is still there %g s after SIGKILL: it is left alone", process.pid, KILL_TIMEOUT_S)
        return None


def server_environment() -> dict[str, str]:
    """Return the environment for a server of our own.

    It has every variable of this process, because some may configure a cluster and its GPUs. It leaves out the token of
    other servers and the variables of model providers.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if name != "SWARM_TOKEN" and not name.startswith(_OF_PROVIDERS)
    }


def child_environment(**extra: str) -> dict[str, str]:
    """Return the environment for a trusted child: paths and locale, and never the key of a model provider."""
    environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    return environment | {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"), "PYTHONUNBUFFERED": "1"} | extra


def process_start(pid: int) -> str | None:
    """Return the start of a process in the system's own format, for comparison only, or None if there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        fields = stat.rpartition(")")[2].split()
        # A zombie has ended.
        return None if fields[0] == "Z" else fields[19]
    except (OSError, IndexError):
        return None if Path("/proc/self/stat").exists() else _start_from_ps(pid)


def _start_from_ps(pid: int) -> str | None:
    try:
        asked = subprocess.run(
            ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return "-".join(asked.stdout.split()) or None


def own_name() -> str:
    """Return a name of this process by which others on the same host can tell whether it is still alive."""
    return f"{socket.gethostname()}:{os.getpid()}:{process_start(os.getpid())}"


def is_dead(name: str) -> bool:
    """Return whether `name`, from `own_name`, is a process of this host that is gone.

    Returns False if that cannot be told.
    """
    host, _, process = name.partition(":")
    pid, _, started = process.partition(":")
    return host == socket.gethostname() and pid.isdigit() and process_start(int(pid)) != started


class StaleProcess(StrEnum):
    """The fate of a process that an earlier run may have left behind."""

    GONE = "was gone already"
    ENDED = "was ended"
    STAYS = "cannot be ended, not even with SIGKILL"


def end_stale(pid: int, started: str | None) -> StaleProcess:
    """End a process that an earlier run left behind, if it is still the same one: politely first, then by force."""
    if started is None or process_start(pid) != started:
        return StaleProcess.GONE
    for number, patience_s in ((signal.SIGTERM, STOP_TIMEOUT_S), (signal.SIGKILL, KILL_TIMEOUT_S)):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            if process_start(pid) != started:
                return StaleProcess.ENDED
            time.sleep(0.05)
    return StaleProcess.STAYS


def tail(path: Path, limit: int = TAIL_BYTES) -> str:
    """Return the last `limit` bytes of a text file, or an empty string if it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - limit))
            return file.read().decode(errors="replace").strip()
    except OSError:
        return ""


POLL_S = 0.02


class NoAnnouncement(Exception):
    """A child process that ended without its line, or took too long to write it.

    The message is the child's last line on standard error. `was_killed` says that a signal killed the child first.
    """

    def __init__(self, message: str, *, was_killed: bool = False) -> None:
        super().__init__(message)
        self.was_killed = was_killed


def claim_stdout() -> TextIO:
    """Return standard output for this process's own lines, and redirect what other code prints to standard error."""
    claimed = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return claimed


def await_announcement(
    child: Child, out: Path, errors: Path, timeout_s: float, *, is_given_up: Callable[[], bool] = lambda: False
) -> dict[str, Any]:
    """Return the JSON document that the child writes as the first line of the file `out`.

    Raises NoAnnouncement if the child ends or `timeout_s` seconds pass without one, or once `is_given_up` returns true.
    The child itself is not stopped.
    """
    deadline, code = time.monotonic() + timeout_s, None
    while time.monotonic() < deadline and not is_given_up():
        # Poll before reading, so that the line of a child that ends right after it is not missed.
        code = child.poll()
        line, newline, _ = out.read_text(encoding="utf-8").partition("\n")
        if newline:
            return json.loads(line)
        if code is not None:
            break
        time.sleep(POLL_S)
    if code == KILLED:
        raise NoAnnouncement("it was killed", was_killed=True)
    lines = tail(errors).splitlines()
    silence = f"it wrote nothing within {timeout_s:.0f} s" if code is None else f"it ended with exit code {code}"
    raise NoAnnouncement(lines[-1] if lines else silence)
