"""How a study goes on past its own end: the plans that a person adds to a finished one, and what alpha allows of them.

Place in the flow: the CLI asks here, in the foreground, whether a study can be extended and records that it is; the
graph begins again with the plan that is named, plan and decide keep to what was asked. An event holds the request, so
it is in the record beside what came of it. This module plans nothing itself.

The alpha of a plan is fixed by the charter (researcher/judge/judgement.py). A person who extends a study has seen its
scores, so a number of runs that the person chooses may depend on them: such a plan is judged by its fresh runs alone.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from experiments_db import Charter as StoredCharter
from experiments_db import ExperimentStore, Study, StudyStatus
from researcher.errors import AlphaSpent, NothingToExtend
from researcher.judge.judgement import share_of_alpha
from researcher.study.budget import present_budget
from researcher.study.changes.budget_change import change_budget
from researcher.study.ending import is_over, reopen
from researcher.study.log import EXTENDED, StudyLog
from researcher.study.requests import resume_command
from researcher.study.settings import read_settings, rules_brain
from researcher.types import Charter, History, Plan

FORKED = "study.forked"

NextPlan = Callable[[Charter, History], Plan]


@dataclass(frozen=True, slots=True)
class Request:
    """What a person asks for: at most `iterations` more plans (None leaves that to the planner), each with `seeds` runs
    per arm (None leaves that to the plan), with `max_runs` as the budget of the whole study (None leaves it)."""

    iterations: int | None = None
    seeds: int | None = None
    max_runs: int | None = None


@dataclass(frozen=True, slots=True)
class Continuation:
    """A request, to go on with the plan of `iteration`. `at` is when it was made, in seconds since the epoch."""

    iteration: int
    request: Request = Request()
    at: float = 0.0

    @property
    def last_iteration(self) -> int | None:
        return None if self.request.iterations is None else self.iteration + self.request.iterations - 1


def find_continuation(store: ExperimentStore, study_id: str) -> Continuation | None:
    """Return the last request there was; None in most studies."""
    events = [event for kind in (EXTENDED, FORKED) for event in store.list_events(study_id, kind=kind, limit=None)]
    if not events:
        return None
    newest = max(events, key=lambda event: event.id)
    return Continuation(newest.payload["iteration"], Request(**newest.payload["request"]), newest.created_at)


def extend(
    store: ExperimentStore, study: Study, request: Request, next_plan: NextPlan | None, home: Path
) -> Continuation:
    """Take a finished study up again; it is running afterwards, and nobody works on it yet.

    `next_plan` is the planner's, where that can be asked beforehand. Raises NothingToExtend for a study that is not
    finished or whose next plan would compare nothing or go over the budget, AlphaSpent.
    """
    if study.status is not StudyStatus.FINISHED:
        go_on = f": go on with `{resume_command(store, study.id, home)}`" if not is_over(store, study) else ""
        raise NothingToExtend(f"study {study.id} is {study.status}, not finished{go_on}")
    log = StudyLog(store, study.id)
    charter, history = log.charter(), log.history()
    charter = replace(charter, budget=present_budget(study.settings, charter.budget))
    wanted = Continuation(len(history.plans), request)
    check_alpha(charter, study.id, wanted)
    if next_plan is not None:
        check_plan(charter, history, study.id, wanted, next_plan)
    message = f"Extended by up to {request.iterations} plan(s) with {runs_per_arm(request)}."
    record(store, study.id, EXTENDED, message, wanted)
    running = reopen(store, study.id, message)
    if request.max_runs is not None:
        change_budget(store, running, {"max_runs": request.max_runs})
    return wanted


def record(store: ExperimentStore, study_id: str, kind: str, message: str, wanted: Continuation) -> None:
    """Store a request: from now on the study goes on as it asks."""
    store.append_event(
        study_id, kind, message, payload={"iteration": wanted.iteration, "request": asdict(wanted.request)}
    )


def runs_per_arm(request: Request) -> str:
    return "as many runs per arm as the plan says" if request.seeds is None else f"{request.seeds} runs per arm"


def check_alpha(charter: Charter, study_id: str, wanted: Continuation) -> None:
    """Raise AlphaSpent unless the charter has alpha for every plan that is asked for."""
    last = wanted.iteration if wanted.last_iteration is None else wanted.last_iteration
    if all(share_of_alpha(charter.rule, iteration) for iteration in range(wanted.iteration, last + 1)):
        return
    left = sum(bool(share_of_alpha(charter.rule, iteration)) for iteration in range(wanted.iteration, last))
    rest = f"it leaves alpha for {left} more" if left else f"all of it is spent by the {wanted.iteration} made"
    anew = f"researcher start --topic {shlex.quote(charter.topic)}"
    raise AlphaSpent(
        f"the charter of study {study_id} divides alpha among {len(charter.rule.shares)} plan(s), and {rest}: begin a"
        f" new study in the same database, which takes this one for its pilot: {anew}"
    )


def check_plan(charter: Charter, history: History, study_id: str, wanted: Continuation, next_plan: NextPlan) -> None:
    """Raise NothingToExtend where the next plan would compare nothing with the baseline, or its runs would go over the
    budget."""
    proposed = adapt(next_plan(charter, history), wanted, history)
    if not {arm.name for arm in proposed.arms} - {charter.baseline}:
        raise NothingToExtend(
            f"study {study_id} has no arm left to compare: every one was decided against {charter.baseline}, and what "
            "was decided stands; begin a new study for other arms"
        )
    runs = len(proposed.arms) * len(proposed.seeds)
    limit = charter.budget.max_runs if wanted.request.max_runs is None else wanted.request.max_runs
    used = history.planned_runs if history.runs_used is None else history.runs_used
    if limit is not None and used + runs > limit:
        raise NothingToExtend(
            f"{runs} runs would be added to the {used} of study {study_id}, whose --max-runs is {limit}: give fewer "
            "--seeds, or more --max-runs"
        )


def adapt(proposed: Plan, wanted: Continuation | None, history: History) -> Plan:
    """Return the planner's plan with as many runs per arm as a person asked for, which are fresh and judged alone."""
    seeds = None if wanted is None else wanted.request.seeds
    if wanted is None or seeds in (None, len(proposed.seeds)) or len(history.plans) < wanted.iteration:
        return proposed
    first = max((seed for plan in history.plans for seed in plan.seeds), default=-1) + 1
    return replace(proposed, seeds=tuple(range(first, first + seeds)), pools_runs=False)


def is_test_over(stored: StoredCharter, wanted: Continuation | None) -> bool:
    """Say whether the sealed split was opened before a person took the study up again: its scores may be why."""
    return wanted is not None and stored.test_opened_at is not None and stored.test_opened_at < wanted.at


def next_plan_of(study: Study) -> NextPlan | None:
    """Return how the planner makes the next plan, where it can be asked at once and costs nothing; else None.

    Raises ResearchError for settings that cannot be read.
    """
    settings = read_settings(study.settings)
    return rules_brain(settings).plan if settings.brain == "rules" else None
