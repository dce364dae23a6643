"""The topic of a study as settings, where no flag decides otherwise."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from researcher.charter import FrameRequest, StudyKind
from researcher.errors import SettingWithoutEffect
from researcher.question.asking import flags_of
from researcher.question.reader import Reading, read_topic
from researcher.question.refusal import ask_for_environment, refuse, with_command
from researcher.question.titles import check_environment, check_model, check_sought, check_title
from researcher.study.settings import StudySettings, read_settings
from swarm.config import cluster_from_environment
from swarm.tasks import TASK_FAMILIES


def complete_from_topic(topic: str, settings: StudySettings) -> StudySettings:
    """Return the settings, completed from the topic where no flag decides otherwise.

    What the topic looks for, its environment and its model bind with every planner. The `rules` planner reads the whole
    topic this way, and a language model reads the rest later. If flags name what is compared, the topic is a title. A
    title may use any words, but it may name no setting that flags neither vary nor fix.

    Raises TopicNotUnderstood for a topic with words that match nothing, TopicInvalid for one that contradicts a flag.
    """
    if settings.replicates is not None or not topic.strip():
        return settings
    reading = read_topic(topic, has_environment=settings.family is not None or settings.env is not None)
    by_rules = settings.planner == "rules"
    if settings.is_asked or not by_rules:
        check_environment(reading, settings.family or settings.env, by_rules=by_rules)
        completed = read_settings({**settings.model_dump(), **_bound_by(reading, settings)})
        if by_rules:
            check_title(reading, completed.question(), completed.fix)
    else:
        completed = _complete_from_whole(topic, reading, settings)
    question = completed.question()
    check_model(reading, question)
    check_sought(reading, question, settings.scope)
    return completed


def require_environment(topic: str, given: StudySettings, completed: StudySettings) -> None:
    """Raise TopicInvalid if flags say what is compared, and neither they nor their title says on which environment.

    Without such flags, the topic is read in whole, and what it leaves open is among the assumptions.
    """
    is_title = given.flags().name_factors or (given.kind is StudyKind.OPTIMIZE and given.planner == "rules")
    if is_title and (completed.family or completed.env) is None:
        raise ask_for_environment(topic, given.model_dump(exclude_defaults=True))


def read_request(topic: str, settings: StudySettings) -> FrameRequest:
    """Return the request that the `rules` planner frames, from the topic and the flags. Raises TopicInvalid."""
    return complete_from_topic(topic, settings).request(topic)


def _bound_by(reading: Reading, settings: StudySettings) -> dict[str, Any]:
    """Return what a title binds: its environment, its model and what it looks for, where no flag does."""
    bound: dict[str, Any] = {}
    if len(reading.environments) == 1 and (settings.family or settings.env) is None:
        bound |= _environment_settings(reading.environments[0])
    models = reading.values.get("model", ())
    if len(models) == 1 and not settings.names_model:
        bound["train_model"] = models[0]
    if reading.sought and settings.scope is None and not settings.question().factors:
        bound["scope"] = ",".join(reading.sought)
    return bound


def _environment_settings(name: str) -> dict[str, Any]:
    if name in TASK_FAMILIES:
        return {"family": name}
    source, mark, options = name.partition("?")
    path = Path(source).expanduser()
    return {"env": f"{path.resolve()}{mark}{options}" if path.exists() else name}


def _complete_from_whole(topic: str, reading: Reading, settings: StudySettings) -> StudySettings:
    """Return the settings of a topic that states the question by itself."""
    given = settings.model_dump(exclude_defaults=True)
    check_environment(reading, settings.family or settings.env, by_rules=True)
    unread = reading.unread + _too_many_gpus(reading, settings)
    if unread and not settings.assume:
        raise refuse(replace(reading, unread=unread), given)
    flags = flags_of(reading)
    if "family" in given or "env" in given:
        flags = {name: value for name, value in flags.items() if name not in ("family", "env")}
    if "env" in flags:
        flags |= _environment_settings(flags["env"])
    if "n_gpu" in flags and settings.engine is None and "engine" not in settings.job:
        flags["engine"] = "auto"
    # Flags win over the topic, but fixed settings are added up from both.
    fix = (*settings.fix, *flags.pop("fix", ()))
    completed = read_settings({**settings.model_dump(), **flags, **given, "fix": fix, "not_studied": unread})
    try:
        completed.question()
    except SettingWithoutEffect as refusal:
        named = {name: value for name, value in flags.items() if name in ("env", "family")}
        raise with_command(refusal, topic, {**named, **given}) from None
    return completed


def _too_many_gpus(reading: Reading, settings: StudySettings) -> tuple[str, ...]:
    wanted, here = reading.counts.get("n_gpu"), _count_gpus(settings)
    is_here = wanted is None or here is None or wanted <= here or "n_gpu" in settings.job
    return () if is_here else (f"{wanted:g} GPUs",)


def _count_gpus(settings: StudySettings) -> int | None:
    """Return how many GPUs own servers would find; None if runs are on other machines, or use no GPU."""
    on_ray, _ = cluster_from_environment()
    if settings.servers or on_ray is not None or settings.base_job().get("engine") == "fake":
        return None
    return sum(1 for device in Path("/dev").glob("nvidia*") if device.name.removeprefix("nvidia").isdigit())
