"""Does the faults of a schedule to a deployment, one after another, and writes down what each of them hit.

Place in the flow: campaign.py runs one beside the study. A fault that finds nothing to hit is not counted, and its turn
goes to the next. Faults that last, such as a full disk, go on beside those that follow them.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

import psutil
from llm_replies.server import BROKEN_JSON, DROP, HANG, OTHER_JSON, PAGE
from process_support import command_of, descendants

from chaos.deployment import Deployment
from chaos.faults import SHARES, Drawn, Fault, FaultKind
from chaos.storage import hold_database, let_go
from experiments_db.engine import BUSY_TIMEOUT_S

TARGET_S, LOOK_S = 15.0, 0.1
"""How long a fault waits for something to hit, and how often it looks."""
LOCKED_S = BUSY_TIMEOUT_S + 5.0
FULL_S = (3.0, 20.0)
LONGEST_PAUSE_S = 10.0
"""Until a killed server is started again."""
JUMPS_S = (-7200, -600, -90, 90, 600, 7200)
MODEL_FAILURES: Mapping[str, int | str] = {
    "status 429": 429,
    "status 500": 500,
    "status 503": 503,
    "no answer in time": HANG,
    "connection dropped": DROP,
    "a page of HTML": PAGE,
    "half a document": BROKEN_JSON,
    "another document": OTHER_JSON,
}
MOST_ARMED = 2
"""Failures that wait for the language model to be asked: more would only make the study wait."""
PROGRAM, ENVIRONMENT, SUPERVISOR = "swarm.program", "swarm.environments.server.main", "supervise.py"
"""What stands in the command lines of these processes."""


@dataclass(frozen=True, slots=True)
class _Armed:
    at_s: float
    how: str


class Injector:
    """Injects until `count` faults have hit, or the study is over."""

    def __init__(self, deployment: Deployment, drawn: Iterator[Drawn], count: int) -> None:
        self._deployment = deployment
        self._drawn = drawn
        self._count = count
        self._began_at = time.monotonic()
        self._hit: list[Fault] = []
        self._armed: list[_Armed] = []
        self._missed: Counter[FaultKind] = Counter()
        self._lasting: list[threading.Thread] = []
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="faults", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        """Call once the study is over: what lasts has passed, and all servers run. Raises what kept the faults from
        going on."""
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        for each in self._lasting:
            each.join()
        self._deployment.settle()

    @property
    def faults(self) -> list[Fault]:
        """Those that hit something, in their order."""
        failed = self._deployment.model.failed_at
        answers = [
            Fault(FaultKind.MODEL_FAILED, at - self._began_at, armed.how)
            for at, armed in zip(failed, self._armed, strict=False)
        ]
        return sorted([*self._hit, *answers], key=lambda fault: fault.at_s)

    @property
    def missed(self) -> dict[FaultKind, int]:
        """How many found nothing to hit."""
        waiting = len(self._armed) - len(self._deployment.model.failed_at)
        return dict(self._missed + Counter({FaultKind.MODEL_FAILED: waiting}))

    def _run(self) -> None:
        try:
            self._inject()
        except Exception as error:  # noqa: BLE001 - the boundary: it is raised in the thread that joins
            self._failure = error

    def _inject(self) -> None:
        deployment = self._deployment
        for drawn in self._drawn:
            if self._is_done() or deployment.stopping.wait(drawn.pause_s) or self._is_done():
                return
            if drawn.kind is FaultKind.MODEL_FAILED:
                self._arm(drawn.chance)
                continue
            target = self._await_target(drawn)
            if target:
                self._hit.append(Fault(drawn.kind, time.monotonic() - self._began_at, target))
            else:
                self._missed[drawn.kind] += 1

    def _await_target(self, drawn: Drawn) -> str:
        """What was hit; empty if there was nothing to hit for a while."""
        deadline = time.monotonic() + TARGET_S
        while not (target := self._hit_with(drawn.kind, drawn.chance)):
            if time.monotonic() > deadline or self._deployment.stopping.wait(LOOK_S) or self._is_done():
                return ""
        return target

    def _is_done(self) -> bool:
        return len(self.faults) >= self._count or self._deployment.researcher.is_over

    def _arm(self, chance: random.Random) -> None:
        model = self._deployment.model
        if len(model.failures) >= MOST_ARMED:
            self._missed[FaultKind.MODEL_FAILED] += 1
            return
        how = chance.choice(sorted(MODEL_FAILURES))
        self._armed.append(_Armed(time.monotonic() - self._began_at, how))
        model.failures.append(MODEL_FAILURES[how])

    def _hit_with(self, kind: FaultKind, chance: random.Random) -> str:
        """What was hit; empty if there was nothing."""
        match kind:
            case FaultKind.RESEARCHER_KILLED:
                pid = self._deployment.researcher.kill()
                return "" if pid is None else f"process {pid}"
            case FaultKind.SERVER_KILLED:
                return self._kill_server(chance)
            case FaultKind.PROGRAM_KILLED:
                return self._kill_one_of(PROGRAM, chance)
            case FaultKind.ENVIRONMENT_KILLED:
                return self._kill_one_of(ENVIRONMENT, chance)
            case FaultKind.DISK_FULL:
                seconds = chance.uniform(*FULL_S)
                self._last(lambda: self._deployment.disk.fill_for(seconds, self._deployment.stopping))
                return f"{self._deployment.disk.path} for {seconds:.0f} s"
            case FaultKind.DATABASE_LOCKED:
                return self._lock_database()
            case FaultKind.CLOCK_JUMPED:
                host, by_s = chance.choice(sorted(self._deployment.clocks)), chance.choice(JUMPS_S)
                self._deployment.clocks[host].move(by_s)
                return f"{host} by {by_s:+d} s"
            case FaultKind.MODEL_FAILED:
                raise AssertionError("the language model fails when it is asked")

    def _kill_server(self, chance: random.Random) -> str:
        running = [server for server in self._deployment.servers if server.is_ready and server.is_running]
        pause_s = chance.uniform(0, LONGEST_PAUSE_S)
        if not running:
            return ""
        server = chance.choice(running)
        server.kill()
        self._deployment.start_again(server, pause_s)
        return f"{server.url} for {pause_s:.1f} s"

    def _lock_database(self) -> str:
        path = self._deployment.database
        held = hold_database(path)
        if held is None:
            return ""
        self._last(lambda: let_go(held, LOCKED_S, self._deployment.stopping))
        return f"{path.name} for {LOCKED_S:.0f} s"

    def _kill_one_of(self, words: str, chance: random.Random) -> str:
        pid = self._deployment.researcher.pid
        commands = [(process, command_of(process)) for process in (descendants(pid) if pid is not None else ())]
        found = [
            (process, command)
            for process, command in commands
            if any(words in word for word in command) and not any(SUPERVISOR in word for word in command)
        ]
        if not found:
            return ""
        process, command = chance.choice(found)
        try:
            process.kill()
        except psutil.NoSuchProcess:
            return ""
        return f"process {process.pid}: {_in_short(command)}"

    def _last(self, work: Callable[[], None]) -> None:
        self._lasting.append(threading.Thread(target=work, daemon=True))
        self._lasting[-1].start()


def possible_kinds(
    deployment: Deployment, only: Collection[FaultKind] = ()
) -> tuple[dict[FaultKind, int], dict[FaultKind, str]]:
    """How many of each kind a bag of the schedule holds, and why others of `only`, or of all kinds, are left out."""
    wanted = {kind: count for kind, count in SHARES.items() if not only or kind in only}
    left_out: dict[FaultKind, str] = {}
    if not deployment.disk.is_mounted:
        left_out[FaultKind.DISK_FULL] = "no small disk can be mounted here: that needs the right to mount"
    if not deployment.clocks:
        left_out[FaultKind.CLOCK_JUMPED] = "there is no C compiler to make a clock with: apt-get install gcc"
    left_out = {kind: reason for kind, reason in left_out.items() if kind in wanted}
    return {kind: count for kind, count in wanted.items() if kind not in left_out}, left_out


def _in_short(command: list[str]) -> str:
    if "bwrap" in command[0]:
        return "sandbox of a program"
    return next((word for word in command if word.startswith("swarm.")), command[0])
