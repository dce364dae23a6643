"""One replica: started, called, given weights, put to sleep, watched, ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from enum import StrEnum
from typing import Final

from swarm.backends.replicas.adapter import ReplicaPlan, SamplerRequest, SamplerServer, WeightFile, WeightSource
from swarm.backends.replicas.generation import PieceStream
from swarm.backends.replicas.processes.launcher import GuardedProcess, launch
from swarm.backends.waits import cancelled, first_of
from swarm.errors import EngineFailure, SwarmError
from swarm.sampler import EngineLost

logger = logging.getLogger(__name__)

QUIET_S: Final = 0.01
"""A paused replica has sent all sampled tokens when nothing arrives for this long, twice."""
LONGEST_DRAIN_S: Final = 5.0
PORT_TAKEN: Final = "ddress already in use"


class ReplicaState(StrEnum):
    """States of a replica.

    SERVING replicas receive requests, also while their weights change. IDLE replicas have the base model and wait for a
    broadcast. The process of an ENDED replica is gone. A GIVEN_UP replica is not started any more.
    """

    STARTING = "starting"
    SERVING = "serving"
    IDLE = "idle"
    ASLEEP = "asleep"
    ENDED = "ended"
    GIVEN_UP = "given up"


class Replica:
    """One replica. Used from one asyncio event loop; can be booted again after it has ended."""

    def __init__(self, index: int, plan: ReplicaPlan, changed: Callable[[], None]) -> None:
        """Create a replica. `changed` is called whenever its state or version has changed."""
        self.index = index
        self.context_length = 0
        self._plan = plan
        self._changed = changed
        self._state = ReplicaState.ENDED
        self._version = 0
        self._has_base = True
        self._streams: set[PieceStream] = set()
        self._process: GuardedProcess | None = None
        self._server: SamplerServer | None = None
        self._turn = asyncio.Lock()
        self._doubt = asyncio.Event()
        self._condemned = asyncio.Event()
        self._reason = ""
        self._arrivals = 0
        self._last_arrival = 0.0
        self._ending: asyncio.Task[None] | None = None

    @property
    def label(self) -> str:
        """Name in messages."""
        return f"{self._plan.adapter.name} replica {self.index}"

    @property
    def state(self) -> ReplicaState:
        return self._state

    @property
    def version(self) -> int:
        """Weight version that new tokens are sampled with."""
        return self._version

    @property
    def load(self) -> int:
        """Number of running requests."""
        return len(self._streams)

    @property
    def pid(self) -> int | None:
        """Process id of the leader of the replica's process group; None without a process."""
        return None if self._process is None or self._process.exited.is_set() else self._process.pid

    @property
    def base_url(self) -> str | None:
        return None if self._server is None else self._server.base_url

    def move(self, state: ReplicaState) -> None:
        self._state = state
        self._changed()

    async def boot(self, seed: int) -> None:
        """Start the replica with the base model, and wait until it answers. The caller decides when it serves.

        Raise EngineFailure if the server ends by itself, and EngineLost if it is killed or takes too long. After an
        error no process is left.
        """
        await self._until_ended()
        self._condemned.clear()
        self._doubt.clear()
        self._reason, self._version, self._has_base = "", 0, True
        self.move(ReplicaState.STARTING)
        try:
            async with asyncio.timeout(self._plan.limits.boot_timeout_s):
                self._process, self._server = await launch(self._plan, self.index, seed)
                await self._until_ready()
        except TimeoutError:
            await self.end("it did not start in time")
            raise EngineLost(f"{self.label} did not start within {self._plan.limits.boot_timeout_s:g} s") from None
        except BaseException:
            await self.end("its start was broken off")
            raise

    def open(self, request: SamplerRequest) -> PieceStream:
        """Begin a completion. Raise EngineLost if there is no process to begin it on."""
        stream = PieceStream(self.index, self._reached(), request, self._note_arrival, self._streams.discard)
        self._streams.add(stream)
        return stream

    def break_off(self, reason: str) -> None:
        """Fail the running completions with EngineLost."""
        for stream in list(self._streams):
            stream.fail(EngineLost(reason))

    async def take(self, source: WeightSource) -> None:
        """Sample with these weights from now on. Running requests pause meanwhile and continue with them.

        Raise SwarmError on failure. The weights of the replica are then unknown, and it must be ended.
        """
        async with self._turn:
            await self._reached().pause()
            await self._reached().load(source)
            await self._drain()
            self._version, self._has_base = source.version, False
            await self._reached().resume()
        self._changed()

    async def take_base(self) -> None:
        """Sample with the model's own weights again, version 0. Raise SwarmError like `take`."""
        if self._has_base:
            await self._reached().forget_cache()
        else:
            await self.take(WeightFile(self._plan.settings.model_directory, 0))
            self._has_base = True

    async def rest(self) -> None:
        """Give the devices back. Running requests continue after `wake`. Raise SwarmError."""
        async with self._turn:
            await self._reached().sleep()
            self.move(ReplicaState.ASLEEP)

    async def wake(self) -> None:
        """Take the devices again. Raise SwarmError."""
        async with self._turn:
            await self._reached().wake()
            self.move(ReplicaState.SERVING)

    def condemn(self, reason: str) -> None:
        """Ask the pool to end the replica and to start it again."""
        self._reason = self._reason or reason
        self._condemned.set()

    @property
    def in_doubt(self) -> bool:
        """True if the replica is being checked after an error. It receives no requests meanwhile."""
        return self._doubt.is_set()

    def doubt(self) -> None:
        """Check the replica's health at once, after an error on it."""
        self._doubt.set()

    async def until_broken(self) -> str:
        """Wait until the replica must be started again, and return the reason."""
        assert self._process is not None
        try:
            await first_of(self._process.exited.wait(), self._condemned.wait(), self._watch())
        except Exception as error:
            logger.exception("%s cannot be checked", self.label)
            self._reason = self._reason or f"it cannot be checked: {error}"
        return self._reason or self._process.reason

    async def end(self, reason: str, *, in_order: bool = False) -> None:
        """End the process; running requests fail with EngineLost. Idempotent.

        The end is completed even if the caller is cancelled.
        """
        self._reason = self._reason or reason
        self.move(ReplicaState.ENDED)
        self.break_off(f"{self.label}: {self._reason}")
        process, self._process = self._process, None
        server, self._server = self._server, None
        if process is not None and not in_order:
            process.kill(reason)
        if process is not None or server is not None:
            self._ending = asyncio.create_task(_clean_up(process, server))
        await self._until_ended()

    async def _until_ended(self) -> None:
        if self._ending is not None:
            await asyncio.shield(self._ending)

    async def _until_ready(self) -> None:
        assert self._process is not None and self._server is not None
        exited = asyncio.create_task(self._process.exited.wait())
        ready = asyncio.create_task(self._server.until_ready())
        try:
            await asyncio.wait({exited, ready}, return_when=asyncio.FIRST_COMPLETED)
            if exited.done():
                raise self._death_at_start(self._process)
            await ready
        finally:
            await cancelled(exited, ready)
        self.context_length = await self._server.inspect()

    def _death_at_start(self, process: GuardedProcess) -> SwarmError:
        reason = f"{self.label} {process.reason}"
        was_killed = process.exit_status is None or process.exit_status < 0 or process.exit_status > 128
        return EngineLost(reason) if was_killed or PORT_TAKEN in reason else EngineFailure(reason)

    async def _drain(self) -> None:
        """Wait until the tokens sampled before the pause have arrived: they still have the old version.

        It waits twice, because a server that did not run for a while finds the time over and the tokens unread.
        """
        give_up_at = time.monotonic() + LONGEST_DRAIN_S
        quiet = 0
        while quiet < 2 and self._streams and time.monotonic() < give_up_at:
            before = self._arrivals
            await asyncio.sleep(QUIET_S)
            quiet = quiet + 1 if self._arrivals == before else 0

    def _note_arrival(self) -> int:
        self._arrivals += 1
        self._last_arrival = time.monotonic()
        return self._version

    async def _watch(self) -> None:
        """Check the health periodically, and at once in doubt.

        Return when the replica is broken, with the reason set.
        """
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._plan.limits.watch_interval_s):
                    await self._doubt.wait()
            # The holder of the lock notices failures by its own deadlines.
            if self._server is not None and self._state is ReplicaState.SERVING and not self._turn.locked():
                fault = await self._find_fault(self._server)
                if fault is not None:
                    self._reason = self._reason or fault
                    return
            self._clear_doubt()

    async def _find_fault(self, server: SamplerServer) -> str | None:
        limit_s = self._plan.limits.hang_s
        try:
            async with self._turn, asyncio.timeout(limit_s):
                await server.check()
        except TimeoutError:
            # A replica that sends tokens is only busy.
            is_busy = time.monotonic() - self._last_arrival < limit_s
            return None if is_busy else f"it did not say within {limit_s:g} s how it fares"
        except SwarmError as error:
            return error.message
        return None

    def _clear_doubt(self) -> None:
        if self._doubt.is_set():
            self._doubt.clear()
            self._changed()

    def _reached(self) -> SamplerServer:
        """Return the server. Raise EngineLost if the replica has ended."""
        if self._server is None:
            raise EngineLost(self._reason or "the replica has ended")
        return self._server


async def _clean_up(process: GuardedProcess | None, server: SamplerServer | None) -> None:
    try:
        # First, because a server that ends in order waits for its open connections.
        if server is not None:
            await server.close()
    finally:
        if process is not None:
            await process.stop()
