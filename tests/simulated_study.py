"""A finished study without servers: its scores are drawn by chance, everything else is done by the loop's own nodes.

What a study stores of a run is stored here as the evaluator does it, with rewards that a fair coin per episode gives.
The analysis, the decision and the report are those of the real nodes.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import yaml
from scripted_planner import Script, ScriptedPlanner

import swarm
from experiments_db import Author, BudgetKind, Experiment, ExperimentStatus, ExperimentStore, Run, RunStatus, open_store
from prompts import load
from researcher.charter import Budget, Charter, DecisionRule, JudgedBy
from researcher.claims import Claim
from researcher.history import Action, Decision
from researcher.loop.deps import Deps, first_state
from researcher.loop.nodes.analyze import analyze
from researcher.loop.nodes.decide import decide
from researcher.loop.nodes.plan import plan
from researcher.loop.nodes.report import report
from researcher.phases import BASE, FINAL, TEST
from researcher.plan import Arm, Hypothesis, Plan
from researcher.record.budget import BudgetLedger
from researcher.record.log import StudyLog, keep_file, to_json
from researcher.record.runs import Trial, job_of, run_key
from researcher.record.seal import seal
from researcher.report.write import build_report
from researcher.servers.server_pool import ServerPool
from swarm import Evaluation
from swarm.environments import load_environment
from swarm.guard import REWARD, SUCCESS

EPISODES = 40
STEPS = 5
BASELINE = "lr=0.001"
MEANS: Mapping[str, float] = {BASELINE: 0.55, "lr=0.003": 0.9, "lr=0.0003": 0.4}
CHANGED_PROGRAM = "def reward(task, transcript, grade):\n    return 2 * grade.score\n"


@contextmanager
def reports_without_images() -> Generator[None]:
    """Within the block, studies end with their whole report but for the images of its figures, whose drawing takes as
    long as all else. For tests of what a study does, not of how it looks."""
    with patch("researcher.loop.nodes.report.build_report", partial(build_report, has_images=False)):
        yield


@dataclass(frozen=True)
class SimulatedStudy:
    """`home` is the folder of studies, `folder` that of this study."""

    store: ExperimentStore
    study_id: str
    home: Path
    deps: Deps

    @property
    def folder(self) -> Path:
        return self.home / "studies" / self.study_id

    @property
    def database(self) -> Path:
        return self.home / "research.db"

    def arm(self, name: str) -> Experiment:
        found = self.store.find_experiment(self.study_id, name)
        assert found is not None
        return found

    def runs(self, name: str) -> list[Run]:
        return self.store.list_runs(experiment_id=self.arm(name).id)


@dataclass
class Simulation:
    """What is to be simulated. `rounds` is the number of plans, each of which adds `seeds` seeds; `interpretations` is
    what the planner claims after each. `test_means` are those of arms that do otherwise on the test split."""

    means: Mapping[str, float] = field(default_factory=lambda: dict(MEANS))
    seeds: int = 3
    rounds: int = 1
    failed: tuple[tuple[str, int], ...] = (("lr=0.0003", 0),)
    interpretations: Sequence[tuple[Claim, ...]] = ((),)
    chance: int = 0
    exact: Mapping[str, Sequence[float]] = field(default_factory=dict[str, Sequence[float]])
    test_means: Mapping[str, float] = field(default_factory=dict[str, float])
    judged_by: JudgedBy = JudgedBy.FINAL
    has_images: bool = False
    """Whether the figures of the report are drawn, which takes as long as all else."""

    def carry_out(self, home: Path) -> SimulatedStudy:
        home.mkdir(parents=True, exist_ok=True)
        store = open_store(home / "research.db")
        study = store.create_study("Which learning rate is best for reversal?", planner="scripted")
        charter = replace(_charter(study.planner), judged_by=self.judged_by)
        store.freeze_charter(study.id, to_json(charter))
        deps = _deps(store, study.id, home, charter, self)
        simulated = SimulatedStudy(store, study.id, home, deps)
        deps.ledger.charge_time()
        for number in range(self.rounds):
            state = replace_iteration(study.id, number)
            plan(deps, state)
            self._train(simulated, number)
            analyze(deps, state)
            decide(deps, state)
        self._open_test(simulated)
        with nullcontext() if self.has_images else reports_without_images():
            report(deps, first_state(study.id))
        deps.environments.close()
        seal(store, study.id, deps.home)
        return simulated

    def _train(self, study: SimulatedStudy, number: int) -> None:
        chance = random.Random(self.chance * 1000 + number)
        for name in self.means:
            experiment = study.arm(name)
            if experiment.status is ExperimentStatus.DRAFT:
                code = CHANGED_PROGRAM if name == "lr=0.003" else load("program")
                study.store.revise_experiment(experiment.id, program_code=code, author=Author.PACKAGE)
                study.store.revise_experiment(experiment.id, status=ExperimentStatus.READY)
        for seed in range(number * self.seeds, (number + 1) * self.seeds):
            for name in self.means:
                attempts = 2 if (name, seed) in self.failed else 1
                for attempt in range(1, attempts + 1):
                    _claim(study, name, seed, attempt)
                    if attempt < attempts:
                        _fail(study, name, seed)
                    else:
                        self._finish(study, name, seed, chance)

    def _finish(self, study: SimulatedStudy, name: str, seed: int, chance: random.Random) -> None:
        store, run = study.store, study.runs(name)[-1]
        store.update_run(
            run.id,
            status=RunStatus.RUNNING,
            job={**run.job, "resolved": True},
            base_weight_version=0,
            environment={"swarm": swarm.__version__, "python": "3.11.9", "platform": "simulated"},
            external_ids={"checkpoint": "/nowhere"},
        )
        values = [(step, chance.random()) for step in (1, 2, STEPS)]
        store.record_metrics(run.id, {step: {REWARD: x, SUCCESS: x, "actor/entropy": 1.0} for step, x in values})
        store.update_run(run.id, status=RunStatus.EVALUATING)
        evaluator = study.deps.evaluator()
        base = 0.3 + 0.01 * (seed % 3)
        final = self.exact[name][seed] if name in self.exact else self.means[name]
        for phase, mean, version in ((BASE, base, 0), (FINAL, final, STEPS)):
            is_exact = phase == BASE or name in self.exact
            result = play(mean, chance, "validation", version, is_exact=is_exact)
            evaluator.record_score(run, phase, "validation", result, version=version)
        for kind, file in (("program", "program.py"), ("job", "job.yaml"), ("log", "train.log")):
            keep_file(store, study.study_id, evaluator.folder(run.id) / file, kind, run_id=run.id)
        store.update_run(
            run.id, status=RunStatus.FINISHED, final_weight_version=STEPS, exit_reason=f"all {STEPS} steps done"
        )
        study.deps.ledger.charge(BudgetKind.WORKING_S, 1.5, run.id, run_id=run.id)

    def _open_test(self, study: SimulatedStudy) -> None:
        chance = random.Random(self.chance)
        best = max(self.means, key=lambda name: self.means[name])
        study.store.open_test_split(study.study_id, f"score {best} and {BASELINE}")
        for name in dict.fromkeys((best, BASELINE)):
            for run in study.runs(name):
                if run.status is RunStatus.FINISHED:
                    result = play(self.test_means.get(name, self.means[name]), chance, "test", 0)
                    study.deps.evaluator().record_score(run, TEST, "test", result, version=0)


def play(mean: float, chance: random.Random, split: str, version: int, *, is_exact: bool = False) -> Evaluation:
    """A score of `EPISODES` episodes that succeed with chance `mean`, or exactly that often."""
    wins = [index < round(mean * EPISODES) for index in range(EPISODES)]
    solved = wins if is_exact else [chance.random() < mean for _ in range(EPISODES)]
    rewards = {f"reverse/{split}/{index}": (float(won),) for index, won in enumerate(solved)}
    return Evaluation(
        n=EPISODES,
        successes=sum(solved),
        mean=statistics.fmean(float(won) for won in solved),
        stderr=statistics.stdev(float(won) for won in solved) / EPISODES**0.5,
        rewards=rewards,
        weight_versions=(version,),
        failures=(),
        solved={task: (won,) for task, won in zip(rewards, solved, strict=True)},
    )


def replace_iteration(study_id: str, number: int) -> Any:
    return {**first_state(study_id), "iteration": number}


def charter_of(planner: str, **changes: Any) -> Charter:
    """The charter of a study of word reversal, with whatever is asked for otherwise."""
    usual: dict[str, Any] = {
        "topic": "Which learning rate is best for reversal?",
        "question": "How does lr change what is learned on reverse?",
        "environment_name": "reverse",
        "metric": "mean reward of held-out episodes",
        "direction": "maximize",
        "baseline": BASELINE,
        "search_split": "validation",
        "test_split": "test",
        "eval_episodes": EPISODES,
        "rule": DecisionRule(),
        "budget": Budget(max_runs=100),
        "planner": planner,
        "environment": "reverse",
    }
    return Charter(**{**usual, **changes})


def _charter(planner: str) -> Charter:
    with closing(load_environment("reverse")) as environment:
        digest = environment.digest
    return charter_of(planner, assumptions=("lr: the topic gives no values.",), environment_digest=digest)


def _deps(store: ExperimentStore, study_id: str, home: Path, charter: Charter, simulation: Simulation) -> Deps:
    arms = tuple(
        Arm(
            name,
            {"lr": float(name.partition("=")[2])},
            {"engine": "fake", "lr": float(name.partition("=")[2]), "total_steps": STEPS},
            "named by the topic",
            is_baseline=name == charter.baseline,
            parent=None if name == charter.baseline else charter.baseline,
        )
        for name in simulation.means
    )
    others = tuple(arm.name for arm in arms if not arm.is_baseline)
    first = Plan(0, (Hypothesis("Another lr is better.", "lr=0.003 wins.", others),), arms, (), "the arms")
    plans = [
        replace(first, iteration=number, seeds=tuple(range((number + 1) * simulation.seeds)))
        for number in range(simulation.rounds)
    ]
    refine, stop = Decision(Action.REFINE, "More seeds."), Decision(Action.STOP, "All arms are compared.")
    decisions = [refine] * (simulation.rounds - 1) + [stop]
    interpretations = [*simulation.interpretations, *[()] * simulation.rounds][: simulation.rounds]
    folder = home / "studies" / study_id
    folder.mkdir(parents=True)
    script = Script(charter, plans, {}, decisions, interpretations=interpretations)
    return study_deps(store, study_id, folder, script)


def study_deps(store: ExperimentStore, study_id: str, home: Path, script: Script) -> Deps:
    """What the loop's nodes get in a study that has no server and in which nothing is trained."""
    return Deps(
        log=StudyLog(store, study_id),
        planner=ScriptedPlanner(script),
        pool=cast(ServerPool, SimpleNamespace(connect=None, token_of=None)),
        ledger=BudgetLedger(store, study_id, script.charter.budget),
        home=home,
    )


