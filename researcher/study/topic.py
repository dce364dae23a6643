"""The settings that a topic states, where no flag decides otherwise."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from researcher.charter import FrameRequest
from researcher.question.asking import check_environment, check_title, flags_of, refuse
from researcher.question.reader import Reading, read_topic
from researcher.study.settings import StudySettings, read_settings
from swarm.config import cluster_from_environment


def complete_from_topic(topic: str, settings: StudySettings) -> StudySettings:
    """Return the settings, completed from the topic where no flag decides otherwise.

    Only the `rules` planner reads topics this way; a language model reads the topic later. If flags name what is
    compared, the topic is a title. A title may use any words, but it may name no setting that flags neither vary nor
    fix.

    Raises TopicNotUnderstood for a topic with words that match nothing, TopicInvalid for one that contradicts a flag.
    """
    if settings.planner != "rules" or not topic.strip():
        return settings
    reading = read_topic(topic, has_environment=settings.family is not None or settings.env is not None)
    given = settings.model_dump(exclude_defaults=True)
    if settings.is_asked:
        check_title(reading, settings.question(), settings.fix, settings.family or settings.env)
        return settings
    check_environment(reading, settings.family or settings.env)
    unread = reading.unread + _too_many_gpus(reading, settings)
    if unread and not settings.assume:
        raise refuse(replace(reading, unread=unread), given)
    flags = flags_of(reading)
    if "family" in given or "env" in given:
        flags = {name: value for name, value in flags.items() if name not in ("family", "env")}
    if "env" in flags:
        source, mark, options = str(flags["env"]).partition("?")
        path = Path(source).expanduser()
        flags["env"] = f"{path.resolve()}{mark}{options}" if path.exists() else flags["env"]
    if "n_gpu" in flags and settings.engine is None and "engine" not in settings.job:
        flags["engine"] = "auto"
    # Flags win over the topic, but fixed settings are added up from both.
    fix = (*settings.fix, *flags.pop("fix", ()))
    return read_settings({**settings.model_dump(), **flags, **given, "fix": fix, "not_studied": unread})


def read_request(topic: str, settings: StudySettings) -> FrameRequest:
    """Return the request that the `rules` planner frames, from the topic and the flags. Raises TopicInvalid."""
    return complete_from_topic(topic, settings).request(topic)


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
