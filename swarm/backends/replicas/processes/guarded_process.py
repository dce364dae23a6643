"""The processes of one replica as the server sees them: started, waited for, and ended to the last one.

Place in the flow: replica.py runs one `GuardedProcess` per start. It receives the command and knows nothing of samplers
or HTTP. The command is the guard, and the server keeps the other end of the guard's input. However the server dies, the
guard then ends the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from swarm.errors import EngineFailure
from swarm.sampler import EngineLost

GUARD_START_S: Final = 30.0
"""The guard is a small script, but a busy machine may be slow to read its interpreter."""
END_MARGIN_S: Final = 20.0
"""Extra time for the guard beyond the grace of its command."""
LOG_TAIL_BYTES: Final = 16_384
LONGEST_REASON: Final = 400
ERROR_MARKS: Final = ("Error", "error:", "Exception", "Killed")


class GuardedProcess:
    """One run of one command. Used from one asyncio event loop."""

    def __init__(
        self, guard: Process, first_line: Sequence[str], log_path: Path, log_start: int, grace_s: float
    ) -> None:
        """Watch a guard whose command runs.

        `first_line` is the guard's first line: the process id of the group leader, and where the command runs.
        """
        self.pid = int(first_line[0])
        self.place = tuple(first_line[1:])
        self.exited = asyncio.Event()
        self.exit_status: int | None = None
        self._guard = guard
        self._log_path = log_path
        self._log_start = log_start
        self._grace_s = grace_s
        self._reason: str | None = None
        self._watch = asyncio.create_task(self._wait())

    @property
    def reason(self) -> str:
        """Reason of the end, in one line."""
        return self._reason or "it is running"

    async def stop(self) -> None:
        """End the process in order, and wait for its end. Idempotent."""
        self._reason = self._reason or "it was stopped"
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        try:
            async with asyncio.timeout(self._grace_s + END_MARGIN_S):
                await asyncio.shield(self._watch)
        except TimeoutError:
            self.kill("it did not end in time")
            await self._watch

    def kill(self, reason: str) -> None:
        """End the process now. `exited` is set once it has ended."""
        self._reason = self._reason or reason
        # The guard notices that its command has ended, and ends the rest of the group.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    async def _wait(self) -> None:
        status = await self._guard.wait()
        if status < 0:
            # If the guard was killed, the group still runs.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        self.exit_status = status
        self._reason = self._reason or self._describe(status)
        self.exited.set()

    def _describe(self, status: int) -> str:
        killed_by = -status if status < 0 else status - 128 if status > 128 else 0
        how = f"was killed by {signal.Signals(killed_by).name}" if killed_by else f"ended with status {status}"
        output = last_words(self._log_path, self._log_start)
        return how + (f": {output} ({self._log_path})" if output else f" (see {self._log_path})")


async def start_process(
    command: Sequence[str],
    environment: Mapping[str, str],
    log_path: Path,
    *,
    grace_s: float,
    start_limit_s: float = GUARD_START_S,
    remedy: str = "",
) -> GuardedProcess:
    """Start a command, and return once it runs.

    Raise EngineFailure with the remedy if it cannot run, and EngineLost if the guard does not answer.
    """
    try:
        log_path.parent.mkdir(parents=True, exist_ok=True)
        with log_path.open("ab") as log:
            log_start = log.tell()
            guard = await asyncio.create_subprocess_exec(
                *command,
                stdin=PIPE,
                stdout=PIPE,
                stderr=log,
                env=dict(environment),
                cwd=log_path.parent,
                # A Ctrl-C in the terminal is meant for the server, which then ends its replicas in order.
                start_new_session=True,
            )
    except OSError as error:
        raise EngineFailure(f"{command[0]} cannot be run: {error.strerror}{remedy}") from error
    assert guard.stdout is not None
    try:
        async with asyncio.timeout(start_limit_s):
            line = await guard.stdout.readline()
    except TimeoutError:
        await _end(guard, grace_s)
        output = last_words(log_path, log_start)
        raise EngineLost(f"a replica was not started in time{f': {output}' if output else ''}") from None
    except BaseException:
        await _end(guard, grace_s)
        raise
    words = line.decode(errors="replace").split()
    if not words or not words[0].isdigit():
        status = await guard.wait()
        reason = f"a replica cannot be run: {last_words(log_path, log_start) or 'its guard ended'}"
        raise EngineLost(reason) if status < 0 or status > 128 else EngineFailure(reason)
    return GuardedProcess(guard, words, log_path, log_start, grace_s)


async def _end(guard: Process, grace_s: float) -> None:
    """End a guard and everything that it has started."""
    assert guard.stdin is not None
    guard.stdin.close()
    try:
        async with asyncio.timeout(grace_s + END_MARGIN_S):
            await guard.wait()
    except TimeoutError:
        guard.kill()
        await guard.wait()


def last_words(log_path: Path, start: int) -> str:
    """Return the last error in the log after byte `start`, or else its last line."""
    try:
        with log_path.open("rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(log.tell() - LOG_TAIL_BYTES, start))
            lines = [line.strip() for line in log.read().decode(errors="replace").splitlines() if line.strip()]
    except OSError:
        return ""
    telling = [line for line in lines if any(mark in line for mark in ERROR_MARKS)]
    return (telling or lines or [""])[-1][:LONGEST_REASON]
