"""The commands `researcher resume | pause | stop`, which change the course of an existing study."""

from __future__ import annotations

from pathlib import Path

import typer

from researcher.cli.options import (
    AcceptOption,
    DatabaseOption,
    DetachOption,
    GoOnOption,
    HomeOption,
    JsonOption,
    MaxGpuHoursOption,
    MaxHoursOption,
    MaxLlmTokensOption,
    MaxLlmUsdOption,
    MaxMoneyOption,
    MaxRunsOption,
    ResumeMinFreeGbOption,
    StudyArgument,
)
from researcher.cli.parts import open_database, print_values, work
from researcher.cli.terminal import failures_in_one_line
from researcher.home import DEFAULT_HOME


def resume(
    study_id: StudyArgument,
    max_runs: MaxRunsOption = None,
    max_hours: MaxHoursOption = None,
    max_gpu_hours: MaxGpuHoursOption = None,
    max_llm_tokens: MaxLlmTokensOption = None,
    max_llm_usd: MaxLlmUsdOption = None,
    max_money: MaxMoneyOption = None,
    accept: AcceptOption = None,
    min_free_gb: ResumeMinFreeGbOption = None,
    go_on: GoOnOption = False,
    detach: DetachOption = False,
    home: HomeOption = DEFAULT_HOME,
    db: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Go on with a study that was paused, stopped or cut short.

    A study that its budget ended goes on if the budget is raised; any other finished study stays as it is.
    """
    limits = {
        "max_runs": max_runs,
        "max_hours": max_hours,
        "max_gpu_hours": max_gpu_hours,
        "max_llm_tokens": max_llm_tokens,
        "max_llm_usd": max_llm_usd,
        "max_money": max_money,
    }
    with failures_in_one_line(), open_database(home, db, must_exist=True, waits=True) as store:
        if accept:
            from researcher.study.acceptance import accept_arms
            from researcher.study.requests import find_study

            accept_arms(store, find_study(store, study_id), accept)
        budget = {name: value for name, value in limits.items() if value is not None}
        work(store, study_id, home, db, as_json, detach=detach, min_free_gb=min_free_gb, budget=budget, go_on=go_on)


def pause(
    study_id: StudyArgument, home: HomeOption = DEFAULT_HOME, db: DatabaseOption = None, as_json: JsonOption = False
) -> None:
    """Ask a study to stop working soon; `resume` goes on with it."""
    _ask(study_id, home, db, "paused", as_json)


def stop(
    study_id: StudyArgument, home: HomeOption = DEFAULT_HOME, db: DatabaseOption = None, as_json: JsonOption = False
) -> None:
    """Ask a study to stop working soon, for good; `resume` can still take it up again."""
    _ask(study_id, home, db, "stopped", as_json)


def _ask(study_id: str, home: Path, db: str | None, wanted: str, as_json: bool) -> None:
    with failures_in_one_line(), open_database(home, db, must_exist=True) as store:
        from experiments_db import StudyStatus
        from researcher.study.requests import ask_to_end

        study = ask_to_end(store, study_id, StudyStatus(wanted))
        typer.echo(f"study {study_id} will be {wanted} within seconds", err=True)
        if as_json:
            print_values({"study": study.id, "status": study.status.value}, as_json)
