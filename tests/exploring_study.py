"""A stored exploring study: rounds of short runs, a review, a confirmation with ablations, and the final test.

Nothing is trained. Scores are what `_TRUE` says, with a little chance. The judge, the analysis of the confirmation and
the findings are the real ones.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from statistics import stdev
from typing import Any

from scripted_planner import Script
from simulated_study import charter_of, study_deps

from experiments_db import (
    Author,
    BudgetKind,
    Experiment,
    ExperimentStatus,
    ExperimentStore,
    NoteKind,
    Operator,
    Run,
    RunStatus,
    Severity,
    StudyStatus,
)
from prompts import load
from researcher.analysis import Analysis
from researcher.charter import Budget, Charter, DecisionRule, Factor, Level, Question, SearchRules, StudyKind
from researcher.claims import Claim, ClaimKind
from researcher.judge import summarize_arm
from researcher.judge.samples import ScoredRun
from researcher.loop.deps import Deps, first_state
from researcher.loop.nodes.analyze import analyze
from researcher.phases import BASE, COST, FINAL, TEST
from researcher.plan import Arm, Contrast, Hypothesis, ManipulationCheck, Plan, Relation, Speaker, Stage
from researcher.record.costs import AttemptCost, cost_to_json
from researcher.record.log import to_json

BASELINE, WINNER, WITHOUT_LR, WITHOUT_AGENT = "plain", "both", "both-lr", "both-agent"
REJECTED, MENDED, CRASHED, PRETENDER, WITHDRAWN = "debate", "debate-2", "lr=0.3", "verifier", "table"
STEPS, EPISODES = 8, 40
RUNGS = (0.25, 0.5, 1.0)
AGENT = "def agent(task, model, session):\n    notes = model.chat('Think first.')\n    session.reply(notes)\n"
REWARD = "\n\ndef reward(task, transcript, grade):\n    return grade.score\n"
CHECK = ManipulationCheck("The model thinks before it answers.", pattern="Think", speaker=Speaker.AGENT, share=0.5)
_TRUE: Mapping[str, float] = {
    BASELINE: 0.40,
    "lr=0.003": 0.52,
    "scratchpad": 0.61,
    "short": 0.58,
    WINNER: 0.79,
    WITHOUT_LR: 0.62,
    WITHOUT_AGENT: 0.78,
    PRETENDER: 0.66,
    WITHDRAWN: 0.93,
    MENDED: 0.45,
}
"""The true score of each arm after its whole training."""


@dataclass(frozen=True, slots=True)
class Added:
    """An arm of a round with the rung that it is trained to."""

    name: str
    parents: tuple[str, ...] = ()
    operator: Operator | None = None
    purpose: str = ""
    lr: float = 0.001
    program: str = ""
    has_check: bool = False


ROUNDS: tuple[tuple[tuple[Added, ...], Mapping[str, float]], ...] = (
    (
        (
            Added(BASELINE, purpose="the arm that all others are compared with"),
            Added("lr=0.003", (BASELINE,), Operator.TUNE, "a larger step", lr=0.003),
            Added("scratchpad", (BASELINE,), Operator.DRAFT, "think before the answer", program=AGENT, has_check=True),
            Added(REJECTED, (BASELINE,), Operator.DRAFT, "two models argue", program="def agent(:\n"),
            Added(CRASHED, (BASELINE,), Operator.TUNE, "a very large step", lr=0.3),
        ),
        {},
    ),
    (
        (
            Added("short", ("scratchpad",), Operator.IMPROVE, "fewer tokens", program=AGENT + "\n"),
            Added(MENDED, (REJECTED,), Operator.DEBUG, "two models argue, mended", program=AGENT + "# debate\n"),
            Added(PRETENDER, ("scratchpad",), Operator.IMPROVE, "check", program=AGENT + "# check\n", has_check=True),
            Added(WITHDRAWN, ("scratchpad",), Operator.IMPROVE, "a table of answers", program=AGENT + "# table\n"),
        ),
        {"scratchpad": 0.5, "lr=0.003": 0.5, BASELINE: 0.5},
    ),
    (
        (
            Added(WINNER, ("scratchpad", "lr=0.003"), Operator.COMBINE, "both", 0.003, AGENT + REWARD, has_check=True),
        ),
        {WITHDRAWN: 0.5, PRETENDER: 0.5},
    ),
    ((), {WINNER: 1.0, BASELINE: 1.0}),
)  # fmt: skip


def charter(planner: str) -> Charter:
    levels = tuple(Level(f"lr={lr:g}", {"lr": lr}, {"lr": lr}) for lr in (0.001, 0.003, 0.3))
    return charter_of(
        planner,
        topic="Find the best program and learning rate for word reversal.",
        question="Which program and settings train reverse best?",
        baseline=BASELINE,
        eval_episodes=200,
        rule=DecisionRule(shares=()),
        budget=Budget(max_runs=40),
        metric_range=(0.0, 1.0),
        asks=Question(kind=StudyKind.OPTIMIZE, factors=(Factor("lr", levels),)),
        not_studied=("the size of the model",),
        search=SearchRules(rungs=RUNGS, runs=6.0, episodes=EPISODES),
    )


@dataclass(slots=True)
class ExploringStudy:
    """The builder of the record; every method adds what one node of the loop adds.

    `chance` draws scores. `pretending` are the arms that fail their manipulation check. `seeds` is the number of fresh
    seeds of the confirmation.
    """

    store: ExperimentStore
    home: Path
    seeds: int = 3
    true: Mapping[str, float] = field(default_factory=lambda: dict(_TRUE))
    pretending: frozenset[str] = frozenset({PRETENDER})
    study_id: str = ""
    deps: Deps = field(init=False)
    chance: random.Random = field(default_factory=lambda: random.Random(7))

    def __post_init__(self) -> None:
        planner = "llm:some-model"
        frozen = charter(planner)
        self.study_id = self.store.create_study(frozen.topic, planner=planner, settings={"max_runs": 40}).id
        self.store.freeze_charter(self.study_id, to_json(frozen))
        self.deps = study_deps(self.store, self.study_id, self.home, Script(frozen, [], {}, []))

    @property
    def charter(self) -> Charter:
        return self.deps.log.charter()

    def arm(self, name: str) -> Experiment:
        found = self.store.find_experiment(self.study_id, name)
        assert found is not None, name
        return found

    def explore(self, rounds: int = len(ROUNDS)) -> None:
        for number in range(rounds):
            self._round(number)

    def _round(self, number: int) -> None:
        added, promoted = ROUNDS[number]
        arms = tuple(self._arm_of(item) for item in added)
        old = tuple(self._planned(name) for name in promoted)
        shares = {item.name: RUNGS[0] for item in added} | dict(promoted)
        plan = Plan(
            number,
            (Hypothesis("Thinking first helps.", "scratchpad beats plain.", ("scratchpad", BASELINE)),)
            if number == 0
            else (),
            (*arms, *old),
            (0,),
            f"Round {number + 1}: what led goes on, and two ideas are new.",
            author=self.charter.planner,
            stage=Stage.EXPLORE,
            rungs={name: round(share * STEPS) for name, share in shares.items()},
        )
        self.deps.log.write_plan(plan, "planned")
        self._note(number, NoteKind.REASON, plan.rationale)
        self.store.record_llm_call(
            self.study_id, node="explore", model="some-model", prompt="p" * 90, response="r", input_tokens=4000,
            output_tokens=900, cost_usd=0.02, latency_s=12.0, prompt_hash="ab" * 32,
        )  # fmt: skip
        for item in added:
            self._store_arm(item, number)
        for name, share in shares.items():
            self._explore(name, share)
        self._write_analysis(plan)
        self._decide(number, "confirm" if number == len(ROUNDS) - 1 else "refine")

    def _arm_of(self, item: Added) -> Arm:
        return Arm(
            item.name,
            {"lr": item.lr},
            {"engine": "fake", "model": "nano", "lr": item.lr, "total_steps": STEPS},
            item.purpose,
            is_baseline=item.name == BASELINE,
            parent=item.parents[0] if item.parents else None,
            operator=item.operator,
            second_parent=item.parents[1] if len(item.parents) > 1 else None,
            manipulation=CHECK if item.has_check else None,
        )

    def _planned(self, name: str) -> Arm:
        plans = self.deps.log.history().plans
        return next(arm for plan in plans for arm in plan.arms if arm.name == name)

    def _store_arm(self, item: Added, iteration: int) -> None:
        planned = self._arm_of(item)
        parents = [self.arm(name).id for name in item.parents]
        experiment = self.store.create_experiment(
            self.study_id,
            item.name,
            factors=dict(planned.factors),
            job=dict(planned.job),
            program_code=item.program or load("program"),
            author=Author.LANGUAGE_MODEL if item.program else Author.PACKAGE,
            parent_id=parents[0] if parents else None,
            second_parent_id=parents[1] if len(parents) > 1 else None,
            operator=item.operator,
            iteration=iteration,
            is_baseline=planned.is_baseline,
            purpose=item.purpose,
            manipulation=to_json(CHECK) if item.has_check else None,
        )
        if item.program:
            self._try(experiment, is_broken=item.name == REJECTED)
        if item.name == REJECTED:
            why = "the program does not parse: invalid syntax (line 1)"
            self.store.revise_experiment(experiment.id, status=ExperimentStatus.INVALID, note=why)
            self._note(iteration, NoteKind.FAILED, f"{item.name}: {why}")
            return
        self.store.revise_experiment(experiment.id, status=ExperimentStatus.READY)

    def _try(self, experiment: Experiment, *, is_broken: bool) -> None:
        said = {"role": "assistant", "content": "Think: EXIQ <b>"}
        transcript = {"task": "reverse/train/1", "messages": [said], "score": 0.5, "error": None}
        passed = None if experiment.manipulation is None or is_broken else 7
        self.store.record_program_trial(
            self.study_id,
            code_digest=sha256(experiment.program_code.encode()).hexdigest(),
            attempts=8,
            broken=8 if is_broken else 0,
            seconds=3.5,
            experiment_id=experiment.id,
            mean=None if is_broken else 0.34,
            mean_reward=None if is_broken else 0.4,
            calls=None if is_broken else 2.0,
            tokens=None if is_broken else 61.0,
            passed=passed,
            error="SyntaxError: invalid syntax" if is_broken else None,
            transcripts=[] if is_broken else [transcript],
        )

    def _explore(self, name: str, share: float) -> None:
        experiment = self.arm(name)
        if experiment.status is ExperimentStatus.INVALID:
            return
        rung = round(share * STEPS)
        former = [run for run in self.store.list_runs(experiment_id=experiment.id) if run.rung]
        job = {**experiment.job, **({"resume_from": "/checkpoints/1"} if former else {})}
        is_crash = name == CRASHED
        run = self._begin(experiment, 0, rung, job)
        cost = share - (former[-1].rung / STEPS if former else 0.0)
        self.deps.ledger.charge(BudgetKind.RUNS, cost, f"{name}/0/{rung}", run_id=run.id)
        if is_crash:
            found = {"kind": "not_finite", "sentence": "the loss is not finite", "is_retried": False}
            self.store.update_run(
                run.id, status=RunStatus.FAILED, exit_reason="the loss is not finite at step 1", diagnosis=found
            )
            self.deps.log.warn("run.failed", f"{name} failed: the loss is not finite", run_id=run.id)
            self._note(experiment.iteration, NoteKind.FAILED, f"{name}: the loss is not finite at step 1")
            return
        goal = self.true[name]
        self._score(run, BASE, 0.31, EPISODES)
        score = self._score(run, FINAL, 0.31 + (goal - 0.31) * share**0.5, EPISODES)
        self.store.update_run(run.id, status=RunStatus.FINISHED, exit_reason=f"ended at step {rung}")
        self._note(experiment.iteration, NoteKind.TRIED, f"{name}: {score:.3f} at step {rung}", f"{name}/{rung}")

    def _begin(self, experiment: Experiment, seed: int, rung: int, job: Mapping[str, Any]) -> Run:
        key = f"{self.study_id}/{experiment.name}/{seed}/{rung}"
        run = self.store.claim_run(experiment.id, seed, key, rung=rung, job={**job, "seed": seed})
        self.store.update_run(run.id, status=RunStatus.LAUNCHING, server_url="http://127.0.0.1:9")
        self.store.update_run(run.id, status=RunStatus.RUNNING, base_weight_version=0, environment={"swarm": "1"})
        return run

    def _score(self, run: Run, phase: str, mean: float, episodes: int, split: str = "validation") -> float:
        solved = [index < round(mean * episodes) for index in range(episodes)]
        share = sum(solved) / episodes
        details: dict[str, Any] = {
            "tasks": [f"reverse/{split}/{index}" for index in range(episodes)],
            "rewards": [float(won) for won in solved],
            "solved": solved,
        }
        experiment = next(item for item in self.store.list_experiments(self.study_id) if item.id == run.experiment_id)
        if phase == FINAL:
            has_agent = experiment.program_code.startswith(AGENT)
            details[COST] = cost_to_json(AttemptCost(episodes, 2.0 if has_agent else 1.0, 40.0, 60.0, 0.4))
        if phase == FINAL and experiment.manipulation is not None:
            details["manipulation"] = {"passed": 3 if experiment.name in self.pretending else 29, "total": 32}
        self.store.record_evaluation(
            run.id, phase=phase, split=split, metric=self.charter.metric, weight_version=0 if phase == BASE else 1,
            episodes=episodes, successes=sum(solved), mean=share, stderr=stdev(details["rewards"]) / episodes**0.5,
            evaluator_hash=("e" if run.rung else "c") * 64, details=details,
        )  # fmt: skip
        return share

    def _write_analysis(self, plan: Plan) -> None:
        """Store what exploration has found so far: one score for each arm, and no comparison."""
        scored: dict[str, ScoredRun] = {}
        for experiment in self.store.list_experiments(self.study_id):
            for run in self.store.list_runs(experiment_id=experiment.id):
                found = self.store.find_evaluation(run.id, FINAL, "validation")
                if found is not None:
                    scored[experiment.name] = ScoredRun(run.id, found.mean, found.stderr**2, 0.31)
        arms = tuple(summarize_arm(name, {0: run}, self.charter) for name, run in scored.items())
        ranking = tuple(item.arm for item in sorted(arms, key=lambda item: -item.mean))
        self.deps.log.write_analysis(plan.iteration, Analysis(arms, (), ranking, {}), "explored")

    def _decide(self, iteration: int, action: str, claims: tuple[Claim, ...] = ()) -> None:
        score = self.store.list_analyses(self.study_id)[-1]
        first = score.document["arms"][0]
        said = claims or (
            Claim(ClaimKind.MEAN, arm=first["arm"], number=round(first["mean"], 3)),
            Claim(ClaimKind.OPINION, text="It will go on like this."),
        )
        self.store.record_decision(
            self.study_id, iteration, action=action, reason="The leaders are worth more steps.",
            details={"claims": [to_json(claim) for claim in said], "author": self.charter.planner},
        )  # fmt: skip

    def review(self) -> None:
        """Review the leader, which is withdrawn, and then the winner, which stands."""
        iteration = len(ROUNDS)
        grave = {"kind": "leak", "sentence": "The program holds a table of answers.", "is_grave": True}
        first = self.store.record_review(
            self.study_id, iteration, self.arm(WITHDRAWN).id, reviewer="rules", objections=[grave]
        )
        self.store.respond_to_review(first.id, "True; I take it back.", is_withdrawn=True)
        slight = {"kind": "other", "sentence": "It uses twice the calls.", "is_grave": False}
        second = self.store.record_review(
            self.study_id, iteration, self.arm(WINNER).id, reviewer="rules", objections=[slight]
        )
        self.store.respond_to_review(second.id, "The cost is shown beside it.", is_withdrawn=False)
        self._note(iteration, NoteKind.OBJECTION, "table: The program holds a table of answers.")
        self._note(iteration, NoteKind.LESSON, "Thinking first matters more than the step size.")

    def confirm(self) -> None:
        iteration = len(ROUNDS)
        baseline, winner = self._planned(BASELINE), self._planned(WINNER)
        ablated = (
            replace(
                winner, name=WITHOUT_LR, factors={"lr": 0.001}, job={**winner.job, "lr": 0.001}, parent=WINNER,
                rationale="without lr 0.003", second_parent=None, operator=Operator.ABLATE, manipulation=None,
            ),
            replace(
                winner, name=WITHOUT_AGENT, rationale="without the function agent", parent=WINNER, second_parent=None,
                operator=Operator.ABLATE, manipulation=None,
            ),
        )  # fmt: skip
        hypotheses = (
            Hypothesis(
                f"{WINNER} is better than {BASELINE}.", "It was in exploration.", (WINNER, BASELINE),
                Contrast(Relation.BETTER, (WINNER,), (BASELINE,)),
            ),
            *(
                Hypothesis(
                    f"{WINNER} is better than {arm.name}.", "The part matters.", (WINNER, arm.name),
                    Contrast(Relation.BETTER, (WINNER,), (arm.name,)),
                )
                for arm in ablated
            ),
        )  # fmt: skip
        seeds = tuple(range(1, 1 + self.seeds))
        plan = Plan(
            iteration, hypotheses, (baseline, winner, *ablated), seeds, "The best arm of exploration on fresh seeds.",
            author="study", primary=(WINNER,),
        )  # fmt: skip
        self.deps.log.write_plan(plan, "planned")
        for arm, code in zip(ablated, (AGENT + REWARD, load("program") + REWARD), strict=True):
            experiment = self.store.create_experiment(
                self.study_id, arm.name, factors=dict(arm.factors), job=dict(arm.job), program_code=code,
                author=Author.LANGUAGE_MODEL, parent_id=self.arm(WINNER).id, operator=Operator.ABLATE,
                iteration=iteration, purpose=arm.rationale,
            )  # fmt: skip
            self.store.revise_experiment(experiment.id, status=ExperimentStatus.READY)
        for index, item in enumerate(hypotheses):
            self.store.create_hypothesis(
                self.study_id, f"h{iteration}.{index}", item.statement, rationale=item.prediction, iteration=iteration
            )
        for seed in seeds:
            for arm in plan.arms:
                experiment = self.arm(arm.name)
                run = self._begin(experiment, seed, 0, arm.job)
                self.deps.ledger.charge(BudgetKind.RUNS, 1, f"{arm.name}/{seed}", run_id=run.id)
                self._score(run, BASE, 0.31, 200)
                self._score(run, FINAL, self.true[arm.name] + self.chance.gauss(0, 0.015), 200)
                self.store.update_run(run.id, status=RunStatus.FINISHED, exit_reason=f"all {STEPS} steps done")
        state: Any = {**first_state(self.study_id), "iteration": iteration}
        analyze(self.deps, state)
        self._decide(iteration, "stop", (Claim(ClaimKind.BETTER, arm=WINNER, other=BASELINE, significant=True),))

    def test(self) -> None:
        self.store.open_test_split(self.study_id, f"score {WINNER} and {BASELINE}")
        for name in (WINNER, BASELINE):
            for run in self.store.list_runs(experiment_id=self.arm(name).id, statuses=[RunStatus.FINISHED]):
                if not run.rung:
                    self._score(run, TEST, self.true[name] + self.chance.gauss(0, 0.015), 200, "test")

    def ask(self) -> None:
        """Leave a question to an external planner open, after one that was answered."""
        first = self.store.ask_planner(self.study_id, "explore", "What shall the next round try?")
        self.store.answer_question(first.id, "An arm.")
        self.store.close_question(first.id)
        self.store.ask_planner(self.study_id, "decide", "Go on, or stop?", deadline=2e9)

    def finish(self) -> None:
        self.store.append_event(self.study_id, "study.done", "done", severity=Severity.INFO)
        self.store.set_study_status(self.study_id, StudyStatus.FINISHED, "the report is written")

    def _note(self, iteration: int, kind: NoteKind, text: str, key: str = "") -> None:
        author = self.charter.planner if kind in (NoteKind.REASON, NoteKind.LESSON) else "study"
        key = f"{iteration}/{kind}/{key or text[:40]}"
        self.store.write_note(self.study_id, key, kind, text, iteration=iteration, author=author)


def complete_study(
    store: ExperimentStore,
    home: Path,
    *,
    true: Mapping[str, float] | None = None,
    pretending: frozenset[str] = frozenset({PRETENDER}),
) -> ExploringStudy:
    """Return a study with all its parts, and a question to an external planner left open."""
    study = ExploringStudy(store, home, true={**_TRUE, **(true or {})}, pretending=pretending)
    study.explore()
    study.review()
    study.confirm()
    study.test()
    study.ask()
    study.finish()
    return study
