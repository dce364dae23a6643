"""The command `researcher`, with the commands that read a study or its runs; docs/operations.md has the exit codes."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

import swarm
from researcher.cli import findings, lifecycle, mcp, options, questions
from researcher.cli.options import DatabaseOption, HomeOption, JsonOption, NewestStudyArgument
from researcher.cli.parts import database_of, open_database, paths_of, print_result, print_values
from researcher.cli.start import start
from researcher.cli.terminal import failures_in_one_line
from researcher.errors import ResearchError
from researcher.home import DEFAULT_HOME

app = typer.Typer(
    help="Plans, runs and judges studies of reinforcement learning on swarm servers.", no_args_is_help=True
)

UNTRUE = 8
"""The exit code of `verify` and `reproduce` if their result differs from the record."""


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"researcher {swarm.__version__} (Python {sys.version.split()[0]})")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


app.command()(start)


@app.command()
def status(
    study_id: NewestStudyArgument = None,
    home: HomeOption = DEFAULT_HOME,
    db: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a study and its runs as they are now."""
    with failures_in_one_line(), open_database(home, db, read_only=True) as store:
        from researcher.study.ending import is_over
        from researcher.study.overview import take_snapshot
        from researcher.study.progress import SHOWN_EVENTS, render
        from researcher.study.requests import find_study, resume_command

        study = find_study(store, study_id)
        snapshot, go_on = take_snapshot(store, study.id), resume_command(store, study.id, home)
        if as_json:
            shown = snapshot.to_json() | {"resume": go_on} | paths_of(store, study.id, home, db)
            typer.echo(json.dumps(shown, indent=2))
            return
        events = store.list_events(study.id, newest_first=True, limit=SHOWN_EVENTS)
        Console().print(render(snapshot, tuple(reversed(events))))
        if not (snapshot.work.is_at_work or is_over(store, study)):
            # The table would break the command at the width of the terminal.
            typer.echo(f"go on with: {go_on}")


