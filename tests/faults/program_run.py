"""One run of a program to be killed: a server, the program's own command, and what is on record of it afterwards."""

from __future__ import annotations

import json
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import psutil
import yaml
from faults.storm import end_process
from process_support import command_of, descendants, kill_all
from server_processes import ServerProcess, free_port

BATCH_SIZE, NUM_REPEAT = 4, 4
SEED = 7
GAP = 12
"""At most so many episodes end between two kills, those aside that end while somebody comes back."""
PROGRESS_LIMIT_S = 240.0
ENVIRONMENT_MODULE = "swarm.environments.server.main"
HOST_MODULE = "swarm.program.hosted"

FOOT = """
if __name__ == "__main__":
    from swarm.program import main

    main(__file__)
"""
ONE_MODEL = """
import time

def agent(task, model, session):
    model.chat([{"role": "user", "content": "Think: " + task.main_query}], max_tokens=4)
    time.sleep(0.15)
    return model.chat(session.messages, max_tokens=6)

def reward(task, transcript, grade):
    return 2 * grade.score + 1
"""
TWO_MODELS = """
import time

def agent(task, model, session):
    model.role("thinker").chat([{"role": "user", "content": "Think: " + task.main_query}], max_tokens=4)
    time.sleep(0.15)
    return model.role("speaker").chat(session.messages, max_tokens=6)

def reward(task, transcript, grade):
    return {"thinker": grade.score, "speaker": 2 * grade.score + 1}
"""
GRADER = """
def grade(task, transcript):
    reply = transcript[-1]["content"] or ""
    return sum(map(ord, task["question"] + reply)) % 1009 / 1009
"""


class Victim(StrEnum):
    PROGRAM = "process of the program"
    DRIVER = "driver"
    ENVIRONMENT = "environment server"
    SERVER = "swarm server"


@dataclass(frozen=True)
class Trained:
    """One trained episode. `answer` is what its model replied to the task's own question, if it was asked that."""

    episode_id: str
    task_id: str
    step: int
    group: tuple[str, int]
    reward: float
    question: str
    answer: str | None


