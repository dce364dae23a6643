"""The worker process as its parent sees it: started, called, watched, and stopped."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import signal
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from swarm.backends.process.wire import Message, Unpacker, join_deltas, pack, unpack_delta, unpack_error
from swarm.errors import EngineFailure, SwarmError
from swarm.processes.child import tail
from swarm.sampler import EngineLost
from swarm.types import FinishReason, TokenDelta

logger = logging.getLogger(__name__)

STOP_TIMEOUT_S = 5.0
"""Time for a worker to end by itself; it has nothing left to write then."""
LONGEST_SILENCE_S = 300.0
"""A worker with generations and no pending call hangs if it sends nothing for this long: no step takes longer."""
WATCHES_PER_SILENCE = 20
READ_BYTES = 2**18

Delivery = TokenDelta | SwarmError


class WorkerProcess:
    """One child process. Used from one asyncio event loop; can be started again after it has ended."""

    def __init__(
        self,
        command: Sequence[str],
        log_path: Path,
        env: Mapping[str, str] | None = None,
        *,
        longest_silence_s: float = LONGEST_SILENCE_S,
        stop_timeout_s: float = STOP_TIMEOUT_S,
    ) -> None:
        """Set the command. `env` is added to the environment of this process.

        On `stop` the worker has `stop_timeout_s` seconds to end.
        """
        self._command = tuple(command)
        self._log_path = log_path
        self._env = dict(env or {})
        self._longest_silence_s = longest_silence_s
        self._stop_timeout_s = stop_timeout_s
        self._ids = itertools.count(1)
        self._link: _Link | None = None
        self._starting = asyncio.Lock()

    @property
    def pid(self) -> int | None:
        """Process id of the running worker; None before the start and after the end."""
        link = self._link
        return None if link is None or link.exited.is_set() else link.process.pid

    @property
    def exited(self) -> asyncio.Event:
        """Event that is set when the latest worker has ended, wanted or not.

        Raises EngineFailure if no worker was started.
        """
        return self._require_link().exited

    @property
    def exit_reason(self) -> str | None:
        """Reason in one line, once `exited` is set or the worker is being killed."""
        return None if self._link is None else self._link.exit_reason

    async def died(self) -> str:
        """Wait until the latest worker has ended, and return the reason. Raise EngineFailure if none was started."""
        await self.exited.wait()
        return self.exit_reason or "the worker process ended"

    async def start(self) -> None:
        """Run the command unless it is running. Return before the worker has imported anything."""
        async with self._starting:
            if self._link is not None and self._link.exit_reason is not None:
                await self._link.finished()
            if self.pid is None:
                await self._start()

    async def _start(self) -> None:
        try:
            self._log_path.parent.mkdir(parents=True, exist_ok=True)
            with self._log_path.open("ab") as log:
                process = await asyncio.create_subprocess_exec(
                    *self._command,
                    stdin=PIPE,
                    stdout=PIPE,
                    stderr=log,
                    env={**os.environ, **self._env},
                    # A Ctrl-C in the terminal is meant for the parent, which then stops the worker in order.
                    start_new_session=True,
                )
        except OSError as error:
            raise EngineFailure(f"the worker process cannot be started: {error}") from error
        self._link = _Link(process, self._log_path, self._longest_silence_s)

    async def stop(self) -> None:
        """Close the worker's input and wait for its end; kill it if that takes too long. Idempotent."""
        if self._link is not None:
            await self._link.close(self._stop_timeout_s)

    async def call(self, op: str, args: object, *, timeout_s: float) -> Any:
        """Return the answer to one operation.

        Raise the worker's error, or EngineLost if the worker ends or exceeds the time limit. A worker beyond the limit
        is killed: only its end makes sure that it no longer changes the weights.
        """
        link = self._require_link()
        call_id = next(self._ids)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        link.calls[call_id] = answer
        try:
            async with asyncio.timeout(timeout_s):
                await link.send({"op": op, "id": call_id, "args": args})
                return await answer
        except TimeoutError:
            link.kill(f"the worker gave no answer to {op!r} within {timeout_s:g} s")
            raise EngineLost(f"the worker gave no answer to {op!r} within {timeout_s:g} s and was ended") from None
        finally:
            link.calls.pop(call_id, None)

    async def open_stream(self, op: str, args: object) -> TokenStream:
        """Begin an operation that answers with tokens until a finish reason or an error."""
        link = self._require_link()
        stream = TokenStream(link, next(self._ids))
        link.register(stream)
        try:
            await link.send({"op": op, "id": stream.id, "args": args})
        except BaseException:
            stream.close()
            raise
        return stream

    def _require_link(self) -> _Link:
        if self._link is None:
            raise EngineFailure("the worker process is not started")
        return self._link


