"""The continuation of a study that its budget ended, once the budget is raised."""

from __future__ import annotations

from collections.abc import Mapping

from experiments_db import BudgetKind, ExperimentStore, Study, StudyStatus
from researcher.errors import TopicInvalid
from researcher.study.ending import is_cut_short
from researcher.study.settings import NO_PRICES, StudySettings, read_settings

CHANGED, GONE_ON = "budget.changed", "base.go_on"

_KINDS: Mapping[str, tuple[BudgetKind, float]] = {
    "max_runs": (BudgetKind.RUNS, 1.0),
    "max_hours": (BudgetKind.WALL_CLOCK_S, 3600.0),
    "max_gpu_hours": (BudgetKind.GPU_HOURS, 1.0),
    "max_llm_tokens": (BudgetKind.LLM_TOKENS, 1.0),
    "max_llm_usd": (BudgetKind.COST_USD, 1.0),
    "max_money": (BudgetKind.MONEY, 1.0),
}
"""By setting: the kind of spending that it limits, and the units of that kind in one unit of the setting."""


def check_change(store: ExperimentStore, study: Study, limits: Mapping[str, float]) -> StudySettings:
    """Return the study's settings with `limits`, by name of the setting, such as max_runs.

    Raises TopicInvalid for a limit below the amount used, and for a finished study that no budget ended.
    """
    settings = read_settings({**study.settings, **limits})
    if settings.max_money is not None and settings.prices is None:
        raise TopicInvalid(NO_PRICES)
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


def go_on_from_zero(store: ExperimentStore, study: Study) -> Study:
    """Record that a person wants to go on although the base weights solve nothing, and return the study."""
    settings = read_settings(study.settings)
    if settings.go_on:
        return study
    store.append_event(study.id, GONE_ON, "A person goes on, whatever the base weights score.")
    return store.revise_settings(study.id, settings.model_copy(update={"go_on": True}).model_dump(mode="json"))


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