@dataclass
class ProgramRun:
    """`roles` have a server each; one model without a role has the name ""."""

    home: Path
    steps: int
    dice: random.Random
    roles: tuple[str, ...] = ("",)
    _driver: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        self._servers = {role: ServerProcess(self._ledger(role).parent, free_port()) for role in self.roles}
        environment = self.home / "words"
        environment.mkdir()
        rows = [
            {"question": f"Say word {number}", "answer": str(number)} for number in range(4 * self.steps * BATCH_SIZE)
        ]
        (environment / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (environment / "environment.toml").write_text('name = "words"\n')
        (environment / "grade.py").write_text(GRADER)
        (self.home / "program.py").write_text((ONE_MODEL if self.roles == ("",) else TWO_MODELS) + FOOT)
        # A batch waits as long as it takes for whoever is started again.
        job = {
            "engine": "fake", "batch_size": BATCH_SIZE, "num_repeat": NUM_REPEAT, "total_steps": self.steps,
            "group_timeout_s": 3600, "stall_timeout_s": 3600, "drain_timeout_s": 3600,
        }  # fmt: skip
        (self.home / "job.yaml").write_text(yaml.safe_dump(job))

    def begin(self) -> None:
        for server in self._servers.values():
            server.start()
        self._start_driver()
        self.wait_for_episodes(1)

    def strike(self, victim: Victim, kills_left: int) -> None:
        """Kill somebody after some more episodes, and bring back what nobody else does."""
        lasting = (self.steps * BATCH_SIZE * NUM_REPEAT - self.ended()) // (2 * kills_left)
        self.wait_for_episodes(self.ended() + self.dice.randint(1, max(1, min(GAP, lasting))))
        time.sleep(0.1 * self.dice.random())
        assert self._driver is not None
        match victim:
            case Victim.SERVER:
                server = self._servers[self.dice.choice(self.roles)]
                server.kill()
                server.start()
            case Victim.DRIVER:
                end_process(self._driver, signal.SIGKILL)
                self._start_driver()
            case Victim.PROGRAM:
                self._kill_below_driver(HOST_MODULE)
            case Victim.ENVIRONMENT:
                self._kill_below_driver(ENVIRONMENT_MODULE)

    def finish(self) -> str:
        """Wait until the driver has ended; what it said last."""
        assert self._driver is not None
        self._advance(lambda: self._driver is not None and self._driver.poll() is not None)
        assert self._driver.returncode == 0, self._said()
        return (self.home / "driver.out").read_text().splitlines()[-1]

    def ended(self) -> int:
        """How many train episodes are on record with a reward, at the server of the first role."""
        if not self._ledger(self.roles[0]).exists():
            return 0
        with self._reading(self.roles[0]) as ledger:
            return ledger.execute("SELECT count(*) FROM episodes WHERE state IN ('completed', 'trained')").fetchone()[0]

    def wait_for_episodes(self, number: int) -> None:
        self._advance(lambda: self.ended() >= number, is_running=True)

    def trained(self, role: str) -> list[Trained]:
        with self._reading(role) as ledger:
            episodes = ledger.execute(
                "SELECT e.*, b.step FROM episodes AS e JOIN batches AS b USING (batch_id) WHERE b.state = 'trained'"
            ).fetchall()
            return [_trained(ledger, row) for row in episodes]

    def steps_on_record(self, role: str) -> list[int]:
        with self._reading(role) as ledger:
            rows = ledger.execute("SELECT step FROM batches WHERE state = 'trained' ORDER BY step").fetchall()
            return [row["step"] for row in rows]

    def outcomes(self, role: str) -> Counter[str]:
        """How many episodes did not count, by state and reason."""
        with self._reading(role) as ledger:
            rows = ledger.execute("SELECT state, outcome FROM episodes WHERE state <> 'trained'").fetchall()
            return Counter(f"{row['state']} {row['outcome']}" for row in rows)

    def close(self) -> None:
        if self._driver is not None:
            end_process(self._driver, signal.SIGKILL)
        for server in self._servers.values():
            server.close()

    def _ledger(self, role: str) -> Path:
        return self.home / f"home-{role}" / "ledger.db"

    @contextmanager
    def _reading(self, role: str) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(f"file:{self._ledger(role)}?mode=ro", uri=True, timeout=60)) as ledger:
            ledger.row_factory = sqlite3.Row
            yield ledger

    def _start_driver(self) -> None:
        words = ["--env", "words", "--job", "job.yaml", "--seed", str(SEED), "--workers", "8", "--sandbox"]
        for role in self.roles:
            words += ["--server", f"{role}={self._servers[role].url}" if role else self._servers[role].url]
        with (self.home / "driver.out").open("ab") as out, (self.home / "driver.log").open("ab") as log:
            self._driver = subprocess.Popen(
                [sys.executable, "program.py", *words],
                cwd=self.home, stdin=subprocess.DEVNULL, stdout=out, stderr=log,
            )  # fmt: skip

    def _kill_below_driver(self, module: str) -> None:
        """The process that runs a module itself, not those that watch over it."""
        found: list[psutil.Process] = []

        def is_found() -> bool:
            assert self._driver is not None
            found[:] = [each for each in descendants(self._driver.pid) if command_of(each)[2:4] == ["-m", module]]
            return bool(found)

        self._advance(is_found, is_running=True)
        kill_all(found)

    def _advance(self, is_reached: Callable[[], bool], *, is_running: bool = False) -> None:
        """Wait as long as episodes go on to end. With `is_running` the driver must not have ended."""
        ended, deadline = self.ended(), time.monotonic() + PROGRESS_LIMIT_S
        while not is_reached():
            assert self._driver is not None
            code = self._driver.poll()
            assert not is_running or code is None, f"the driver ended with {code}\n{self._said()}"
            assert time.monotonic() < deadline, f"nothing has happened for {PROGRESS_LIMIT_S:.0f} s\n{self._said()}"
            time.sleep(0.02)
            if (now := self.ended()) > ended:
                ended, deadline = now, time.monotonic() + PROGRESS_LIMIT_S

    def _said(self) -> str:
        """The last words of everybody."""
        logs = [*sorted(self.home.rglob("*.log")), self.home / "driver.out"]
        return "\n".join(f"{path.name}: {path.read_text()[-3000:]}" for path in logs if path.exists())


def _trained(database: sqlite3.Connection, row: sqlite3.Row) -> Trained:
    turns = database.execute(
        "SELECT messages, reply FROM turns WHERE episode_id = ? ORDER BY turn_index", (row["episode_id"],)
    ).fetchall()
    said = [(json.loads(row["messages"])[0]["content"], json.loads(row["reply"])["content"] or "") for row in turns]
    answers = [reply for question, reply in said if not question.startswith("Think: ")]
    assert len(answers) <= 1
    question = said[-1][0].removeprefix("Think: ")
    group = (row["batch_id"], row["batch_group"])
    answer = answers[0] if answers else None
    return Trained(row["episode_id"], row["task_id"], row["step"], group, row["reward"], question, answer)


@contextmanager
def program_run(home: Path, steps: int, seed: int, roles: tuple[str, ...] = ("",)) -> Iterator[ProgramRun]:
    run = ProgramRun(home, steps, random.Random(seed), roles)
    try:
        yield run
    finally:
        run.close()
