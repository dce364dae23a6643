"""The continuation of a study that has ended: more plans as far as alpha is left, or a raised budget."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from experiments_db import BudgetKind, ExperimentStore, StoredCharter, Study, StudyStatus
from researcher.charter import Charter
from researcher.errors import AlphaSpent, NothingToExtend, TopicInvalid
from researcher.history import History
from researcher.judge.judgement import share_of_alpha
from researcher.plan import Plan
from researcher.record.budget import present_budget
from researcher.record.log import EXTENDED, StudyLog
from researcher.study.ending import is_cut_short, is_over, reopen
from researcher.study.requests import resume_command
from researcher.study.settings import StudySettings, read_settings

NextPlan = Callable[[Charter, History], Plan]


@dataclass(frozen=True, slots=True)
class Continuation:
    """The request of a person for at most `iterations` more plans, from that of `iteration` on.

    Each plan has `seeds` runs per arm; None leaves their number to the plan. `at` is the time of the request in seconds
    since the epoch.
    """

    iteration: int
    iterations: int
    seeds: int | None = None
    at: float = 0.0

    @property
    def last_iteration(self) -> int:
        return self.iteration + self.iterations - 1


def find_continuation(store: ExperimentStore, study_id: str) -> Continuation | None:
    """Return the last request; None if there is none, as in most studies."""
    newest = next(iter(store.list_events(study_id, kind=EXTENDED, newest_first=True, limit=1)), None)
    if newest is None:
        return None
    return Continuation(**newest.payload, at=newest.created_at)


def extend(
    store: ExperimentStore,
    study: Study,
    *,
    iterations: int,
    seeds: int | None,
    max_runs: int | None,
    next_plan: NextPlan | None,
    home: Path,
) -> None:
    """Set a finished study running again, though no process works on it yet.

    `max_runs` is the budget of the whole study; None leaves it as it is. `next_plan` is the planner's method, if the
    planner can be asked beforehand. Raises AlphaSpent. Raises NothingToExtend for a study that is not finished, or
    whose next plan would compare nothing or exceed the budget.
    """
    if study.status is not StudyStatus.FINISHED:
        go_on = f": go on with `{resume_command(store, study.id, home)}`" if not is_over(store, study) else ""
        raise NothingToExtend(f"study {study.id} is {study.status}, not finished{go_on}")
    log = StudyLog(store, study.id)
    charter, history = log.charter(), log.history()
    if charter.search is not None:
        raise NothingToExtend(
            f"study {study.id} is a search, whose rounds follow from its budget: begin another study in the same"
            " database, with more --max-runs"
        )
    charter = replace(charter, budget=present_budget(study.settings, charter.budget))
    wanted = Continuation(len(history.plans), iterations, seeds)
    _check_alpha(charter, study.id, iterations, history)
    if next_plan is not None:
        _check_plan(charter, history, study.id, wanted, max_runs, next_plan)
    runs = "as many runs per arm as the plan says" if seeds is None else f"{seeds} runs per arm"
    message = f"Extended by up to {iterations} plan(s) with {runs}."
    payload = {"iteration": wanted.iteration, "iterations": iterations, "seeds": seeds}
    store.append_event(study.id, EXTENDED, message, payload=payload)
    running = reopen(store, study.id, message)
    if max_runs is not None:
        change_budget(store, running, {"max_runs": max_runs})


def _check_alpha(charter: Charter, study_id: str, count: int, history: History) -> None:
    """Raise AlphaSpent unless the charter has alpha for every plan that is asked for."""
    first = history.claims
    shares = [share_of_alpha(charter.rule, claim) for claim in range(first, first + count)]
    if all(shares):
        return
    left = sum(map(bool, shares))
    rest = f"it leaves alpha for {left} more" if left else f"all of it is spent by the {first} made"
    anew = f"researcher start --topic {shlex.quote(charter.topic)}"
    raise AlphaSpent(
        f"the charter of study {study_id} divides alpha among {len(charter.rule.shares)} plan(s), and {rest}: begin a"
        f" new study in the same database, which takes this one for its pilot: {anew}"
    )


def _check_plan(
    charter: Charter, history: History, study_id: str, wanted: Continuation, max_runs: int | None, next_plan: NextPlan
) -> None:
    """Raise NothingToExtend if the next plan would compare nothing with the baseline or exceed the budget."""
    proposed = adapt(next_plan(charter, history), wanted, history)
    if not {arm.name for arm in proposed.arms} - {charter.baseline}:
        raise NothingToExtend(
            f"study {study_id} has no arm left to compare: every one was decided against {charter.baseline}, and what "
            "was decided stands; begin a new study for other arms"
        )
    runs = len(proposed.arms) * len(proposed.seeds)
    limit = charter.budget.max_runs if max_runs is None else max_runs
    used = history.planned_runs if history.runs_used is None else history.runs_used
    if limit is not None and used + runs > limit:
        raise NothingToExtend(
            f"{runs} runs would be added to the {used} of study {study_id}, whose --max-runs is {limit}: give fewer "
            "--seeds, or more --max-runs"
        )


def adapt(proposed: Plan, wanted: Continuation | None, history: History) -> Plan:
    """Return the planner's plan with as many runs per arm as a person asked for; these are fresh and judged alone."""
    seeds = None if wanted is None else wanted.seeds
    if wanted is None or seeds in (None, len(proposed.seeds)) or len(history.plans) < wanted.iteration:
        return proposed
    first = max((seed for plan in history.plans for seed in plan.seeds), default=-1) + 1
    return replace(proposed, seeds=tuple(range(first, first + seeds)), pools_runs=False)


