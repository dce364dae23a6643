"""The settings of a question that nothing would read, and the flags that add what they need."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from researcher.charter import Factor
from researcher.errors import SettingWithoutEffect, TopicInvalid
from researcher.question.factors import why_no_factor
from researcher.question.flags import read_factors, read_fixed, value_as_text
from researcher.question.usual_job import usual_settings
from swarm import TrainJob
from swarm.job import LEFT_OUT, TRAITS, Purpose


def check_effect(fixed: Mapping[str, Any], factors: Sequence[Factor], flags_of_settings: Mapping[str, str]) -> None:
    """Raise SettingWithoutEffect for a fixed or varied setting that acts in no arm.

    `flags_of_settings` are the flags of settings that have one of their own.
    """
    for name, lacking in _find_lacking(fixed, factors):
        if any(TRAITS[key].purpose is Purpose.SCORING for key in lacking):
            raise TopicInvalid(f"--fix: {name} has no effect in a study: {why_no_factor('eval_every')}")
        resolved = TrainJob.model_construct(**usual_settings(fixed)).resolve()
        present = " and ".join(f"{key} is {value_as_text(getattr(resolved, key))}" for key in lacking)
        added = [
            word
            for key, value in lacking.items()
            for word in _assigned(key, value_as_text(value), flags_of_settings.get(key))
        ]
        flag, given = ("--fix", name) if name in fixed else ("--vary", _as_varied(name, factors))
        line = shlex.join(added)
        change = f"set {line} instead" if lacking.keys() <= fixed.keys() else f"add {line}"
        raise SettingWithoutEffect(
            f"{flag}: {given} has no effect while {present}: {change}, or leave {given} out", added
        )


def complete_flags(fix: Sequence[str], vary: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return fixed and varied values of a proposed question in which every setting has an effect.

    What another setting needs is fixed, even if the question would have varied it. A fixed value that no other fixed
    value lets act is left out.
    """
    fixed, factors = read_fixed(fix), read_factors(vary)
    # A level of one factor, such as a named algorithm, has what its settings need.
    of_factors = [(factor, need) for factor in factors for name in factor.varied for need in TRAITS[name].needs]
    needs = [need for factor, need in of_factors if need.setting not in factor.varied]
    varied = {factor.name: (text, factor) for factor, text in zip(factors, vary, strict=True)}
    added: dict[str, Any] = {}
    for need in needs:
        levels = varied[need.setting][1].levels if need.setting in varied else ()
        if not all(need.is_met(level.settings.get(need.setting)) for level in levels):
            added[need.setting] = need.adds
            del varied[need.setting]
    idle: set[str] = set()
    for name, lacking in list(_find_lacking(fixed | added, [factor for _, factor in varied.values()])):
        if fixed.keys() & lacking.keys():
            idle.add(name)
        else:
            added |= lacking
    kept = [text for text in fix if not idle & read_fixed([text]).keys()]
    kept += [f"{name}={value_as_text(value)}" for name, value in added.items()]
    return kept, [text for text, _ in varied.values()]


def acting(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of an arm's job without those that nothing reads beside the others."""
    job = TrainJob.model_construct(**settings)
    kept = {name: value for name, value in settings.items() if not job.find_lacking(name)}
    # What was left out may be what another setting needs.
    return kept if len(kept) == len(settings) else acting(kept)


def _find_lacking(fixed: Mapping[str, Any], factors: Sequence[Factor]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each fixed or varied setting that acts in no arm, with what it lacks."""
    needed = {name: value for factor in factors for name, value in factor.needs.items()} | dict(fixed)
    arms = [needed, *({**needed, **level.settings} for factor in factors for level in factor.levels)]
    jobs = [TrainJob.model_construct(**usual_settings(settings)) for settings in arms]
    for name in dict.fromkeys(name for settings in arms for name in settings):
        if all(settings.get(name) in LEFT_OUT for settings in arms):
            continue
        of_jobs = [job.find_lacking(name) for job in jobs]
        # What an arm has need not be fixed: a rank that is varied from 0 to 8 is one that alpha acts with.
        if lacking := {key: value for key, value in of_jobs[0].items() if all(key in each for each in of_jobs)}:
            yield name, lacking


def _as_varied(name: str, factors: Sequence[Factor]) -> str:
    """Return the name of a varied setting, with the level that sets it if a level of another name does."""
    levels = (level for factor in factors if factor.name != name for level in factor.levels)
    return next((f"{name} of {level.name}" for level in levels if name in level.settings), name)


def _assigned(name: str, value: str, flag: str | None) -> tuple[str, str]:
    return ("--fix", f"{name}={value}") if flag is None else (flag, value)
