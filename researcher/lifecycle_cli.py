"""`researcher pause | stop`: what changes the course of a study that is there already.

Place in the flow: cli.py takes these commands into its own. They decide nothing about a study.
"""

from __future__ import annotations

from pathlib import Path

import typer

from researcher.command_parts import open_database, print_values
from researcher.options import DatabaseOption, HomeOption, JsonOption, StudyArgument
from researcher.terminal import failures_in_one_line

DEFAULT_HOME = Path("runs")


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
