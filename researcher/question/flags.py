"""Factors and fixed values from flags: `--vary lr=1e-3,3e-3`, `--vary env.difficulty=1,3`, `--fix batch_size=8`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import TypeAdapter, ValidationError

from experiments_db import number_as_text
from researcher.charter import Factor, Level
from researcher.errors import TopicInvalid
from researcher.question.factors import (
    ALGORITHMS,
    OPTION,
    PROGRAM,
    SPECS,
    TRAIN_ENV,
    FactorSpec,
    settings_of,
    why_no_factor,
)
from swarm import TrainJob
from swarm.model_path import has_name
from swarm.spelling import did_you_mean

_TOGETHER = re.compile(r"\s*([A-Za-z0-9][\w.+-]*)\s*:\s*(.*)", re.DOTALL)
_EMPTY = "give values, as in --vary lr=1e-3,3e-3"


def read_factors(texts: Sequence[str]) -> tuple[Factor, ...]:
    """Return the factor of each `--vary`, in order.

    Raises TopicInvalid, which names the flag, for a setting that cannot be a factor, or an invalid value. It does the
    same for fewer than two levels, and for a setting or option that two factors would set.
    """
    factors = tuple(_read_together(text) if _TOGETHER.match(text) else _read_one(text) for text in texts)
    owner: dict[str, str] = {}
    for factor in factors:
        for name in (*factor.varied, *(f"{OPTION}{option}" for option in factor.options)):
            if name in owner:
                raise TopicInvalid(f"--vary: {owner[name]} and {factor.name} both set {name}: make them one factor")
            owner[name] = factor.name
    return factors


def read_fixed(texts: Sequence[str]) -> dict[str, Any]:
    """Return the settings of every arm.

    Raises TopicInvalid, which names the flag, for an invalid setting or value.
    """
    fixed: dict[str, Any] = {}
    for name, value in (item for text in texts for item in _assignments(text, "--fix")):
        if name in fixed:
            raise TopicInvalid(f"--fix: {name} is given twice: leave one out")
        if name.startswith(OPTION):
            option = f"{name.removeprefix(OPTION)}={value}"
            raise TopicInvalid(
                f"--fix: {name} is an option of the environment, and those of all arms stand in --env: end what "
                f"stands there with ?{option}, or behind other options with &{option}"
            )
        if name == "seed":
            raise TopicInvalid("--fix: a seed is a repetition of an arm: --seeds says how many there are")
        if name not in TrainJob.model_fields:
            raise TopicInvalid(f"--fix: {_unknown(name)}")
        spec = SPECS.get(name)
        fixed |= {name: read_value(name, value, "--fix")} if spec is None else _settings(spec, value, "--fix")
    return fixed


def make_factor(spec: FactorSpec, values: Sequence[Any], *, explicit: bool = True) -> Factor:
    """Return the factor of one setting with these values as its levels; equal values are one level."""
    levels = {level.name: level for level in (make_level(spec, value) for value in values)}
    return Factor(spec.name, tuple(levels.values()), explicit, needs=spec.needs)


def make_level(spec: FactorSpec, value: Any) -> Level:
    """Return the level of a valid value of a setting."""
    settings = settings_of(spec, value)
    shown = value_as_text(value)
    name = shown if spec.name == "algorithm" else f"{spec.name}={shown}"
    return Level(name, {spec.name: value}, settings)


def value_as_text(value: Any) -> str:
    """Return a value as people write it, so that `--vary` can read it back."""
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, int | float):
        return number_as_text(value)
    if isinstance(value, str):
        return value
    return yaml.safe_dump(value, default_flow_style=True, width=10**6).strip()


def read_value(name: str, text: str, flag: str) -> Any:
    """Return the text as a value of a field of TrainJob.

    Raises TopicInvalid if the field cannot have that value.
    """
    field = TrainJob.model_fields[name]
    checked: Any = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
    adapter = TypeAdapter[Any](checked)
    try:
        given: Any = yaml.safe_load(text) if text[:1] in ("[", "{") else text
        value = adapter.validate_python(given)
    except (ValidationError, yaml.YAMLError) as error:
        reason = error.errors(include_url=False)[0]["msg"] if isinstance(error, ValidationError) else "it is no list"
        raise TopicInvalid(f"{flag}: {name} cannot be {text!r}: {reason[:1].lower()}{reason[1:]}") from error
    return adapter.dump_python(value, mode="json")


def complete_model(name: str) -> str:
    """Return the absolute path if the model is a local directory, because a server has another working directory."""
    directory = Path(name).expanduser()
    return str(directory.resolve()) if directory.is_dir() and not has_name(name) else name


def _read_one(text: str) -> Factor:
    name, mark, values = text.partition("=")
    name = name.strip()
    if not mark:
        raise TopicInvalid(f"--vary {text!r}: {_EMPTY}")
    given = _split(values, ",")
    if name.startswith(OPTION):
        factor = _make_option_factor(name, given)
    else:
        spec = _spec(name)
        factor = make_factor(spec, [_value(spec, value, "--vary") for value in given])
    if len(factor.levels) < 2:
        raise TopicInvalid(
            f"--vary: {name} has one level, {', '.join(given) or 'none'}: give two or more, or use "
            f"{'--env' if name.startswith(OPTION) else '--fix'}"
        )
    return factor


def _make_option_factor(name: str, values: Sequence[str]) -> Factor:
    option = _check_option(name)
    levels = {value: Level(f"{name}={value}", {name: _as_number(value)}, {}, {option: value}) for value in values}
    return Factor(name, tuple(levels.values()))


def _as_number(text: str) -> Any:
    """Return the text as a number, which reports can sort.

    Returns the text itself if it is not a number, or if the number is usually written in another way.
    """
    try:
        number = float(text)
    except ValueError:
        return text
    number = int(number) if number.is_integer() else number
    return number if math.isfinite(number) and number_as_text(number) == text else text


def _check_option(name: str) -> str:
    option = name.removeprefix(OPTION)
    if not option:
        raise TopicInvalid("--vary: env. names no option of the environment: write env.NAME=VALUE,VALUE")
    return option


def _read_together(text: str) -> Factor:
    """Return a factor whose levels set several settings: `short: batch_size=8,total_steps=60; long: batch_size=16`."""
    levels: list[Level] = []
    needs: dict[str, Any] = {}
    for part in _split(text, ";"):
        match = _TOGETHER.fullmatch(part)
        if match is None:
            raise TopicInvalid(f"--vary: {part!r} is no level: write NAME: SETTING=VALUE,SETTING=VALUE")
        settings: dict[str, Any] = {}
        options: dict[str, str] = {}
        for name, value in _assignments(match[2], "--vary"):
            if name.startswith(OPTION):
                options[_check_option(name)] = value
                continue
            spec = _spec(name)
            settings |= _settings(spec, value, "--vary")
            needs |= spec.needs
        levels.append(Level(match[1], {}, settings, options))
    names = [level.name for level in levels]
    if len(set(names)) < max(2, len(names)):
        raise TopicInvalid(f"--vary: the levels {', '.join(names)} must be two or more, each with a name of its own")
    name = "/".join(names)
    varied = {setting for level in levels for setting in level.settings}
    return Factor(
        name,
        tuple(replace(level, factors={name: level.name}) for level in levels),
        needs={key: value for key, value in needs.items() if key not in varied},
    )


def _assignments(text: str, flag: str) -> Iterator[tuple[str, str]]:
    """Yield the SETTING=VALUE pairs between commas, each name once."""
    names: set[str] = set()
    for part in _split(text, ","):
        name, mark, value = (each.strip() for each in part.partition("="))
        if not mark or not name or not value:
            raise TopicInvalid(f"{flag}: {part!r} sets nothing: write SETTING=VALUE")
        if name in names:
            raise TopicInvalid(f"{flag}: {text.strip()!r} sets {name} twice: leave one out")
        names.add(name)
        yield name, value


def _settings(spec: FactorSpec, text: str, flag: str) -> Mapping[str, Any]:
    return settings_of(spec, _value(spec, text, flag))


def _value(spec: FactorSpec, text: str, flag: str) -> Any:
    text = text.strip()
    if spec.name == "algorithm" and text.lower() in ALGORITHMS:
        return text.lower()
    if spec.name == "model":
        return complete_model(text)
    return read_value(spec.name, text, flag)


def _spec(name: str) -> FactorSpec:
    if name in (PROGRAM, TRAIN_ENV):
        flag = "--program" if name == PROGRAM else "--train-env"
        raise TopicInvalid(f"--vary: {name} has a flag of its own: give {flag} once for each level")
    if reason := why_no_factor(name):
        raise TopicInvalid(f"--vary: {name} is no factor: {reason}")
    if name not in SPECS:
        raise TopicInvalid(f"--vary: {_unknown(name)}")
    return SPECS[name]


def _unknown(name: str) -> str:
    return f"a job has no setting {name!r}{did_you_mean(name, SPECS) or ': docs/research.md has the table'}"


def _split(text: str, separator: str) -> list[str]:
    """Return the parts between separators outside brackets, without empty ones."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "[{") - (letter in "]}")
        if letter == separator and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]
