"""A study of many days in minutes: the real graph with all its nodes on a real store, on servers that only count steps.

Place in the flow: the benchmark and a test measure rounds of the loop here. A server trains some steps per look and
gives the metrics of each; a score is drawn by chance; the clock of the store moves on by what a round stands for. What
the loop does and stores is what it does and stores in any study. This module judges no figure.
"""

from __future__ import annotations

import math
import random
import sqlite3
import statistics
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from langgraph.errors import GraphDrained
from langgraph.runtime import RunControl

from experiments_db import Author, Experiment, ExperimentStatus, ExperimentStore, Run, RunStatus, open_store
from prompts import load
from researcher.charter import Budget, Charter, DecisionRule, FrameRequest
from researcher.evaluator import Evaluator
from researcher.execution.background import BackgroundTasks
from researcher.execution.early_stopping import StoppingLimits
from researcher.history import Action, Decision
from researcher.loop.deps import Deps
from researcher.loop.graph import carry_out
from researcher.loop.orphaned_runs import reconcile
from researcher.phases import BASE, FINAL, TEST
from researcher.plan import Arm, Hypothesis, Plan
from researcher.planner.scripted import Script, ScriptedPlanner
from researcher.record.budget import BudgetLedger
from researcher.record.log import StudyLog, to_json
from researcher.record.runs import job_of
from researcher.servers.leases import LeaseHolder
from researcher.servers.server_pool import ServerPool
from swarm import Evaluation
from swarm.environments import load_environment
from swarm.guard import REWARD
from swarm.job import build_job
from swarm.processes.child import Child

TOPIC = "Which learning rate is best for reversal?"
METRICS = (
    REWARD,
    *("actor/entropy", "actor/ppo_kl", "actor/grad_norm", "actor/pg_loss", "actor/lr", "actor/pg_clipfrac"),
    *(f"timing_s/part-{number}" for number in range(6)),
    *(f"response_length/part-{number}" for number in range(6)),
)
"""About as many curves as a server gives, with names of their lengths."""


@dataclass(frozen=True, slots=True)
class Size:
    """The length of a study.

    It has `rounds` plans of `arms` x `seeds` runs each, of `steps` steps. `steps_per_look` of them pass between two
    rounds of the loop. Each run has `events` more events than the loop notes.
    """

    rounds: int = 10
    arms: int = 10
    seeds: int = 10
    steps: int = 20
    steps_per_look: int = 5
    servers: int = 4
    episodes: int = 40
    events: int = 48

    @property
    def runs(self) -> int:
        return self.rounds * self.arms * self.seeds

    @property
    def rounds_of_loop(self) -> int:
        """The number of rounds of the loop until all runs are done."""
        return self.rounds * ceil(self.arms * self.seeds / self.servers) * ceil(self.steps / self.steps_per_look)


@dataclass(slots=True)
class Clock:
    now: float = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


@dataclass(slots=True)
class _Server:
    """An engine that trains `pace` steps whenever somebody looks."""

    pace: int
    chance: random.Random
    clock: Clock
    job: dict[str, Any] = field(default_factory=dict[str, Any])
    key: str = ""
    step: int = 0

    def __enter__(self) -> _Server:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def begin(self, job: dict[str, Any], key: str) -> None:
        self.job, self.key, self.step = job, key, 0

    def find_launch(self, key: str) -> Any:
        return SimpleNamespace(outcome="running") if key == self.key else None

    def status(self) -> Any:
        self.step = min(self.job["total_steps"], self.step + self.pace)
        return SimpleNamespace(
            experiment_name=self.job["experiment_name"],
            step=self.step,
            state="ROLLING",
            reason=None,
            weight_version=0,
            started_at=0.0,
        )

    def metrics(self, after: int) -> list[Any]:
        draw = self.chance.random
        return [
            SimpleNamespace(step=step, at=self.clock.now, metrics={name: draw() for name in METRICS})
            for step in range(after + 1, self.step + 1)
        ]


class _Pool(ServerPool):
    """The slots of a study with servers at addresses that nobody listens at."""

    def __init__(self, servers: Mapping[str, _Server], home: Path) -> None:
        super().__init__(urls=list(servers), home=home, holder=LeaseHolder("simulation"))
        self.servers = servers

    def start(self) -> None:
        for slot in self.slots:
            slot.breaker.succeed()

    def connect(self, url: str) -> Any:
        return self.servers[url]


