"""The command `researcher start`, which begins a study."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from researcher.cli.options import StartOptions, command_with
from researcher.cli.parts import open_database, work
from researcher.cli.terminal import failures_in_one_line

if TYPE_CHECKING:
    from researcher.study.settings import StudySettings


def _start(options: StartOptions) -> None:
    """Begin a study and work on it until its report is written."""
    with failures_in_one_line():
        from researcher.loop.settings_check import check_study
        from researcher.study.topics import complete_from_topic, require_environment

        given = _read_flags(options)
        settings = complete_from_topic(options.topic, given)
        understood = check_study(options.topic, settings)
        require_environment(options.topic, given, settings)
        for line in understood:
            typer.echo(line, err=True)
        with open_database(options.home, options.db) as store:
            from researcher.study.requests import create_study, resume_command

            study = create_study(store, options.topic, settings)
            go_on = resume_command(store, study.id, options.home)
            how_to_stop = "" if options.detach else "Ctrl-C stops; "
            typer.echo(f"study {study.id} ({how_to_stop}go on later with: {go_on})", err=True)
            work(store, study.id, options.home, options.db, options.as_json, detach=options.detach)


start = command_with(StartOptions, _start, "start")


def _read_flags(given: StartOptions) -> StudySettings:
    """Return the settings that the values of all options state. Raises TopicInvalid."""
    from researcher.study.settings import StudySettings, read_job, read_programs, read_settings
    from swarm.prices import read_prices

    # Most options have the same name as their setting.
    named = {name: value for name, value in vars(given).items() if name in StudySettings.model_fields}
    return read_settings(
        {
            **named,
            "planner": _choose_planner(given.planner),
            **{name: named[name] or () for name in ("vary", "fix", "baseline", "log", "accept")},
            **_environment_settings(given.env),
            "train_envs": [_in_full(name) for name in given.train_env or ()],
            "programs": read_programs(given.program or (), given.env),
            "job": {} if given.job is None else read_job(given.job),
            "servers": given.addresses,
            "llm_price": None if given.llm_price is None else given.llm_price.split(","),
            "prices": None if given.prices is None else read_prices(given.prices).model_dump(),
            "notes": None if given.notes is None else str(given.notes.resolve()),
            "rungs": None if given.rungs is None else given.rungs.split(","),
        }
    )


def _environment_settings(env: str | None) -> dict[str, Any]:
    """Return the settings for `--env`, with an absolute path, because the study may be resumed in another directory."""
    from swarm.environments import is_bundled

    if env is None or is_bundled(env):
        return {"family": env, "env": None}
    return {"env": _in_full(env)}


def _in_full(env: str) -> str:
    source, mark, options = env.partition("?")
    return f"{Path(source).resolve()}{mark}{options}" if Path(source).exists() else env


def _choose_planner(wanted: str | None) -> str:
    if wanted is not None:
        return wanted
    if os.environ.get("OPENAI_API_KEY"):
        typer.echo("planner: llm, because OPENAI_API_KEY is set (--planner rules works without a model)", err=True)
        return "llm"
    typer.echo("planner: rules, because OPENAI_API_KEY is not set (a designed experiment, no language model)", err=True)
    return "rules"
