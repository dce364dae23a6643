"""The commands `researcher resume | extend | fork | pause | stop`, which change the course of an existing study.

Place in the flow: commands.py adds these commands to its own. This module decides nothing about a study.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from researcher.cli.options import (
    DatabaseOption,
    DetachOption,
    HomeOption,
    JsonOption,
    MaxGpuHoursOption,
    MaxHoursOption,
    MaxLlmTokensOption,
    MaxLlmUsdOption,
    MaxRunsOption,
    ResumeMinFreeGbOption,
    StudyArgument,
)
from researcher.cli.parts import database_of, open_database, print_values, work
from researcher.cli.terminal import failures_in_one_line
from researcher.home import DEFAULT_HOME


def resume(
    study_id: StudyArgument,
    max_runs: MaxRunsOption = None,
    max_hours: MaxHoursOption = None,
    max_gpu_hours: MaxGpuHoursOption = None,
    max_llm_tokens: MaxLlmTokensOption = None,
    max_llm_usd: MaxLlmUsdOption = None,
    min_free_gb: ResumeMinFreeGbOption = None,
    detach: DetachOption = False,
    home: HomeOption = DEFAULT_HOME,
    db: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Go on with a study that was paused, stopped or cut short.

    One that was ended by its budget goes on if that is raised; one that is finished otherwise is left as it is.
    """
    limits = {
        "max_runs": max_runs,
        "max_hours": max_hours,
        "max_gpu_hours": max_gpu_hours,
        "max_llm_tokens": max_llm_tokens,
        "max_llm_usd": max_llm_usd,
    }
    with failures_in_one_line(), open_database(home, db, must_exist=True, waits=True) as store:
        budget = {name: value for name, value in limits.items() if value is not None}
        work(store, study_id, home, db, as_json, detach=detach, min_free_gb=min_free_gb, budget=budget)


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


def extend(
    study_id: StudyArgument,
    iterations: Annotated[int, typer.Option(min=1, max=50, help="At most so many more plans.")] = 1,
    seeds: Annotated[
        int | None, typer.Option(min=1, max=100, help="Runs per arm (default: as many as the last plan had).")
    ] = None,
    max_runs: MaxRunsOption = None,
    detach: DetachOption = False,
    home: HomeOption = DEFAULT_HOME,
    db: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Go on with a finished study as far as its charter has alpha left: more runs for open arms, or further plans."""
    with failures_in_one_line(), open_database(home, db, must_exist=True) as store:
        from researcher.study.changes import continuation
        from researcher.study.requests import find_study

        study = find_study(store, study_id)
        wanted = continuation.ContinuationRequest(iterations, seeds, max_runs)
        continuation.extend(store, study, wanted, continuation.next_plan_of(study), home)
        work(store, study.id, home, db, as_json, detach=detach)


def fork(
    study_id: StudyArgument,
    at: Annotated[int, typer.Option("--at", min=1, help="Number of the decision, as the report counts them.")],
    topic: Annotated[
        str | None, typer.Option(help="Another question on the same baseline (default: the same).")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, max=100, help="Runs per arm of the next plan (default: as the plan says).")
    ] = None,
    max_runs: MaxRunsOption = None,
    max_hours: MaxHoursOption = None,
    detach: DetachOption = False,
    home: HomeOption = DEFAULT_HOME,
    db: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Begin a study with the record of another one up to a decision; runs of that record are not trained again."""
    with failures_in_one_line(), open_database(home, db, must_exist=True) as store:
        from researcher.study.changes.fork import ForkChanges, carry_out_fork, prepare_fork
        from researcher.study.requests import find_study
        from researcher.study.settings_check import check_study

        parent = find_study(store, study_id)
        found = prepare_fork(store, parent, at, ForkChanges(topic, seeds, max_runs, max_hours))
        check_study(found.topic, found.settings)
        study = carry_out_fork(store, database_of(home, db), found)
        typer.echo(f"study {study.id} begins with study {parent.id} up to decision {at}", err=True)
        work(store, study.id, home, db, as_json, detach=detach)


def _ask(study_id: str, home: Path, db: str | None, wanted: str, as_json: bool) -> None:
    with failures_in_one_line(), open_database(home, db, must_exist=True) as store:
        from experiments_db import StudyStatus
        from researcher.study.requests import ask_to_end

        study = ask_to_end(store, study_id, StudyStatus(wanted))
        typer.echo(f"study {study_id} will be {wanted} within seconds", err=True)
        if as_json:
            print_values({"study": study.id, "status": study.status.value}, as_json)