def is_test_over(stored: StoredCharter, wanted: Continuation | None) -> bool:
    """Return whether the test split was opened before the study was extended, perhaps because of its scores."""
    return wanted is not None and stored.test_opened_at is not None and stored.test_opened_at < wanted.at


CHANGED = "budget.changed"

_KINDS: Mapping[str, tuple[BudgetKind, float]] = {
    "max_runs": (BudgetKind.RUNS, 1.0),
    "max_hours": (BudgetKind.WALL_CLOCK_S, 3600.0),
    "max_gpu_hours": (BudgetKind.GPU_HOURS, 1.0),
    "max_llm_tokens": (BudgetKind.LLM_TOKENS, 1.0),
    "max_llm_usd": (BudgetKind.COST_USD, 1.0),
}
"""By setting: the kind of spending that it limits, and the units of that kind in one unit of the setting."""


def check_change(store: ExperimentStore, study: Study, limits: Mapping[str, float]) -> StudySettings:
    """Return the study's settings with `limits`, by name of the setting, such as max_runs.

    Raises TopicInvalid for a limit below the amount used, and for a finished study that no budget ended.
    """
    settings = read_settings({**study.settings, **limits})
    used = store.sum_budget(study.id)
    for name, limit in limits.items():
        kind, unit = _KINDS[name]
        if limit < used[kind] / unit:
            raise TopicInvalid(
                f"--{name.replace('_', '-')} {limit:g}: {used[kind] / unit:.6g} are used already: give a higher limit"
            )
    if limits and study.status is StudyStatus.FINISHED:
        check_reopens(store, study)
    return settings


def change_budget(store: ExperimentStore, study: Study, limits: Mapping[str, float]) -> StudySettings:
    """Store the new limits, with an event that names old and new ones, and return the settings. Raises TopicInvalid."""
    settings = check_change(store, study, limits)
    old = {name: study.settings.get(name) for name in limits}
    changed = {name: {"old": old[name], "new": limits[name]} for name in limits if old[name] != limits[name]}
    if changed:
        words = ", ".join(
            f"{name} {'none' if item['old'] is None else format(item['old'], 'g')} -> {item['new']:g}"
            for name, item in changed.items()
        )
        store.revise_settings(study.id, settings.model_dump(mode="json"))
        store.append_event(study.id, CHANGED, f"The budget was changed: {words}.", payload={"limits": changed})
    return settings


def check_reopens(store: ExperimentStore, study: Study) -> None:
    """Raise TopicInvalid unless the budget ended the study before its test split was opened."""
    charter = store.find_charter(study.id)
    if charter is not None and charter.test_opened_at is not None:
        raise TopicInvalid(
            f"study {study.id} is {study.status} and its test split has been opened, which happens once: runs that are "
            "added now would be chosen by what it showed; start another study"
        )
    if not is_cut_short(store, study.id):
        raise TopicInvalid(
            f"study {study.id} is {study.status}, for another reason than its budget: a larger budget does not"
            " continue it"
        )