class _Background(BackgroundTasks):
    """Background work that is done at once; a wait is where a round of the loop begins."""

    def __init__(self, on_poll: Callable[[], None], on_work: Callable[[Callable[[], Any]], Any]) -> None:
        super().__init__(1)
        self._on_poll = on_poll
        self._on_work = on_work

    def submit(self, key: str, task: Callable[[], Any]) -> None:
        future: Future[Any] = Future()
        try:
            future.set_result(self._on_work(task))
        except Exception as error:  # noqa: BLE001 - what background work raises is its result
            future.set_exception(error)
        self._tasks[key] = future

    def wait(self, timeout_s: float) -> None:
        self._on_poll()


class _Evaluator(Evaluator):
    """An evaluator with random scores, which stores what the real evaluator stores."""

    def prepare(self, run: Run, experiment: Experiment, url: str, **_: Any) -> Child:
        job = job_of(run.study_id, experiment, run.seed, run.attempt)
        server = cast(_Server, self.connect(url))
        if server.job.get("experiment_name") != job["experiment_name"]:
            server.begin(job, run.idempotency_key)
            self._score_by_chance(run, BASE, self.charter.search_split, 0.3, version=0)
        self.store.update_run(
            run.id,
            status=RunStatus.RUNNING,
            server_url=url,
            job=build_job(job).model_dump(mode="json"),
            external_ids={**run.external_ids, "pid_started": 1.0},
            log_path=str(self.folder(run.id) / "train.log"),
            environment={"swarm": "simulated", "python": "3.11", "platform": "simulated"},
            base_weight_version=0,
        )
        return cast(Child, SimpleNamespace(poll=lambda: None, stop=lambda: None, pid=None, started=None))

    def measure(self, run: Run, url: str, child: Child | None, **_: Any) -> int:
        version = int(run.job["total_steps"])
        self.store.update_run(run.id, external_ids={**run.external_ids, "checkpoint": "/nowhere"})
        self.store.update_run(run.id, final_weight_version=version)
        mean = 0.5 + 0.02 * (hash(run.experiment_id) % 10)
        self._score_by_chance(run, FINAL, self.charter.search_split, mean, version=version)
        return version

    def measure_test(self, run: Run, url: str) -> None:
        self._score_by_chance(run, TEST, self.charter.test_split, 0.5, version=1)

    def _score_by_chance(self, run: Run, phase: str, split: str, mean: float, *, version: int) -> None:
        chance = random.Random(f"{run.idempotency_key}/{phase}")
        result = _play(mean, chance, split, self.charter.eval_episodes, version)
        self.record_score(run, phase, split, result, version=version)


class SimulatedDeps(Deps):
    def evaluator(self, dropped: threading.Event | None = None) -> Evaluator:
        return _Evaluator(
            store=self.store,
            charter=self.log.charter(),
            home=self.home,
            sandbox=None,
            environments=self.environments,
            connect=self.pool.connect,
            token_of=self.pool.token_of,
            is_stopped=self.background.stop.is_set,
        )


