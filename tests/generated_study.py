"""Random but legal studies in a real store: what happens to a run is drawn, all else is done by the loop's own nodes.

A run finishes, ends early, fails, is trained again, loses its score to the system or to the budget, or has not ended.
The rows are those that the evaluator and the monitor store; the judge, the decisions and the choice for the test
split are the real ones.
"""

from __future__ import annotations

import json
import random
import sqlite3
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from scripted_planner import Script
from simulated_study import charter_of, study_deps

from experiments_db import Author, BudgetKind, ExperimentStatus, ExperimentStore, RunStatus
from prompts import load
from researcher.charter import Budget, Charter, DecisionRule
from researcher.claims import Claim, ClaimKind, Measured
from researcher.history import Action, Decision
from researcher.loop.deps import Deps, first_state
from researcher.loop.nodes.analyze import analyze
from researcher.loop.nodes.decide import decide
from researcher.loop.nodes.final_test import choose_finalists
from researcher.loop.nodes.plan import plan
from researcher.phases import BASE, COST, FINAL, MEASURED_ON, TEST
from researcher.plan import Arm, Contrast, Hypothesis, Plan, Relation
from researcher.record.costs import AttemptCost, cost_to_json
from researcher.record.log import to_json
from researcher.record.runs import BUDGET, MAX_ON_ONE_SERVER, run_key
from researcher.study.ending import judge_ending

BASELINE = "a0"
FINISHED, RETRIED, COLLAPSED, NO_SIGNAL, DIVERGED, LOST, STOPPED, OPEN = (
    *("finished", "retried", "collapse", "no_signal", "not_finite", "lost", "stopped", "open"),
)
LIKELY = (FINISHED,) * 12 + (RETRIED, COLLAPSED, NO_SIGNAL, DIVERGED, LOST, STOPPED, OPEN)
REASONS = {LOST: "the environment went away", RETRIED: "no step for 60 s"}
OPINIONS = (
    "It never helps more than at first; 205 seeds would tell.",
    "a1 is the winner, no doubt <b>about</b> it | p = 0.",
    "Larger is better by 0.5, and half of the runs failed.",
)
HASH = "e" * 64


@dataclass(frozen=True)
class Specification:
    """What a study is to be. `fates` says of each arm and seed what happens to its run; `means` are true ones."""

    seed: int
    arms: int
    seeds: int
    rounds: int
    means: Sequence[float]
    spread: float
    episodes: int
    fates: Mapping[tuple[int, int], str]
    direction: str = "maximize"
    metric_range: tuple[float, float] | None = (0.0, 1.0)
    failed_score: str = "base"
    rule: DecisionRule = field(default_factory=DecisionRule)
    relations: tuple[Relation, ...] = ()
    has_same_base: bool = True
    is_tested: bool = True
    disqualified: int | None = None
    calls: Sequence[float] = ()
    shares: Sequence[float | None] = ()
    is_equal: bool = False

    @property
    def is_budget_used_up(self) -> bool:
        return STOPPED in self.fates.values()


def draw(seed: int) -> Specification:
    """Return the study of this number, always the same."""
    chance = random.Random(seed)
    arms, seeds, rounds = (
        chance.choice((1, 2, 2, 3, 3, 4, 5)),
        chance.choice((1, 2, 3, 3, 4, 6)),
        chance.choice((1, 1, 2)),
    )
    is_calm = chance.random() < 0.4
    fates = {
        (arm, number): FINISHED if is_calm else chance.choice(LIKELY)
        for arm in range(arms)
        for number in range(seeds * rounds)
    }
    low = chance.choice((0.05, 0.3, 0.5, 0.9))
    relations = [relation for relation in Relation if chance.random() < 0.4 and (arms > 3 or relation != "interaction")]
    return Specification(
        seed=seed,
        arms=arms,
        seeds=seeds,
        rounds=rounds,
        means=[min(0.99, max(0.01, low + chance.choice((0.0, 0.0004, 0.05, 0.3, -0.2)))) for _ in range(arms)],
        spread=chance.choice((0.0, 0.01, 0.05, 0.3)),
        episodes=chance.choice((20, 100, 400, 4000)),
        fates=fates,
        direction=chance.choice(("maximize", "maximize", "minimize")),
        metric_range=chance.choice(((0.0, 1.0), (0.0, 1.0), None)),
        failed_score=chance.choice(("base", "worst")),
        rule=DecisionRule(
            min_effect=chance.choice((0.02, 0.0001, 0.1)),
            correction=chance.choice(("holm", "none")),
            shares=(1.0,) if chance.random() < 0.3 else DecisionRule().shares,
        ),
        relations=tuple(relations),
        has_same_base=chance.random() < 0.5,
        is_tested=chance.random() < 0.7,
        disqualified=chance.randrange(1, arms) if arms > 1 and chance.random() < 0.15 else None,
        calls=[chance.choice((1.0, 1.0, 8.0)) for _ in range(arms)] if chance.random() < 0.6 else (),
        shares=[chance.choice((1.0, 0.97, 0.12, None)) for _ in range(arms)],
        is_equal=chance.random() < 0.15,
    )


