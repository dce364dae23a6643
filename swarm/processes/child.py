"""Child processes that end with the process that started them, and how one is told from a later one of its number.

Place in the flow: whoever starts servers, programs or environments does it here. supervise.py stands around each. This
module knows nothing of what they do.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from io import BufferedReader, RawIOBase
from pathlib import Path
from typing import cast

_SUPERVISOR = Path(__file__).with_name("supervise.py")
KILLED = 128 + signal.SIGKILL
"""The exit code of a child that was killed: by the kernel for want of memory, or by a person. It did not end itself."""
STOP_TIMEOUT_S = 12.0
"""Beyond the grace that supervise.py gives, so that it is killed only if it hangs itself."""

OWN_END_S = 2.0
"""For a command that is spoken with, to end by itself when its standard input has closed."""
PARENT_FLAG = "--parent"

TAIL_BYTES = 4000

_OF_PROVIDERS = ("OPENAI_", "AZURE_OPENAI_", "ANTHROPIC_")
_PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "PYTHONPATH", "VIRTUAL_ENV", "SWARM_TOKEN", "HF_HOME")


class Child:
    """A running command. `pid` is its supervisor's; ending that ends the command and all its descendants."""

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
        """Standard output and error go to the files `out` and `errors`, which are appended to. Without `out`, the
        command is spoken with by `write` and `lines`, and should end when its standard input closes.

        `stop` calls `on_stop` once the process is gone.
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
        """The exit code, or None while it runs; 128 + signal where a signal ended it."""
        return self._process.poll()

    def wait(self, timeout_s: float) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout_s)
        return None

    def write(self, data: bytes) -> None:
        """To its standard input. One thread at a time; raises BrokenPipeError once it has ended or is being ended."""
        assert self._process.stdin is not None
        try:
            while data:
                data = data[self._process.stdin.write(data) :]
        except ValueError as error:
            raise BrokenPipeError("standard input is closed") from error

    def lines(self, limit: int) -> Iterator[bytes]:
        """What it writes to standard output, until it ends; a line longer than `limit` bytes comes in parts."""
        assert self._process.stdout is not None
        with BufferedReader(cast(RawIOBase, self._process.stdout)) as output:
            while line := output.readline(limit):
                yield line

    def stop(self) -> None:
        """End it and wait until it is gone. Idempotent."""
        with self._stopping:
            if self._process.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    self._process.stdin.close()
            if self._is_spoken_with and self.wait(OWN_END_S) is None:
                self._process.terminate()
            if self.wait(STOP_TIMEOUT_S) is None:
                self._process.kill()
                self._process.wait()
            if self._on_stop is not None:
                self._on_stop()
                self._on_stop = None


def server_environment() -> dict[str, str]:
    """What a server of our own gets to see: every setting of this process, which may be those of a cluster and its
    GPUs, but no token of other servers and nothing of a model provider."""
    return {
        name: value
        for name, value in os.environ.items()
        if name != "SWARM_TOKEN" and not name.startswith(_OF_PROVIDERS)
    }


def child_environment(**extra: str) -> dict[str, str]:
    """What a trusted child gets to see: paths and locale, never the key of a model provider."""
    environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    return environment | {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"), "PYTHONUNBUFFERED": "1"} | extra


def process_start(pid: int) -> str | None:
    """When the process began, as the system tells it; None if there is none. Only good for comparing."""
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
    """This process, so that another one on the same host can tell whether it is still alive."""
    return f"{socket.gethostname()}:{os.getpid()}:{process_start(os.getpid())}"


def is_dead(name: str) -> bool:
    """True if `name`, from `own_name`, is a process of this host that is gone; False also where that cannot be told."""
    host, _, process = name.partition(":")
    pid, _, started = process.partition(":")
    return host == socket.gethostname() and pid.isdigit() and process_start(int(pid)) != started


def end_stale(pid: int, started: str | None) -> bool:
    """End a process of an earlier life, if it is still the same one. Returns whether there was one."""
    if started is None or process_start(pid) != started:
        return False
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while process_start(pid) == started and time.monotonic() < deadline:
        time.sleep(0.05)
    if process_start(pid) == started:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    return True


def tail(path: Path, limit: int = TAIL_BYTES) -> str:
    """The last `limit` bytes of a text file; empty if it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - limit))
            return file.read().decode(errors="replace").strip()
    except OSError:
        return ""
