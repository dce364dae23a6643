"""A search without servers: its plans and decisions are those of the loop's own nodes, its scores are given.

The planner is a script, or rules with a stand-in for the proposer. Runs are stored as the evaluator stores them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from scripted_planner import Script, ScriptedPlanner

from experiments_db import (
    Author,
    BudgetKind,
    Experiment,
    ExperimentStatus,
    ExperimentStore,
    Operator,
    Run,
    RunStatus,
    open_store,
)
from prompts import load
from researcher.charter import SHARES_OF_SEARCH, Budget, Charter, DecisionRule, SearchRules
from researcher.evaluation.authorship import Authorship
from researcher.history import Action, Decision, Response
from researcher.loop.deps import Deps, ResearchState, first_state
from researcher.loop.nodes.analyze import analyze
from researcher.loop.nodes.decide import decide
from researcher.loop.nodes.plan import plan
from researcher.loop.nodes.write_program import write_program
from researcher.phases import AUTHORSHIP, BASE, COST, FINAL, FROM_RUNG, MANIPULATION
from researcher.plan import Arm, Plan, Stage
from researcher.planner.base import Planner
from researcher.record.budget import BudgetLedger
from researcher.record.costs import AttemptCost, cost_to_json
from researcher.record.log import StudyLog, to_json
from researcher.record.runs import TrialState, cost_of, job_of, list_trials, run_key
from researcher.reviewer.build import Reviewer
from researcher.search.policies import ChooseMoves
from researcher.servers.server_pool import ServerPool
from swarm.environments import load_environment

STEPS = 8
RULES = SearchRules(rungs=(0.25, 0.5, 1.0), runs=6.0, episodes=20)
REFINE = Decision(Action.REFINE, "Go on.")


def make_charter(**changes: Any) -> Charter:
    """A charter of a search on word reversal, whose factors are open."""
    with closing(load_environment("reverse")) as environment:
        digest = environment.digest
    charter = Charter(
        topic="Which settings are best?",
        question="Which settings train word reversal best?",
        environment_name="reverse",
        metric="mean reward of held-out episodes",
        direction="maximize",
        baseline="baseline",
        search_split="validation",
        test_split="test",
        eval_episodes=20,
        rule=DecisionRule(shares=SHARES_OF_SEARCH),
        budget=Budget(),
        planner="scripted",
        environment="reverse",
        environment_digest=digest,
        metric_range=(0.0, 1.0),
        search=RULES,
    )
    return replace(charter, **changes)


def make_arm(name: str, *, parent: str | None = "baseline", **settings: Any) -> Arm:
    job = {"engine": "fake", "lr": 1e-3, "total_steps": STEPS, **settings}
    return Arm(
        name,
        {key: value for key, value in job.items() if key not in ("engine", "total_steps")},
        job,
        f"why {name}",
        is_baseline=name == "baseline",
        parent=None if name == "baseline" else parent,
        operator=None if name == "baseline" else Operator.DRAFT,
    )


BASELINE = make_arm("baseline")
FAST = make_arm("fast", lr=3e-3)
WIDE = make_arm("wide", lr=1e-2, num_repeat=16)


def make_round(arms: Sequence[Arm], **rungs: int) -> Plan:
    steps = {arm.name: rungs.get(arm.name, 2) for arm in arms}
    return Plan(0, (), tuple(arms), (0,), "a round", stage=Stage.EXPLORE, rungs=steps)


@dataclass
class SearchedStudy:
    """A search at one of its iterations."""

    deps: Deps
    state: ResearchState

    @property
    def store(self) -> ExperimentStore:
        return self.deps.store

    @property
    def charter(self) -> Charter:
        return self.deps.log.charter()

    @property
    def plans(self) -> tuple[Plan, ...]:
        return self.deps.log.history().plans

    def arm(self, name: str) -> Experiment:
        found = self.store.find_experiment(self.deps.study_id, name)
        assert found is not None
        return found

    def plan(self) -> Plan | None:
        """Make the next plan and the programs of its arms; None if the study ends instead."""
        self.state = plan(self.deps, self.state)
        if self.state["is_halted"]:
            return None
        write_program(self.deps, self.state)
        for item in self.store.list_experiments(self.deps.study_id):
            if item.status is ExperimentStatus.DRAFT:
                self.store.revise_experiment(item.id, status=ExperimentStatus.READY)
        return self.plans[-1]

    def train(
        self,
        means: Mapping[str, float],
        passed: Mapping[str, tuple[int, int]] | None = None,
        *,
        by_code: Collection[str] = (),
        votes: Collection[str] = (),
    ) -> None:
        """Finish every open run of the plan with the mean of its arm; of an arm without one it fails by itself.

        `passed` says of how many transcripts of an arm so many pass its manipulation check. The code of the arms
        `by_code` told their model the answers. Those with `votes` make three calls in evaluation and one in training.
        """
        for trial in list_trials(self.store, self.deps.study_id, self.plans[-1]):
            if trial.state is not TrialState.OPEN:
                continue
            name, seed, rung = trial.experiment.name, trial.seed, trial.rung
            if name in votes:
                code = "def agent(task, model, session):\n    return model.chat(session.messages)\n"
                self.store.revise_experiment(trial.experiment.id, program_code=code, author=Author.LANGUAGE_MODEL)
            key = run_key(self.deps.study_id, name, seed, 1, rung)
            job = job_of(self.deps.study_id, trial.experiment, seed, 1, rung)
            run = self.store.claim_run(trial.experiment.id, seed, key, rung=rung, job=job)
            earlier = [each.rung for each in self.store.list_runs(experiment_id=run.experiment_id) if each.rung < rung]
            if earlier:
                run = self.store.update_run(run.id, external_ids={FROM_RUNG: max(earlier)})
            self.deps.ledger.charge(BudgetKind.RUNS, cost_of(run, trial.experiment), trial.key, run_id=run.id)
            for status in (RunStatus.LAUNCHING, RunStatus.RUNNING):
                self.store.update_run(run.id, status=status)
            counted = (passed or {}).get(name)
            details: dict[str, Any] = {}
            if counted is not None:
                details[MANIPULATION] = {"passed": counted[0], "total": counted[1]}
            if name in by_code:
                arm = trial.experiment
                self.store.revise_experiment(arm.id, program_code=arm.program_code, author=Author.LANGUAGE_MODEL)
                details[AUTHORSHIP] = Authorship(attempts=20, solved=12, told=9, readings=("reversed",)).to_json()
            calls = 3.0 if name in votes else 1.0
            details[COST] = cost_to_json(AttemptCost(20, calls, 10 * calls, 5 * calls, 0.1, (1.0,)))
            self.store.update_run(run.id, training_cost=cost_to_json(AttemptCost(64, 1.0, 10.0, 5.0, 0.1, (1.0,))))
            self._end(run, means.get(name), details)

    def end(self, means: Mapping[str, float]) -> ResearchState:
        """Train the plan, analyze it and decide."""
        self.train(means)
        self.state = decide(self.deps, analyze(self.deps, self.state))
        return self.state

    def _end(self, run: Run, mean: float | None, details: Mapping[str, Any]) -> None:
        if mean is None:
            found = {"kind": "program", "sentence": "it crashed", "is_retried": False}
            self.store.update_run(run.id, status=RunStatus.FAILED, exit_reason="it crashed", diagnosis=found)
            return
        self.store.update_run(run.id, status=RunStatus.EVALUATING)
        for phase, score in ((BASE, 0.1), (FINAL, mean)):
            self.store.record_evaluation(
                run.id,
                phase=phase,
                split="validation",
                metric="reward",
                weight_version=run.rung,
                episodes=20,
                successes=round(20 * score),
                mean=score + 0.001 * (run.seed % 3),
                stderr=0.01,
                evaluator_hash="e",
                details=details,
            )
        self.store.update_run(run.id, status=RunStatus.FINISHED, exit_reason="done")


def begin_search(
    home: Path,
    rounds: Sequence[Plan] = (),
    *,
    charter: Charter | None = None,
    decisions: Sequence[Decision] = (),
    responses: Mapping[str, Response] | None = None,
    planner: Planner | None = None,
    reviewer: Reviewer | None = None,
    choose: ChooseMoves | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> SearchedStudy:
    """A search that is about to make its first plan."""
    charter = charter or make_charter()
    store = open_store(home / "research.db")
    study = store.create_study(charter.topic, planner=charter.planner)
    store.freeze_charter(study.id, to_json(charter))
    programs = {arm.name: load("program") for each in rounds for arm in each.arms}
    script = Script(
        charter,
        (),
        programs,
        [*decisions, *[REFINE] * 50],
        interpretations=[()] * 50,
        trusted=True,
        rounds=rounds,
        responses=responses or {},
    )
    deps = Deps(
        log=StudyLog(store, study.id),
        planner=planner or ScriptedPlanner(script),
        pool=cast(ServerPool, SimpleNamespace(slots=(1, 2))),
        ledger=BudgetLedger(store, study.id, charter.budget, clock=clock),
        home=home,
        reviewer=reviewer,
        build_policy=lambda charter, rules: choose,
    )
    return SearchedStudy(deps, first_state(study.id))