@dataclass(frozen=True)
class GeneratedStudy:
    store: ExperimentStore
    study_id: str
    specification: Specification


def generate(store: ExperimentStore, home: Path, wanted: Specification) -> GeneratedStudy:
    """Carry a study out; what it found stands in the store."""
    study = store.create_study(f"Which arm is best, in study {wanted.seed}?", planner="llm:some-model")
    charter = _charter(wanted, study.topic)
    store.freeze_charter(study.id, to_json(charter))
    deps = study_deps(store, study.id, home, _script(wanted, charter))
    chance = random.Random(wanted.seed)
    for iteration in range(wanted.rounds):
        is_budget_used_up = wanted.is_budget_used_up and iteration == wanted.rounds - 1
        state: Any = {**first_state(study.id), "iteration": iteration, "is_budget_used_up": is_budget_used_up}
        plan(deps, state)
        _train(deps, charter, wanted, iteration, chance)
        analyze(deps, state)
        decide(deps, state)
    if wanted.is_tested and not wanted.is_budget_used_up:
        _score_test(deps, charter, chance)
    ending = judge_ending(store, study.id, is_budget_used_up=wanted.is_budget_used_up)
    store.set_study_status(study.id, ending.status, ending.reason)
    return GeneratedStudy(store, study.id, wanted)


def _charter(wanted: Specification, topic: str) -> Charter:
    return charter_of(
        "llm:some-model",
        topic=topic,
        question="How do the arms differ on reverse?",
        direction=wanted.direction,
        baseline=BASELINE,
        eval_episodes=wanted.episodes,
        rule=wanted.rule,
        budget=Budget(),
        metric_range=wanted.metric_range,
        failed_score=wanted.failed_score,
    )


def _script(wanted: Specification, charter: Charter) -> Script:
    # The baseline leaves to its default what the first arm names.
    settings: list[dict[str, Any]] = [{}, {"batch_size": 16}, {"lr": 0.003}, {"num_repeat": 4}, {"lr": 0.01}]
    arms = tuple(
        Arm(
            f"a{index}",
            settings[index],
            {"engine": "fake", "total_steps": 5, **settings[index]},
            "asked for",
            is_baseline=index == 0,
        )
        for index in range(wanted.arms)
    )
    names = [arm.name for arm in arms]
    hypotheses = tuple(
        Hypothesis(f"{relation.value} of {', '.join((*contrast.arms, *contrast.against))}", "so", names, contrast)  # type: ignore[arg-type]
        for relation in wanted.relations
        if (contrast := _contrast(relation, names)) is not None
    )
    plans = [
        Plan(number, hypotheses, arms, tuple(range(number * wanted.seeds, (number + 1) * wanted.seeds)), "the arms")
        for number in range(wanted.rounds)
    ]
    out = {} if wanted.disqualified is None else {names[wanted.disqualified]: "its program answers in code, p = 0"}
    decisions = [Decision(Action.REFINE, f"Go on. {OPINIONS[0]}")] * (wanted.rounds - 1)
    decisions.append(Decision(Action.STOP, f"All is said. {OPINIONS[1]}", disqualified=out))
    return Script(charter, plans, {}, decisions, interpretations=[_claims(wanted, names)] * wanted.rounds)


def _contrast(relation: Relation, names: Sequence[str]) -> Contrast | None:
    others = tuple(names[1:])
    if not others:
        return None
    match relation:
        case Relation.INTERACTION:
            return Contrast(relation, tuple(names[:4])) if len(names) > 3 else None
        case Relation.BEST:
            return Contrast(relation, tuple(names))
        case Relation.MATTERS_MORE:
            return Contrast(relation, others[:1], others[1:2]) if len(others) > 1 else None
        case _:
            return Contrast(relation, others[-1:], (names[-2],), 0.05)