@dataclass(slots=True)
class LongStudy:
    """One study in `home`.

    `carry_on` works on it until it is finished or `on_poll` returns False. `on_poll` is called at the beginning of
    every round with the number of rounds so far. `on_work` carries out the work that a real study does in the
    background. A round stands for `seconds_per_poll`.
    """

    home: Path
    size: Size
    on_poll: Callable[[int], bool]
    on_work: Callable[[Callable[[], Any]], Any] = field(default=lambda task: task())
    seconds_per_poll: float = 1.0
    polls: int = 0
    clock: Clock = field(default_factory=Clock)
    study_id: str = ""
    _servers: dict[str, _Server] = field(default_factory=dict[str, _Server])

    @property
    def database(self) -> Path:
        return self.home / "research.db"

    def begin(self) -> None:
        """Create a study whose first plan was just made: its charter is frozen and its arms have passed their check."""
        charter = _charter(self.size)
        # The servers and their training outlive a session of the study.
        urls = [f"http://127.0.0.1:{port}" for port in range(1, self.size.servers + 1)]
        self._servers = {url: _Server(self.size.steps_per_look, random.Random(url), self.clock) for url in urls}
        with open_store(self.database, clock=self.clock) as store:
            study = store.create_study(TOPIC, planner="scripted")
            self.study_id = study.id
            store.freeze_charter(study.id, to_json(charter))
            for arm in _arms(self.size):
                made = store.create_experiment(
                    study.id, arm.name, factors=arm.factors, job=arm.job, is_baseline=arm.is_baseline
                )
                store.revise_experiment(made.id, program_code=load("program"), author=Author.PACKAGE)
                store.revise_experiment(made.id, status=ExperimentStatus.READY)

    def carry_on(self, store: ExperimentStore) -> bool:
        """Continue the study as a new process would, and return whether it is finished."""
        control = RunControl()
        deps = self.parts(store, control)
        try:
            reconcile(deps)
            carry_out(deps, FrameRequest(TOPIC), control)
        except GraphDrained:
            return False
        finally:
            deps.environments.close()
        return True

    def parts(self, store: ExperimentStore, control: RunControl | None = None) -> Deps:
        """Return the dependencies of the nodes, for one session."""
        control = control or RunControl()
        charter = _charter(self.size)
        folder = self.home / "studies" / self.study_id
        folder.mkdir(parents=True, exist_ok=True)

        def tick() -> None:
            if not len(deps.active_runs):
                # The final test waits too.
                return
            self.clock.now += self.seconds_per_poll
            self.polls += 1
            if self.polls % self.size.arms == 0:
                self._add_events()
            if not self.on_poll(self.polls):
                control.request_drain("the simulation pauses")

        deps = SimulatedDeps(
            study_id=self.study_id,
            store=store,
            log=StudyLog(store, self.study_id),
            planner=ScriptedPlanner(_script(self.size, charter)),
            pool=_Pool(self._servers, self.home),
            background=_Background(tick, self.on_work),
            ledger=BudgetLedger(store, self.study_id, charter.budget),
            sandbox=None,
            home=folder,
            limits=StoppingLimits(dead_steps=10**6, silent_steps=10**6, kl_limit=10.0, collapse_floor=math.inf),
        )
        return deps

    def _add_events(self) -> None:
        """Write events past the store, which would take a transaction for each.

        They are there to be skipped by the readers.
        """
        count = round(self.size.events * self.size.runs * self.size.arms / self.size.rounds_of_loop)
        row = (self.study_id, "info", "run.note", "a line of a program, such as a request that was made again")
        with closing(sqlite3.connect(self.database, timeout=60)) as connection, connection:
            connection.executemany(
                "insert into events (study_id, severity, kind, message, payload, created_at)"
                " values (?, ?, ?, ?, '{}', ?)",
                [(*row, self.clock.now)] * count,
            )


def _script(size: Size, charter: Charter) -> Script:
    arms = _arms(size)
    others = tuple(arm.name for arm in arms if not arm.is_baseline)
    hypothesis = Hypothesis("Another learning rate is better.", "One of them wins.", others)
    plans = [
        Plan(number, (hypothesis,), arms, tuple(range(size.seeds * (number + 1))), "more seeds", pools_runs=True)
        for number in range(size.rounds)
    ]
    refine, stop = Decision(Action.REFINE, "More seeds."), Decision(Action.STOP, "All seeds are run.")
    decisions = [refine] * (size.rounds - 1) + [stop]
    return Script(charter, plans, {}, decisions, interpretations=[()] * size.rounds)


def _arms(size: Size) -> tuple[Arm, ...]:
    rates = [1e-4 * (number + 1) for number in range(size.arms)]
    return tuple(
        Arm(
            f"lr={rate:g}",
            {"lr": rate},
            {"engine": "fake", "lr": rate, "total_steps": size.steps},
            "a value of the range",
            is_baseline=number == 0,
            parent=None if number == 0 else f"lr={rates[0]:g}",
        )
        for number, rate in enumerate(rates)
    )


def _charter(size: Size) -> Charter:
    with closing(load_environment("reverse")) as environment:
        digest = environment.digest
    return Charter(
        topic=TOPIC,
        question="How does lr change what is learned on reverse?",
        environment_name="reverse",
        metric="mean reward of held-out episodes",
        direction="maximize",
        baseline=_arms(size)[0].name,
        search_split="validation",
        test_split="test",
        eval_episodes=size.episodes,
        rule=DecisionRule(),
        budget=Budget(max_runs=size.runs),
        planner="scripted",
        environment="reverse",
        environment_digest=digest,
    )


def _play(mean: float, chance: random.Random, split: str, episodes: int, version: int) -> Evaluation:
    solved = [chance.random() < mean for _ in range(episodes)]
    rewards = {f"reverse/{split}/{index}": (float(won),) for index, won in enumerate(solved)}
    values = [float(won) for won in solved]
    return Evaluation(
        n=episodes,
        successes=sum(solved),
        mean=statistics.fmean(values),
        stderr=statistics.stdev(values) / episodes**0.5,
        rewards=rewards,
        weight_versions=(version,),
        failures=(),
        solved={task: (won,) for task, won in zip(rewards, solved, strict=True)},
    )
