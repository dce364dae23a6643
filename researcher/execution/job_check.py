"""Whether an arm's job may be given to a server, and is what the arm's name says it is.

It has to be a job at all, and to name no code or file that no person named.

Place in the flow: preflight.py asks it among the stages of a check. A server reads the model's directory and, with the
verl engine, imports what some settings name, as the user who runs it; so what of this kind an arm's job says must be
what the person who began the study said. This module knows nothing of programs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

from researcher.types import Problem
from swarm.errors import JobInvalid
from swarm.job import BUNDLED_MODEL, LR_OF_BUNDLED_MODELS, TrainJob, build_job

_NAMES_CODE = re.compile(
    r"(^|_)(path|paths|dir|directory|file|files|lib|cls|class|classes|function|module|modules|command|entrypoint|env"
    r"|env_vars|working_dir|url|address|host|plugin|plugins|import|hook|hooks|code|script)$|external|trust_remote"
)
"""The last part of a setting's name that stands for code, a file or a place."""
_WORD = re.compile(r"[A-Za-z0-9_+-][A-Za-z0-9_.+-]{0,63}")
"""A choice among names, as most settings that are no number are."""
_PROMISE = re.compile(r"(?<![\w.])([a-z_]+)=([^\s,]+?)(?=$|[\s,]|\+[a-z_])")
"""A setting and its value in the name of an arm; a plus sign may join two of them."""


def check_job(job: Mapping[str, Any], given: Mapping[str, Any]) -> tuple[Problem, ...]:
    """`given` is what a person said of every arm's job."""
    try:
        checked = build_job(dict(job))
    except JobInvalid as error:
        return (Problem("job", error.message),)
    objections = list(_objections(checked.model, checked.verl, given))
    if reason := why_not_carried_out(job):
        objections.append(reason)
    if checked.eval_every or checked.eval_env is not None:
        objections.append("eval_every, eval_env: the study's own evaluator scores its runs: leave both out")
    return tuple(Problem("job", message) for message in objections)


def why_not_carried_out(job: Mapping[str, Any]) -> str | None:
    """Return what of a job no study can carry out, though a server would take it; None where there is nothing."""
    if job.get("algorithm") == "gdpo":
        return "algorithm gdpo learns from rewards by name, and a program of a study gives one: choose another"
    if job.get("verl") and TrainJob.model_construct(**job).chosen_engine != "verl":
        return "verl: engine verl alone reads these settings: use --engine verl, or leave them out"
    return None


def contradict_name(name: str, job: Mapping[str, Any]) -> str | None:
    """Where a name gives a setting, as in "lr=0.01", that the job has otherwise; None if it says nothing wrong."""
    own = build_job(dict(job)).resolve()
    for setting, value in _PROMISE.findall(name):
        if setting not in TrainJob.model_fields:
            continue
        try:
            promised = getattr(build_job({**job, setting: value}).resolve(), setting)
        except JobInvalid:
            # What is no value of the setting promises nothing.
            continue
        if promised != getattr(own, setting):
            return f"its name says {setting}={value}, and its job has {setting} {getattr(own, setting)}"
    return None


def _objections(model: str, verl: Mapping[str, Any], given: Mapping[str, Any]) -> Iterator[str]:
    own = given.get("model", BUNDLED_MODEL)
    if model not in (*LR_OF_BUNDLED_MODELS, own):
        yield f"model: an arm starts from the study's own model, {own}, not from {model!r}"
    said = dict(_leaves(given.get("verl") or {}))
    for name, value in _leaves(verl):
        if name in said and said[name] == value:
            continue
        last = name.rpartition(".")[2]
        if _NAMES_CODE.search(last) and value not in (None, False):
            yield f"verl.{name}: only a person may name code, files or places for a server: leave it out"
        elif isinstance(value, str) and not _WORD.fullmatch(value):
            yield f"verl.{name}: {value[:60]!r} is neither a number nor a plain word, which only a person may set"


def _leaves(settings: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Every setting that is none of further settings, under its dotted name; elements of lists under that of the
    list."""
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