def _claims(wanted: Specification, names: Sequence[str]) -> tuple[Claim, ...]:
    chance = random.Random(wanted.seed + 1)
    one, other = chance.choice(names), chance.choice(names)
    return (
        Claim(ClaimKind.MEAN, arm=one, number=round(wanted.means[names.index(one)], 2)),
        Claim(ClaimKind.BETTER, arm=one, other=other, number=chance.choice((None, 0.1)), significant=None),
        Claim(ClaimKind.WORSE, arm=one, other=other),
        Claim(ClaimKind.EQUAL, arm=one, other=other, number=0.3),
        Claim(ClaimKind.P_VALUE, arm=names[-1], other=names[0], number=chance.choice((0.0, 0.5))),
        Claim(ClaimKind.BEST, arm=one),
        Claim(ClaimKind.RANKING, arms=tuple(names)),
        Claim(ClaimKind.FAILED, arm=chance.choice((None, one)), number=0),
        Claim(ClaimKind.MEAN, arm=one, number=0.3, measured=Measured.BEFORE),
        Claim(ClaimKind.OPINION, text=chance.choice(OPINIONS)),
    )


class _Rows:
    """Rows of runs and scores, written in one transaction past the store: one by one takes most of a study's time."""

    def __init__(self, deps: Deps, charter: Charter) -> None:
        self._store, self._study, self._charter = deps.store, deps.study_id, charter
        self._runs: list[tuple[Any, ...]] = []
        self._scores: list[tuple[Any, ...]] = []
        self._clock = time.time() - 1000.0

    def add_run(
        self,
        experiment: str,
        key: tuple[int, int, int],
        status: RunStatus,
        reason: str | None = None,
        diagnosis: Mapping[str, Any] | None = None,
        cost: AttemptCost | None = None,
    ) -> str:
        index, number, attempt = key
        self._clock += 0.001
        name = f"{self._study}-{index}-{number}-{attempt}"
        self._runs.append(
            (
                *(name, self._study, experiment, number, attempt, run_key(self._study, f"a{index}", number, attempt)),
                *(status.value, "http://one", "{}", json.dumps({"total_steps": 5}), "{}", reason),
                None if diagnosis is None else json.dumps(dict(diagnosis)),
                None if cost is None else json.dumps(cost_to_json(cost)),
                *(0, 5 if status is RunStatus.FINISHED else None, self._clock, self._clock, self._clock, 0),
            )
        )
        return name

    def add_score(self, run: str, phase: str, mean: float, details: Mapping[str, Any]) -> float:
        """Return the score: the share of whole episodes that is nearest to the mean."""
        charter, episodes = self._charter, self._charter.eval_episodes
        solved = min(episodes, max(0, round(mean * episodes)))
        share = solved / episodes
        split = charter.test_split if phase == TEST else charter.search_split
        self._scores.append(
            (
                *(run, phase, split, charter.metric, 0, episodes, solved, share),
                *((share * (1 - share) / episodes) ** 0.5, HASH, json.dumps(dict(details)), self._clock),
            )
        )
        return share

    def write(self) -> None:
        with closing(sqlite3.connect(self._store.location)) as database, database:
            database.executemany(_insert("runs", _RUN), self._runs)
            database.executemany(_insert("evaluations", _SCORE), self._scores)


_RUN = (
    "id study_id experiment_id seed attempt idempotency_key status server_url external_ids job environment exit_reason "
    "diagnosis training_cost base_weight_version final_weight_version created_at started_at updated_at rung"
)
_SCORE = "run_id phase split metric weight_version episodes successes mean stderr evaluator_hash details created_at"


def _insert(table: str, columns: str) -> str:
    names = columns.split()
    return f"insert into {table} ({', '.join(names)}) values ({', '.join('?' * len(names))})"


def _train(deps: Deps, charter: Charter, wanted: Specification, iteration: int, chance: random.Random) -> None:
    store, rows = deps.store, _Rows(deps, charter)
    for experiment in store.list_experiments(deps.study_id):
        if experiment.status is ExperimentStatus.DRAFT:
            store.revise_experiment(experiment.id, program_code=load("program"), author=Author.PACKAGE)
            store.revise_experiment(experiment.id, status=ExperimentStatus.READY)
        index = int(experiment.name[1:])
        for number in range(iteration * wanted.seeds, (iteration + 1) * wanted.seeds):
            _play(rows, wanted, experiment.id, index, number, chance)
    rows.write()
    deps.ledger.charge(BudgetKind.RUNS, wanted.arms * wanted.seeds, f"plan {iteration}")