class TokenStream:
    """Tokens of one generation as they arrive."""

    def __init__(self, link: _Link, stream_id: int) -> None:
        self.id = stream_id
        self._link = link
        self._inbox: asyncio.Queue[Delivery] = asyncio.Queue()

    def deliver(self, delivery: Delivery) -> None:
        self._inbox.put_nowait(delivery)

    async def read(self) -> TokenDelta:
        """Return all arrived tokens, at least one piece, or raise the worker's error.

        The watch of the link limits the wait.
        """
        pieces = [self._check(await self._inbox.get())]
        while not self._inbox.empty():
            pieces.append(self._check(self._inbox.get_nowait()))
        return join_deltas(pieces)

    def close(self) -> None:
        """Tell the worker to abort, unless the generation or the worker is over."""
        if self._link.streams.pop(self.id, None) is not None:
            with contextlib.suppress(EngineLost):
                self._link.post({"op": "abort", "id": self.id, "args": None})

    @staticmethod
    def _check(delivery: Delivery) -> TokenDelta:
        if isinstance(delivery, SwarmError):
            raise delivery
        return delivery


class _Link:
    """One run of the worker: its pipes, and the pending calls and streams."""

    def __init__(self, process: Process, log_path: Path, longest_silence_s: float) -> None:
        self.process = process
        self.calls: dict[int, asyncio.Future[Any]] = {}
        self.streams: dict[int, TokenStream] = {}
        self.exited = asyncio.Event()
        self.exit_reason: str | None = None
        self._log_path = log_path
        self._longest_silence_s = longest_silence_s
        self._closing = False
        self._last_frame = time.monotonic()
        self._reader = asyncio.create_task(self._read())
        self._watcher = asyncio.create_task(self._watch())

    def register(self, stream: TokenStream) -> None:
        if not self.streams:
            self._last_frame = time.monotonic()
        self.streams[stream.id] = stream

    async def send(self, message: Message) -> None:
        """Write a message, and wait while the pipe is full. Raise EngineLost if the worker has ended."""
        self.post(message)
        assert self.process.stdin is not None
        try:
            await self.process.stdin.drain()
        except ConnectionError as error:
            raise EngineLost(self.exit_reason or f"the worker's input is closed: {error}") from error

    def post(self, message: Message) -> None:
        """Write a message without waiting; it is lost if the worker ends meanwhile.

        Raise EngineLost if the worker has ended.
        """
        assert self.process.stdin is not None
        # A dead worker's input closes before its exit is seen, and a closed pipe accepts no message.
        if self.exited.is_set() or self.process.stdin.is_closing():
            raise EngineLost(self.exit_reason or "the worker has ended")
        self.process.stdin.write(pack(message))

    def kill(self, reason: str) -> None:
        self.exit_reason = self.exit_reason or reason
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()

    async def close(self, timeout_s: float) -> None:
        self._closing = True
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            async with asyncio.timeout(timeout_s):
                await self.exited.wait()
        except TimeoutError:
            self.kill("the worker did not end in time and was killed")
        await self.finished()

    async def finished(self) -> None:
        await self.exited.wait()
        await asyncio.gather(self._reader, self._watcher)

    async def _read(self) -> None:
        """Dispatch frames until the pipe ends, then fail all pending calls and streams."""
        assert self.process.stdout is not None
        unpacker = Unpacker()
        try:
            while data := await self.process.stdout.read(READ_BYTES):
                self._last_frame = time.monotonic()
                for message in unpacker.feed(data):
                    self._dispatch(message)
        except Exception as error:
            # A worker that sends unreadable data cannot be trusted further.
            logger.exception("unreadable frame from the worker")
            self.kill(f"the worker sent an unreadable frame: {error}")
        status = await self.process.wait()
        self.exit_reason = self.exit_reason or self._describe_exit(status)
        self.exited.set()
        self._fail_waiting()

    async def _watch(self) -> None:
        """Kill a worker that owes tokens and is silent. Calls have their own limits."""
        while not self.exited.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._longest_silence_s / WATCHES_PER_SILENCE):
                    await self.exited.wait()
            silence = time.monotonic() - self._last_frame
            if self.streams and not self.calls and silence > self._longest_silence_s:
                self.kill(f"the worker was silent for {silence:.0f} s with {len(self.streams)} generations under way")

    def _dispatch(self, message: Message) -> None:
        if "tokens" in message:
            version = message["version"]
            for stream_id, *packed in message["tokens"]:
                self._deliver(stream_id, unpack_delta(packed, version))
            return
        call_id = message["id"]
        error = unpack_error(message["error"]) if "error" in message else None
        if error is not None and (stream := self.streams.pop(call_id, None)) is not None:
            stream.deliver(error)
        elif (answer := self.calls.get(call_id)) is not None and not answer.done():
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(message["result"])

    def _deliver(self, stream_id: int, delta: TokenDelta) -> None:
        stream = self.streams.get(stream_id)
        if stream is None:
            return
        stream.deliver(delta)
        if delta.finish_reason is not None:
            del self.streams[stream_id]

    def _fail_waiting(self) -> None:
        reason = self.exit_reason or "the worker has ended"
        for answer in self.calls.values():
            if not answer.done():
                answer.set_exception(EngineLost(reason))
        for stream in self.streams.values():
            stream.deliver(TokenDelta((), (), (), FinishReason.ABORT) if self._closing else EngineLost(reason))
        self.streams.clear()

    def _describe_exit(self, status: int) -> str:
        if self._closing:
            return "the worker was stopped"
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        last = "".join(tail(self._log_path).splitlines()[-1:])
        return f"the worker process {how}" + (f"; last line of {self._log_path}: {last}" if last else "")
