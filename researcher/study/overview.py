"""The present state of a study: its runs with step, reward and scores, and its progress."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from statistics import fmean, median
from typing import Any

from experiments_db import (
    TRAINING_SECONDS,
    Experiment,
    ExperimentStatus,
    ExperimentStore,
    JsonObject,
    MetricPoint,
    PlannerQuestion,
    QuestionStatus,
    Run,
    RunStatus,
    Study,
    StudyWork,
)
from researcher.phases import BASE, FINAL, PLAIN_AGENT
from researcher.question.scopes import describe_scope
from researcher.record.budget import BudgetLine, budget_lines
from researcher.record.runs import TrialState, group_trials
from researcher.record.scores import find_excluded
from researcher.scope import ArmPart, Scope
from researcher.study.requests import work_of
from swarm.guard import REWARD

EXTERNAL = "external"
"""The planner that waits for answers from outside."""

OVERDUE_SHARE = 0.25
"""The share of its time so far that a run may still take once it has taken longer than the others."""
_OVER = (TrialState.FINISHED, TrialState.GIVEN_UP)


@dataclass(frozen=True, slots=True)
class RunView:
    """One run as shown: step, last train reward and the evaluator's scores; None for a value that is not there yet.

    `seconds` are those of its steps, without pauses and outages. `rung` is the step up to which an exploring run
    trains; 0 for a run that counts. `with_plain_agent` is the final score with the baseline's agent, where the arm has
    another one.
    """

    run_id: str
    arm: str
    seed: int
    attempt: int
    status: str
    step: int
    steps: int | None
    train_reward: float | None
    base: float | None
    final: float | None
    seconds: float | None
    rung: int = 0
    with_plain_agent: float | None = None


@dataclass(frozen=True, slots=True)
class StudySnapshot:
    """The state of a study at `now`.

    A trial is an arm with a seed, up to a rung if it explores, whatever its attempts. `done` of the `planned` trials
    are over: with a score, or given up. `seconds_left` is an estimate for the plans so far, from the duration of
    finished runs. It is None until the first run has finished, once all runs have, and while no process works on the
    study. `question` waits for an external planner. `trials` are the planned arms with their seeds, in the
    order of the plans. `margin` is that of a question for equality. `excluded` are the arms that are out, with reasons.
    `scope` says in what arms may differ; it is empty before the charter.
    """

    study: Study
    work: StudyWork
    runs: tuple[RunView, ...]
    now: float
    done: int
    planned: int
    seconds_left: float | None
    budget: tuple[BudgetLine, ...] = ()
    question: PlannerQuestion | None = None
    trials: tuple[tuple[str, int], ...] = ()
    margin: float | None = None
    excluded: Mapping[str, str] = field(default_factory=dict[str, str])
    scope: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "study": asdict(self.study),
            "work": asdict(self.work),
            "runs": [asdict(run) for run in self.runs],
            "runs_done": self.done,
            "runs_planned": self.planned,
            "seconds_left": self.seconds_left,
            "leader": None if self.leader is None else self.leader[0],
            "margin": self.margin,
            "scope": self.scope,
            "question": question_as_json(self.question),
            "budget": {line.name: {"used": line.used, "limit": line.limit} for line in self.budget},
        }

    @property
    def progress(self) -> str:
        """The progress as text, such as "3 of 12 runs done, about 4 min left"; empty while nothing is planned.

        No time stands there once nothing planned is left to do.
        """
        if not self.planned:
            return ""
        left = f", {describe_left(self.seconds_left)}" if self.seconds_left else ""
        return f"{self.done} of {self.planned} runs done{left}"

    @property
    def leader(self) -> tuple[str, float, int] | None:
        """The arm with the best mean held-out score so far, that mean, and its number of runs; None without scores.

        An arm that is out leads nothing.
        """
        scores: dict[str, dict[int, float]] = {}
        for run in self.runs:
            if run.final is not None and not run.rung and run.arm not in self.excluded:
                scores.setdefault(run.arm, {})[run.seed] = run.final
        means = [(arm, fmean(of_arm.values()), len(of_arm)) for arm, of_arm in scores.items()]
        return max(means, key=lambda item: item[1], default=None)


@dataclass(frozen=True, slots=True)
class TrialProgress:
    """Trials done and planned, the median duration of finished runs, and the claim times of runs in progress."""

    done: int = 0
    planned: int = 0
    took_s: float | None = None
    active_since: tuple[float, ...] = ()


def take_snapshot(store: ExperimentStore, study_id: str) -> StudySnapshot:
    """Return the study as the database has it now. Raises what the store raises."""
    arms = {arm.id: arm for arm in store.list_experiments(study_id)}
    runs = store.list_runs(study_id=study_id)
    plans = [plan.document for plan in store.list_plans(study_id)]
    points = store.latest_points([run.id for run in runs], REWARD)
    seconds = store.sum_metric([run.id for run in runs], TRAINING_SECONDS)
    means: dict[str, dict[str, float]] = {}
    for item in store.list_evaluation_summaries(study_id=study_id):
        means.setdefault(item.run_id, {})[item.phase] = item.mean
    study, now = store.get_study(study_id), time.time()
    charter = store.find_charter(study_id)
    work, progress = work_of(store, study), _measure(arms, runs, plans)
    return StudySnapshot(
        study=study,
        work=work,
        runs=tuple(
            _view(run, arms[run.experiment_id].name, points.get(run.id), means.get(run.id, {}), seconds.get(run.id))
            for run in runs
        ),
        now=now,
        done=progress.done,
        planned=progress.planned,
        seconds_left=estimate_seconds_left(progress, now) if work.is_at_work else None,
        budget=budget_lines(study.settings, store.sum_budget(study_id)),
        question=find_question(store, study),
        trials=tuple(
            dict.fromkeys((arm["name"], seed) for plan in plans for arm in plan["arms"] for seed in plan["seeds"])
        ),
        margin=None if charter is None else charter.document["asks"]["margin"],
        excluded=find_excluded(store, study_id),
        scope="" if charter is None else _scope_of(charter.document["asks"]["scope"]),
    )


def _view(run: Run, arm: str, point: MetricPoint | None, means: Mapping[str, float], seconds: float | None) -> RunView:
    steps = run.rung or run.job.get("total_steps")
    return RunView(
        run_id=run.id,
        arm=arm,
        seed=run.seed,
        attempt=run.attempt,
        status=run.status.value,
        step=point.step if point else 0,
        steps=steps if isinstance(steps, int) else None,
        train_reward=point.value if point else None,
        base=means.get(BASE),
        final=means.get(FINAL),
        seconds=seconds,
        rung=run.rung,
        with_plain_agent=means.get(PLAIN_AGENT[FINAL]),
    )


def _measure(arms: Mapping[str, Experiment], runs: Sequence[Run], plans: Sequence[JsonObject]) -> TrialProgress:
    """Return the progress; an arm that cannot run no longer counts as planned."""
    invalid = {arm.name for arm in arms.values() if arm.status is ExperimentStatus.INVALID}
    planned = {
        (arm["name"], seed, plan["rungs"].get(arm["name"], 0))
        for plan in plans
        for arm in plan["arms"]
        for seed in plan["seeds"]
        if arm["name"] not in invalid
    }
    trials = group_trials(arms, runs)
    wanted = planned | {(trial.experiment.name, trial.seed, trial.rung) for trial in trials}
    done = sum(trial.state in _OVER for trial in trials)
    finished = [run for run in runs if run.status is RunStatus.FINISHED]
    # The clock may have been set back since, so no duration is below 0.
    took = [max(0.0, run.finished_at - run.created_at) for run in finished if run.finished_at]
    active = [run.created_at for run in runs if not run.status.is_over and run.status is not RunStatus.PLANNED]
    return TrialProgress(done, len(wanted), median(took) if took else None, tuple(active))


def estimate_seconds_left(progress: TrialProgress, now: float) -> float | None:
    if progress.took_s is None:
        return None
    elapsed = [max(0.0, now - since) for since in progress.active_since]
    waiting = max(0, progress.planned - progress.done - len(elapsed))
    if not waiting and not elapsed:
        return None
    # A run that takes longer than those before is not about to end: the longer it has taken, the longer it may take.
    active = sum(max(progress.took_s - seconds, OVERDUE_SHARE * seconds) for seconds in elapsed)
    return (waiting * progress.took_s + active) / max(1, len(elapsed))


def describe_left(seconds: float) -> str:
    return f"about {format_duration(seconds)} left" if seconds >= 1 else "less than 1 s left"


def describe_silence(work: StudyWork, now: float) -> str:
    """Return one line for people if no process works on a study that should go on; else an empty text."""
    if work.silent_since is None:
        return ""
    since = datetime.fromtimestamp(work.silent_since)
    age = format_duration(max(0.0, now - work.silent_since))
    return f"no process works on it: the last sign of life was {since:%Y-%m-%d %H:%M:%S}, {age} ago"


def _scope_of(stored: Mapping[str, Any]) -> str:
    return describe_scope(Scope.of(map(ArmPart, stored["parts"]), stored["settings"]))


def find_question(store: ExperimentStore, study: Study) -> PlannerQuestion | None:
    """Return the question that a study waits with, if it has an external planner."""
    return store.find_waiting_question(study.id) if study.planner == EXTERNAL else None


def question_as_json(question: PlannerQuestion | None) -> dict[str, Any] | None:
    """Return a question without its text."""
    if question is None:
        return None
    shown = asdict(question)
    return {name: shown[name] for name in ("id", "node", "status", "objection", "deadline", "created_at")}


def describe_wait(question: PlannerQuestion | None) -> str:
    """Return the wait for an external planner in words; empty without one."""
    if question is None:
        return ""
    since = datetime.fromtimestamp(question.created_at)
    if question.status is QuestionStatus.ANSWERED:
        return f"has an answer to question {question.id} ({question.node}) to read"
    return f"waits for an answer to question {question.id} ({question.node}) since {since:%Y-%m-%d %H:%M:%S}"


def format_duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"