def _play(rows: _Rows, wanted: Specification, experiment: str, index: int, number: int, chance: random.Random) -> None:
    """One arm with one seed, to its end."""
    fate = wanted.fates[index, number]
    broken = MAX_ON_ONE_SERVER if fate == LOST else int(fate == RETRIED)
    for attempt in range(1, broken + 1):
        found = {"kind": "stall", "sentence": REASONS[fate], "is_retried": True}
        rows.add_run(experiment, (index, number, attempt), RunStatus.FAILED, REASONS[fate], found)
    if fate == LOST:
        return
    status, kind, reason = _ENDS.get(fate, (RunStatus.FINISHED, "", "all 5 steps done"))
    found = {"kind": kind, "sentence": reason, "is_retried": False} if kind else None
    cost = _cost(wanted, index, 30) if index < len(wanted.calls) else None
    run = rows.add_run(experiment, (index, number, broken + 1), status, reason, found, cost)
    base = 0.3 if wanted.has_same_base else 0.2 + 0.1 * chance.random()
    rows.add_score(run, BASE, base, {MEASURED_ON: "run-x"} if wanted.has_same_base and (index or number) else {})
    if status is not RunStatus.FINISHED:
        return
    mean = wanted.means[0] if wanted.is_equal else wanted.means[index] + chance.gauss(0, wanted.spread)
    details = {COST: cost_to_json(_cost(wanted, index, wanted.episodes))} if index < len(wanted.calls) else {}
    rows.add_score(run, FINAL, 0.1 if kind else mean, details)


_ENDS = {
    COLLAPSED: (RunStatus.FINISHED, COLLAPSED, "It learns nothing."),
    NO_SIGNAL: (RunStatus.FINISHED, NO_SIGNAL, "No batch has a signal."),
    DIVERGED: (RunStatus.FAILED, DIVERGED, "The loss is not finite."),
    STOPPED: (RunStatus.STOPPED, BUDGET, "--max-hours 1 is spent"),
    OPEN: (RunStatus.RUNNING, "", None),
}


def _cost(wanted: Specification, index: int, attempts: int) -> AttemptCost:
    calls = wanted.calls[index]
    return AttemptCost(attempts, calls, 20 * calls, 5 * calls, 0.5, (1.0,), model_share=wanted.shares[index])


def _score_test(deps: Deps, charter: Charter, chance: random.Random) -> None:
    arms = choose_finalists(deps.log, charter)
    if len(arms) < 2:
        return
    deps.store.open_test_split(deps.study_id, f"score {', '.join(arms)}")
    rows = _Rows(deps, charter)
    for arm in arms:
        experiment = deps.store.find_experiment(deps.study_id, arm)
        assert experiment is not None
        for run in deps.store.list_runs(experiment_id=experiment.id):
            final = deps.store.find_evaluation(run.id, FINAL, charter.search_split)
            if run.status is RunStatus.FINISHED and final is not None:
                rows.add_score(run.id, TEST, final.mean - 0.2 * (chance.random() < 0.2), {})
    rows.write()


def rich() -> Specification:
    """Return a study in which everything happens: a kept arm that spends more, every end of a run, a test score."""
    fates = {(arm, number): FINISHED for arm in range(4) for number in range(8)}
    fates |= {(1, 0): RETRIED, (1, 1): NO_SIGNAL, (2, 0): COLLAPSED, (2, 1): DIVERGED, (2, 2): LOST}
    return replace(
        draw(0),
        arms=4,
        seeds=8,
        rounds=1,
        means=(0.5, 0.51, 0.45, 0.9),
        spread=0.02,
        episodes=90,
        fates=fates,
        direction="maximize",
        metric_range=(0.0, 1.0),
        failed_score="base",
        rule=DecisionRule(),
        relations=(Relation.BETTER, Relation.BEST, Relation.MATTERS_MORE),
        has_same_base=True,
        is_tested=True,
        disqualified=None,
        calls=(1.0, 1.0, 1.0, 8.0),
        shares=(1.0, 1.0, 1.0, 0.97),
        is_equal=False,
    )