@app.command()
def watch(
    study_id: NewestStudyArgument = None,
    home: HomeOption = DEFAULT_HOME,
    db: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Follow a study that another process works on, until none does; Ctrl-C ends the watching, not the study."""
    with failures_in_one_line(), open_database(home, db, read_only=True) as store:
        from researcher.study.overview import describe_silence
        from researcher.study.progress import Follower, await_end
        from researcher.study.requests import find_study, resume_command

        study = find_study(store, study_id)
        with Follower(store, study.id, Console(stderr=True)):
            work = await_end(store, study.id)
        study = store.get_study(study.id)
        if silence := describe_silence(work, time.time()):
            go_on = resume_command(store, study.id, home)
            typer.echo(f"study {study.id} is {study.status}, but {silence}; go on with: {go_on}", err=True)
        else:
            reason = f": {study.status_reason}" if study.status_reason else ""
            typer.echo(f"study {study.id} is {study.status}{reason}", err=True)
        if as_json:
            print_result(store, study, home, db, as_json)
        if silence or study.status.value == "failed":
            raise typer.Exit(1)


@app.command(name="list")
def list_studies(home: HomeOption = DEFAULT_HOME, db: DatabaseOption = None, as_json: JsonOption = False) -> None:
    """List all studies, newest first."""
    with failures_in_one_line(), open_database(home, db, read_only=True) as store:
        from researcher.study.overview import describe_silence, describe_wait, find_question
        from researcher.study.requests import resume_command, work_of

        works = [(study, work_of(store, study)) for study in store.list_studies()]
        if as_json:
            typer.echo(json.dumps([asdict(study) | {"work": asdict(work)} for study, work in works], indent=2))
            return
        table = Table("study", "status", "planner", "begun", "topic", box=None)
        for study, work in works:
            begun = time.strftime("%Y-%m-%d %H:%M", time.localtime(study.created_at))
            wait = describe_wait(find_question(store, study))
            status = f"{study.status}, {wait}" if wait and work.is_at_work else study.status.value
            status = status if work.silent_since is None else f"{study.status}, nobody works on it"
            table.add_row(study.id, status, study.planner, begun, study.topic)
        Console().print(table)
        for study, work in works:
            if silence := describe_silence(work, time.time()):
                typer.echo(f"{study.id}: {silence}; go on with: {resume_command(store, study.id, home)}", err=True)


@app.command()
def report(
    study_id: NewestStudyArgument = None,
    pdf: Annotated[bool, typer.Option("--pdf", help="Write report.pdf beside it as well.")] = False,
    home: HomeOption = DEFAULT_HOME,
    db: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the report anew from the database and print where it is."""
    with failures_in_one_line(), open_database(home, db, read_only=True) as store:
        from researcher.report.write import build_report
        from researcher.study.requests import find_study

        study = find_study(store, study_id)
        paths = build_report(store, study.id, home / "studies" / study.id / "report")
        found = {"report": str(paths.markdown), "html": str(paths.html)}
        if pdf:
            from researcher.report.write import write_pdf

            found["pdf"] = str(paths.html.with_suffix(".pdf"))
            write_pdf(paths.html, Path(found["pdf"]))
        print_values(found | {"database": database_of(home, db)}, as_json)


@app.command()
def verify(
    study_id: NewestStudyArgument = None,
    sign: Annotated[Path | None, typer.Option(help="Private ed25519 key of OpenSSH: sign the record with it.")] = None,
    key: Annotated[Path | None, typer.Option(help="Public key, FILE.pub: check the signature of the record.")] = None,
    home: HomeOption = DEFAULT_HOME,
    db: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Recompute the numbers of a study, compare its files below --home, and exit 8 if anything was changed."""
    with failures_in_one_line(), open_database(home, db, read_only=True) as store:
        from researcher.study.requests import find_study
        from researcher.verification.verify import verify_study

        def say(line: str) -> None:
            typer.echo(line, err=True)

        study = find_study(store, study_id)
        result = verify_study(store, study.id, home, sign=sign, key=key, on_progress=say)
        if as_json:
            typer.echo(json.dumps(result.to_json(), indent=2))
        else:
            typer.echo("\n".join(result.lines()))
        if result.mismatches:
            if sign is not None:
                say("the record was not signed: it has mismatches")
            raise typer.Exit(UNTRUE)


@app.command()
def reproduce(
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="Id of a finished run; the report lists them.")],
    server: Annotated[str | None, typer.Option(help="Swarm server to use (default: an own local one).")] = None,
    note: Annotated[bool, typer.Option("--note", help="Add the result to the events of the study.")] = False,
    unsafe_no_sandbox: options.UnsafeNoSandboxOption = False,
    home: HomeOption = DEFAULT_HOME,
    db: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train one run again from its record and compare the scores; exit 8 if the repeat lies outside the interval."""
    with failures_in_one_line(), open_database(home, db, read_only=not note, must_exist=True) as store:
        from researcher.verification.reproduction import reproduce as train_again

        def say(line: str) -> None:
            typer.echo(f"{run_id}: {line}", err=True)

        result = train_again(store, run_id, home, server=server, unsafe_no_sandbox=unsafe_no_sandbox, on_progress=say)
        if note:
            store.append_event(
                result.study_id, "run.reproduced", result.lines()[3], run_id=run_id, payload=result.to_json()
            )
        typer.echo(json.dumps(result.to_json()) if as_json else "\n".join(result.lines()))
        if not result.is_within:
            raise typer.Exit(UNTRUE)


@app.command()
def export(
    places: Annotated[
        list[str],
        typer.Argument(metavar="[STUDY] DIRECTORY", help="Which study (default: the newest), and where the tables go."),
    ],
    file_format: Annotated[str, typer.Option("--format", help="csv or parquet.")] = "csv",
    home: HomeOption = DEFAULT_HOME,
    db: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a study's tables as files; the directory is made if it is missing."""
    with failures_in_one_line(), open_database(home, db, read_only=True) as store:
        from experiments_db.frames import ExportFormat, export_study
        from researcher.errors import TopicInvalid
        from researcher.study.requests import find_study

        *named, directory = places
        if len(named) > 1:
            raise TopicInvalid("too many arguments: researcher export [STUDY] DIRECTORY")
        if not named and any(study.id == directory for study in store.list_studies()):
            raise TopicInvalid(f"where do the tables go? researcher export {directory} DIRECTORY")
        study = find_study(store, named[0] if named else None)
        if file_format not in set(ExportFormat):
            raise TopicInvalid(f"unknown format {file_format!r}: use {' or '.join(ExportFormat)}")
        files = [str(path) for path in export_study(store, study.id, Path(directory), ExportFormat(file_format))]
        typer.echo(json.dumps({"study": study.id, "files": files}) if as_json else "\n".join(files))


@app.command()
def ui(
    port: Annotated[int, typer.Option(min=1, max=65_535, help="Port of the explorer.")] = 8501,
    home: HomeOption = DEFAULT_HOME,
    db: DatabaseOption = None,
) -> None:
    """Open the explorer on the database of studies; Ctrl-C ends it."""
    with failures_in_one_line():
        with open_database(home, db, read_only=True):
            pass
        package = find_spec("ui")
        if find_spec("streamlit") is None or package is None or package.origin is None:
            raise ResearchError("the explorer needs streamlit: pip install 'swarm-researcher[ui]'")
        program = str(Path(package.origin).with_name("app.py"))
        command = [sys.executable, "-m", "streamlit", "run", program, "--server.port", str(port)]
        os.execve(sys.executable, command, {**os.environ, "SWARM_RESEARCH_DB": database_of(home, db)})


app.add_typer(findings.app, name="findings")
app.command()(findings.replicate)
for command in (
    lifecycle.resume,
    lifecycle.pause,
    lifecycle.stop,
    questions.questions,
    questions.answer,
):
    app.command()(command)
app.command(name="mcp")(mcp.serve)