def _claim(study: SimulatedStudy, name: str, seed: int, attempt: int) -> None:
    experiment = study.arm(name)
    trial = Trial(experiment, seed, tuple(run for run in study.runs(name) if run.seed == seed))
    assert trial.attempt == attempt
    job = job_of(study.study_id, experiment, seed, attempt)
    run = study.store.claim_run(
        experiment.id,
        seed,
        run_key(study.study_id, trial.experiment.name, trial.seed, trial.attempt),
        attempt=attempt,
        job=job,
        server_url="http://127.0.0.1:1",
    )
    study.store.update_run(run.id, status=RunStatus.LAUNCHING)
    study.deps.ledger.charge(BudgetKind.RUNS, 1, f"{name}/{seed}", run_id=run.id)
    folder = study.folder / "runs" / run.id
    folder.mkdir(parents=True)
    (folder / "program.py").write_text(experiment.program_code, encoding="utf-8")
    (folder / "job.yaml").write_text(yaml.safe_dump(job, sort_keys=False), encoding="utf-8")
    (folder / "train.log").write_text("step 1\n", encoding="utf-8")


def _fail(study: SimulatedStudy, name: str, seed: int) -> None:
    run = study.runs(name)[-1]
    reason = "the engine broke"
    found = {"kind": "failure", "sentence": reason, "is_retried": True}
    study.store.update_run(run.id, status=RunStatus.FAILED, exit_reason=reason, diagnosis=found)
    study.deps.log.warn("run.failed", f"{name} seed {seed} failed: {reason}", run_id=run.id)
