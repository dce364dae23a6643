"""True if an arm's job may be given to a server, and agrees with the arm's name.

It must be a valid job, and must not name code or files that no person named.

Place in the flow: preflight.py asks it among the stages of a check. A server reads the model's directory. With the verl
engine it also imports what some settings name, with the rights of its user. So settings of this kind must be those of
the person who began the study. This module knows nothing of programs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

from researcher.plan import ProgramProblem
from swarm.errors import JobInvalid
from swarm.job import BUNDLED_MODEL, LR_OF_BUNDLED_MODELS, TrainJob, build_job

_NAMES_CODE = re.compile(
    r"(^|_)(path|paths|dir|directory|file|files|lib|cls|class|classes|function|module|modules|command|entrypoint|env"
    r"|env_vars|working_dir|url|address|host|plugin|plugins|import|hook|hooks|code|script)$|external|trust_remote"
)
"""Matches the last part of a setting's name if the setting stands for code, a file or a place."""
_WORD = re.compile(r"[A-Za-z0-9_+-][A-Za-z0-9_.+-]{0,63}")
"""Matches a plain word, which is the value of most settings that are not numbers."""
_PROMISE = re.compile(r"(?<![\w.])([a-z_]+)=([^\s,]+?)(?=$|[\s,]|\+[a-z_])")
"""Matches a setting and its value in the name of an arm; a plus sign may join two of them."""


def check_job(job: Mapping[str, Any], given: Mapping[str, Any]) -> tuple[ProgramProblem, ...]:
    """Return the problems of a job; `given` are the settings that a person fixed for every arm."""
    try:
        checked = build_job(dict(job))
    except JobInvalid as error:
        return (ProgramProblem("job", error.message),)
    objections = list(_objections(checked.model, checked.verl, given))
    if reason := why_not_carried_out(job):
        objections.append(reason)
    if checked.eval_every or checked.eval_env is not None:
        objections.append("eval_every, eval_env: the study's own evaluator scores its runs: leave both out")
    if checked.guard != "warn":
        objections.append("guard: a study ends a run that is lost itself, by the same rules: leave it out")
    return tuple(ProgramProblem("job", message) for message in objections)


def why_not_carried_out(job: Mapping[str, Any]) -> str | None:
    """Return why no study can carry out a job that a server would accept; None if there is no reason."""
    if job.get("algorithm") == "gdpo":
        return "algorithm gdpo learns from rewards by name, and a program of a study gives one: choose another"
    if job.get("verl") and TrainJob.model_construct(**job).chosen_engine != "verl":
        return "verl: engine verl alone reads these settings: use --engine verl, or leave them out"
    return None


def contradict_name(name: str, job: Mapping[str, Any]) -> str | None:
    """Return how a name, as in "lr=0.01", contradicts the job; None if it does not."""
    own = build_job(dict(job)).resolve()
    for setting, value in _PROMISE.findall(name):
        if setting not in TrainJob.model_fields:
            continue
        try:
            promised = getattr(build_job({**job, setting: value}).resolve(), setting)
        except JobInvalid:
            # The name uses a value that the setting cannot have, so it states nothing about the setting.
            continue
        if promised != getattr(own, setting):
            return f"its name says {setting}={value}, and its job has {setting} {getattr(own, setting)}"
    return None


def _objections(model: str, verl: Mapping[str, Any], given: Mapping[str, Any]) -> Iterator[str]:
    own = given.get("model", BUNDLED_MODEL)
    if model not in (*LR_OF_BUNDLED_MODELS, own):
        yield f"model: an arm starts from the study's own model, {own}, not from {model!r}"
    given_leaves = dict(_leaves(given.get("verl") or {}))
    for name, value in _leaves(verl):
        if name in given_leaves and given_leaves[name] == value:
            continue
        last = name.rpartition(".")[2]
        if _NAMES_CODE.search(last) and value not in (None, False):
            yield f"verl.{name}: only a person may name code, files or places for a server: leave it out"
        elif isinstance(value, str) and not _WORD.fullmatch(value):
            yield f"verl.{name}: {value[:60]!r} is neither a number nor a plain word, which only a person may set"


def _leaves(settings: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every innermost setting with its dotted name; elements of a list have the name of the list."""
    for name, value in settings.items():
        yield from _leaves_of(f"{above}{name}".lstrip("+"), value)


def _leaves_of(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from _leaves(cast(Mapping[str, Any], value), f"{name}.")
    elif isinstance(value, list):
        for element in cast(list[Any], value):
            yield from _leaves_of(name, element)
    else:
        yield name, value
