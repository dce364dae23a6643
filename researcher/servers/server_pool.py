"""The swarm servers of a study, own or named: which of them answer, and which are free."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from weakref import WeakSet

from researcher.errors import ServerInUse, ServerProblem
from researcher.record.runs import PROJECT
from researcher.servers.server import CircuitBreaker, LeaseHolder, refuse_if_used, start_own_server
from swarm import ServerUnreachable, SwarmClient, SwarmError, Unavailable
from swarm.errors import LeaseLost, LedgerError
from swarm.processes import Child, usable_cores

logger = logging.getLogger(__name__)

PROBE_TIMEOUT_S = 3.0
POLL_TIMEOUT_S = 10.0
BEAT_S = 5.0
MAX_FAILED_BOOTS = 4
"""Failed starts in a row after which an own server counts as broken."""
LONGEST_REST_S = 60.0


_IDLE = frozenset({"OFFLINE", "FAILED"})
_OUTAGES = (ServerUnreachable, Unavailable, LeaseLost, LedgerError, ServerInUse)


def is_outage(error: BaseException) -> bool:
    """Return whether an error only says that a server cannot be used now, and nothing about the run that met it."""
    return isinstance(error, _OUTAGES)


def connect(url: str, token: str | None, *, timeout_s: float = POLL_TIMEOUT_S, lease: int | None = None) -> SwarmClient:
    """Return a client for one server; its commands carry the fence `lease`.

    Raises ServerProblem if `url` is not an address.
    """
    try:
        return SwarmClient(url, token=token, client_id="researcher", timeout=timeout_s, lease=lease)
    except SwarmError as error:
        raise ServerProblem(str(error)) from error


def foreign_token() -> str | None:
    """Return the token of servers that somebody else started, from SWARM_TOKEN."""
    return os.environ.get("SWARM_TOKEN")


def check_servers(urls: Sequence[str]) -> None:
    """Check that at least one server answers and that all that answer are free.

    Raises ServerProblem, naming the first server that is not free, or ServerInUse if another study uses it.
    """
    silent: list[ServerProblem] = []
    for url in urls:
        try:
            _check_server(url)
        except ServerUnreachable as error:
            silent.append(ServerProblem(str(error)))
    if silent and len(silent) == len(urls):
        raise silent[0]


def _check_server(url: str) -> None:
    """Raise ServerProblem for a server that is not free, ServerUnreachable for one that does not answer."""
    with connect(url, foreign_token(), timeout_s=PROBE_TIMEOUT_S) as client:
        try:
            status = client.status()
        except ServerUnreachable:
            raise
        except SwarmError as error:
            raise ServerProblem(str(error) if url in str(error) else f"server {url}: {error}") from error
        refuse_if_used(client, status.lease)
    if status.state not in _IDLE and status.project_name != PROJECT:
        raise ServerProblem(
            f"server {url} is busy with {status.project_name}/{status.experiment_name}: stop that first "
            f"(swarm stop --engine-only --url {url}), or name another server"
        )


@dataclass(slots=True)
class Slot:
    """One place to train.

    `child` is None for a server that somebody else started. `url` is None until an own server has started for the first
    time. `fence` is that of the study's lease. `clients` are those that the pool has handed out.

    `failed_boots` counts the failed starts of an own server in a row. `failures` counts the failed runs in a row. After
    those the server gets no run until `rests_until`.
    """

    index: int
    url: str | None = None
    child: Child | None = None
    is_local: bool = True
    is_free: bool = True
    fence: int | None = None
    clients: WeakSet[SwarmClient] = field(default_factory=WeakSet[SwarmClient])
    breaker: CircuitBreaker = field(default_factory=CircuitBreaker)
    woken: threading.Event = field(default_factory=threading.Event)
    failed_boots: int = 0
    failures: int = 0
    rests_until: float = 0.0

    @property
    def name(self) -> str:
        return self.url or f"own server {self.index}"

    @property
    def is_answering(self) -> bool:
        return self.url is not None and self.breaker.is_closed


@dataclass(frozen=True, slots=True)
class ServerChange:
    """A change of one server: it stopped answering for a `reason`, or answers again after `out_s` seconds."""

    name: str
    is_back: bool
    reason: str = ""
    out_s: float = 0.0


class ServerPool:
    """The slots of a study.

    Only the graph's thread uses the pool; one background thread per slot looks after its server.
    """

    def __init__(
        self,
        *,
        urls: Sequence[str] = (),
        local: int = 0,
        home: Path,
        holder: LeaseHolder,
        own_token: str | None = None,
        max_out_s: float | None = None,
        start_options: Sequence[str] = (),
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """Build slots for the named servers at `urls`, or for `local` own servers with their files under `home`.

        With `own_token`, own servers refuse requests without it. They get the `start_options` of `swarm start`, which
        say what they record. `on_change` is called from another thread whenever a server goes away or comes back.
        """
        self._home = home
        self._holder = holder
        self._own_token = own_token
        self._max_out_s = max_out_s
        self._start_options = start_options
        self._on_change = on_change
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []
        self._changes: deque[ServerChange] = deque()
        self._slots = [Slot(index, url=url, is_local=False) for index, url in enumerate(urls)] or [
            Slot(index) for index in range(local)
        ]

    @property
    def slots(self) -> tuple[Slot, ...]:
        return tuple(self._slots)

    @property
    def is_any_answering(self) -> bool:
        return any(slot.is_answering for slot in self._slots)

    @property
    def is_any_free(self) -> bool:
        """True if a server that answers has no run, though it may have to rest before the next one."""
        return any(slot.is_free and slot.is_answering for slot in self._slots)

    def token_of(self, url: str) -> str | None:
        """Return the token for the server at `url`: the own token for own servers, SWARM_TOKEN for others."""
        slot = self._at(url)
        return self._own_token if slot is not None and slot.is_local else foreign_token()

    def connect(self, url: str) -> SwarmClient:
        """Return a client whose commands carry the study's lease. Raises ServerProblem if `url` is not an address."""
        slot = self._at(url)
        client = connect(url, self.token_of(url), lease=None if slot is None else slot.fence)
        if slot is not None:
            slot.clients.add(client)
        return client

    def start(self) -> None:
        """Start the own servers, all at once, or check the named ones, and take the lease of each.

        Own servers get several attempts, since each can take a run. A named server that does not answer is probed
        later.

        Raises ServerProblem if no own server starts, or if a named server is not free for this study.
        """
        for slot in self._slots:
            if not slot.is_local and slot.url is not None:
                with suppress(ServerUnreachable):
                    self._check_free(slot.url)
        try:
            with ThreadPoolExecutor(len(self._slots)) as pool:
                list(pool.map(self._look, self._slots))
            while any(slot.failed_boots < MAX_FAILED_BOOTS and not slot.is_answering for slot in self._own()):
                for slot in self._own():
                    self._ended.wait(slot.breaker.due_in_s())
                    if slot.breaker.begin_probe():
                        self._look(slot)
            if self._own():
                self.check()
        except ServerProblem:
            self.stop()
            raise
        for slot in self._slots:
            thread = threading.Thread(target=self._keep, args=(slot,), name=f"server {slot.index}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """Release the leases and end the own servers; named servers stay as they are.

        Calls that still wait for a server that is away or ended raise ServerUnreachable now.
        """
        self._ended.set()
        for slot in self._slots:
            slot.woken.set()
        for thread in self._threads:
            thread.join()
        with ThreadPoolExecutor(max(1, len(self._slots))) as pool:
            list(pool.map(self._leave, self._slots))

    def check(self) -> None:
        """Raise ServerProblem if no server can answer any more, or none has for longer than the study allows."""
        own = self._own()
        if own and all(slot.failed_boots >= MAX_FAILED_BOOTS for slot in own):
            raise ServerProblem(f"no own server starts, {MAX_FAILED_BOOTS} times in a row: {own[0].breaker.reason}")
        out_s = min(slot.breaker.out_s() for slot in self._slots)
        if self._max_out_s is not None and out_s > self._max_out_s:
            raise ServerProblem(
                f"no server has answered for {out_s / 3600:.3g} hours ({self._slots[0].breaker.reason}): check the "
                "servers, then resume the study"
            )

    def take(self, avoid: frozenset[str] = frozenset()) -> Slot | None:
        """Take a free slot whose server answers, and return it; None if there is none.

        Servers in `avoid` are taken only if no other server answers. Raises ServerProblem as `check` does.
        """
        self.check()
        answering = [slot for slot in self._slots if slot.is_answering]
        wanted = [slot for slot in answering if slot.url not in avoid] or answering
        now = time.monotonic()
        for slot in wanted:
            if slot.is_free and slot.rests_until <= now:
                return self.claim(slot)
        return None

    def take_at(self, url: str | None) -> Slot | None:
        """Take the free slot of the named server at `url` and return it; None if there is none.

        The server need not answer.
        """
        slot = next((slot for slot in self._slots if slot.url == url and slot.is_free and not slot.is_local), None)
        return None if slot is None else self.claim(slot)

    def free_own(self) -> list[Slot]:
        """Return the free slots of own servers that answer."""
        return [slot for slot in self._own() if slot.is_free and slot.is_answering]

    def claim(self, slot: Slot) -> Slot:
        """Mark this free slot as taken and return it."""
        slot.is_free = False
        return slot

    def give_back(self, slot: Slot) -> None:
        slot.is_free = True

    def has_other(self, slot: Slot) -> bool:
        """Return whether another server answers."""
        return any(other.is_answering for other in self._slots if other is not slot)

    def is_lost(self, url: str | None) -> bool:
        """Return whether the server at `url` has not answered for longer than the study allows."""
        slot = None if url is None else self._at(url)
        return slot is not None and self._max_out_s is not None and slot.breaker.out_s() > self._max_out_s

    def report_outage(self, slot: Slot, error: BaseException) -> None:
        """Record that the slot's server cannot be used now, as a caller has found."""
        self._fail(slot, str(error) or type(error).__name__)
        slot.woken.set()

    def report_run(self, slot: Slot, *, is_well: bool) -> None:
        """Record how a run on this slot ended.

        Each further failure in a row doubles the rest before the server gets its next run.
        """
        slot.failures = 0 if is_well else slot.failures + 1
        rest_s = min(2.0 ** (slot.failures - 1), LONGEST_REST_S) if slot.failures else 0.0
        slot.rests_until = time.monotonic() + rest_s

    def take_changes(self) -> list[ServerChange]:
        """Return the changes of servers since the last call, oldest first."""
        return [self._changes.popleft() for _ in range(len(self._changes))]

    def _own(self) -> list[Slot]:
        return [slot for slot in self._slots if slot.is_local]

    def _at(self, url: str) -> Slot | None:
        return next((slot for slot in self._slots if slot.url == url), None)

    def _check_free(self, url: str) -> None:
        try:
            _check_server(url)
        except ServerInUse:
            # The lease may be one that an earlier process of this study left, which may be taken over.
            with connect(url, foreign_token(), timeout_s=PROBE_TIMEOUT_S) as client, suppress(SwarmError):
                self._holder.take(client)

    def _keep(self, slot: Slot) -> None:
        """Look at a server again and again until the study ends."""
        while not self._ended.is_set():
            slot.woken.wait(BEAT_S if slot.breaker.is_closed else slot.breaker.due_in_s())
            slot.woken.clear()
            if not self._ended.is_set() and (slot.breaker.is_closed or slot.breaker.begin_probe()):
                self._look(slot)

    def _look(self, slot: Slot) -> None:
        """Start an own server that does not run, renew the lease, and record whether that worked."""
        try:
            if slot.is_local and (slot.child is None or slot.child.poll() is not None):
                self._start_own(slot)
            assert slot.url is not None, "a server of others has an address, an own one has it once it runs"
            with connect(slot.url, self.token_of(slot.url), timeout_s=PROBE_TIMEOUT_S) as client:
                slot.fence = self._holder.take(client).fence
        except (SwarmError, ServerProblem) as error:
            self._fail(slot, str(error))
        else:
            out_s = slot.breaker.out_s()
            if slot.breaker.succeed():
                self._note(ServerChange(slot.name, is_back=True, out_s=out_s))

    def _start_own(self, slot: Slot) -> None:
        """Start the slot's own server. Raises ServerProblem."""
        if slot.child is not None:
            code = slot.child.poll()
            slot.child.stop()
            slot.child = None
            self._fail(slot, f"it ended with code {code}")
        try:
            slot.child, slot.url = start_own_server(
                self._home / str(slot.index),
                slot.url,
                self._own_token,
                self._start_options,
                max_threads=self._max_threads(),
            )
        except ServerProblem:
            slot.failed_boots += 1
            raise
        slot.failed_boots = 0

    def _max_threads(self) -> int | None:
        """Return the share of this machine's cores for each own server; None if there is only one."""
        own = len(self._own())
        return max(1, usable_cores() // own) if own > 1 else None

    def _fail(self, slot: Slot, reason: str) -> None:
        if slot.breaker.fail(reason):
            self._note(ServerChange(slot.name, is_back=False, reason=reason))

    def _note(self, change: ServerChange) -> None:
        logger.warning("%s: %s", change.name, "back" if change.is_back else change.reason)
        self._changes.append(change)
        self._on_change()

    def _leave(self, slot: Slot) -> None:
        if slot.fence is not None and slot.url is not None and slot.is_answering and not slot.is_local:
            with (
                suppress(SwarmError),
                connect(slot.url, self.token_of(slot.url), timeout_s=PROBE_TIMEOUT_S, lease=slot.fence) as client,
            ):
                client.release_lease()
        if slot.child is not None:
            slot.child.stop()
            slot.child = None
        if slot.is_local or not slot.is_answering:
            for client in list(slot.clients):
                client.close()
