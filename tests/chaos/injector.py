"""The faults of a schedule that is drawn from a seed, done to a deployment one after another."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator

import psutil
from llm_replies.server import BROKEN_JSON, DROP, HANG, OTHER_JSON, PAGE
from process_support import command_of, descendants

from chaos.deployment import Deployment
from chaos.storage import hold_database, let_go
from experiments_db.engine import BUSY_TIMEOUT_S

TARGET_S, LOOK_S = 15.0, 0.1
"""How long a fault waits for something to hit, and how often it looks."""
LOCKED_S = BUSY_TIMEOUT_S + 5.0
FULL_S = (3.0, 20.0)
LONGEST_PAUSE_S = 10.0
"""Until a killed server is started again."""
JUMPS_S = (-7200, -600, -90, 90, 600, 7200)
MODEL_FAILURES: tuple[int | str, ...] = (429, 500, 503, HANG, DROP, PAGE, BROKEN_JSON, OTHER_JSON)
MOST_ARMED = 2
"""Failures that wait for the language model to be asked: more would only make the study wait."""
PROGRAM, ENVIRONMENT, SUPERVISOR = "swarm.program", "swarm.environments.server.main", "supervise.py"
"""What stands in the command lines of these processes."""

Hit = Callable[[random.Random], bool]
"""Does a fault, and returns whether there was something to hit."""


class Injector:
    """Injects faults until `count` have hit, or the study is over. `hits` are their names, in order.

    A fault that finds nothing to hit is not counted. One that lasts, such as a full disk, goes on beside the next ones.
    """

    def __init__(self, deployment: Deployment, seed: int, count: int, mean_pause_s: float) -> None:
        self.hits: list[str] = []
        self._deployment = deployment
        self._count = count
        self._mean_pause_s = mean_pause_s
        self._chance = random.Random(seed)
        self._lasting: list[threading.Thread] = []
        self._failure: BaseException | None = None
        self._kinds: dict[str, tuple[int, Hit]] = {
            "researcher killed": (9, lambda _: deployment.researcher.kill()),
            "server killed": (9, self._kill_server),
            "program killed": (9, lambda chance: self._kill_one_of(PROGRAM, chance)),
            "environment killed": (8, lambda chance: self._kill_one_of(ENVIRONMENT, chance)),
            "language model failed": (8, self._fail_model),
            "database locked": (3, lambda _: self._lock_database()),
        }
        # A small disk needs the right to mount, and a clock that jumps needs a C compiler.
        if deployment.disk.is_mounted:
            self._kinds["disk full"] = (4, self._fill_disk)
        if deployment.clocks:
            self._kinds["clock jumped"] = (4, self._move_clock)
        self._thread = threading.Thread(target=self._run, name="faults", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        """Wait until what lasts has passed and all servers run. Raises what kept the faults from going on."""
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        for each in self._lasting:
            each.join()
        self._deployment.settle()

    def _run(self) -> None:
        try:
            for kind in self._schedule():
                pause_s = self._chance.uniform(0.5, 1.5) * self._mean_pause_s
                if self._is_done() or self._deployment.stopping.wait(pause_s) or self._is_done():
                    return
                if self._await_target(self._kinds[kind][1]):
                    self.hits.append(kind)
        except Exception as error:  # noqa: BLE001 - the boundary: it is raised in the thread that joins
            self._failure = error

    def _schedule(self) -> Iterator[str]:
        """Yield kinds without end, from a bag with so many of each that is filled again once it is empty."""
        while True:
            bag = [kind for kind, (count, _) in self._kinds.items() for _ in range(count)]
            self._chance.shuffle(bag)
            yield from bag

    def _await_target(self, hit: Hit) -> bool:
        deadline = time.monotonic() + TARGET_S
        while not hit(self._chance):
            if time.monotonic() > deadline or self._deployment.stopping.wait(LOOK_S) or self._is_done():
                return False
        return True

    def _is_done(self) -> bool:
        return len(self.hits) >= self._count or self._deployment.researcher.is_over

    def _kill_server(self, chance: random.Random) -> bool:
        running = [server for server in self._deployment.servers if server.is_ready and server.is_running]
        if running:
            server = chance.choice(running)
            server.kill()
            self._deployment.start_again(server, chance.uniform(0, LONGEST_PAUSE_S))
        return bool(running)

    def _kill_one_of(self, words: str, chance: random.Random) -> bool:
        pid = self._deployment.researcher.pid
        found = [
            process
            for process in (descendants(pid) if pid is not None else ())
            for command in (command_of(process),)
            if any(words in word for word in command) and not any(SUPERVISOR in word for word in command)
        ]
        try:
            chance.choice(found).kill()
        except (IndexError, psutil.NoSuchProcess):
            return False
        return True

    def _fail_model(self, chance: random.Random) -> bool:
        model = self._deployment.model
        if len(model.failures) < MOST_ARMED:
            model.failures.append(chance.choice(MODEL_FAILURES))
            return True
        return False

    def _lock_database(self) -> bool:
        held = hold_database(self._deployment.database)
        if held is not None:
            self._last(lambda: let_go(held, LOCKED_S, self._deployment.stopping))
        return held is not None

    def _fill_disk(self, chance: random.Random) -> bool:
        seconds = chance.uniform(*FULL_S)
        self._last(lambda: self._deployment.disk.fill_for(seconds, self._deployment.stopping))
        return True

    def _move_clock(self, chance: random.Random) -> bool:
        host = chance.choice(sorted(self._deployment.clocks))
        self._deployment.clocks[host].move(chance.choice(JUMPS_S))
        return True

    def _last(self, work: Callable[[], None]) -> None:
        self._lasting.append(threading.Thread(target=work, daemon=True))
        self._lasting[-1].start()
