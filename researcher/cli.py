"""`researcher start | resume | watch | status | list | report | verify | reproduce | export | ui | pause | stop`.

Place in the flow: top of the package. Arguments are checked before anything heavy is imported. Data goes to stdout,
messages and progress to stderr, and every failure to one line with a documented exit code. This module decides nothing
about a study.

Exit codes: 0 done, paused or stopped on request; 1 failure; 2 wrong usage or a bad topic; 3 no such study; 5 a swarm
server cannot be reached or started; 6 no sandbox; 7 budget; 8 the record is not what was stored or measured; 9 too
little power; 75 another process works on the study; 130 and 143 ended by SIGINT and SIGTERM (`resume` goes on).
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

import swarm
from researcher import options
from researcher.errors import ResearchError
from researcher.options import DatabaseOption, HomeOption, JsonOption, NewestStudyArgument, StudyArgument
from researcher.terminal import failures_in_one_line, log_to

app = typer.Typer(
    help="Plans, runs and judges studies of reinforcement learning on swarm servers.", no_args_is_help=True
)

DEFAULT_HOME = Path("runs")
UNTRUE = 8
"""The exit code of `verify` and `reproduce` where what they found is not what the record says."""


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


@app.command()
def start(
    topic: options.TopicOption,
    brain: options.BrainOption = None,
    model: options.ModelOption = None,
    env: options.EnvOption = None,
    train_env: options.TrainEnvOption = None,
    program: options.ProgramOption = None,
    job: options.JobOption = None,
    train_model: options.TrainModelOption = None,
    n_gpu: options.NGpuOption = None,
    seeds: options.SeedsOption = None,
    underpowered: options.UnderpoweredOption = False,
    steps: options.StepsOption = None,
    eval_episodes: options.EvalEpisodesOption = None,
    eval_every: options.EvalEveryOption = None,
    judged_by: options.JudgedByOption = "final",
    servers: options.ServersOption = None,
    parallel: options.ParallelOption = 2,
    max_runs: options.MaxRunsOption = None,
    max_hours: options.MaxHoursOption = None,
    max_llm_tokens: options.MaxLlmTokensOption = None,
    max_llm_usd: options.MaxLlmUsdOption = None,
    llm_price: options.LlmPriceOption = None,
    assume: options.AssumeOption = False,
    unsafe_no_sandbox: options.UnsafeNoSandboxOption = False,
    engine: options.EngineOption = None,
    home: HomeOption = DEFAULT_HOME,
    db: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Begin a study and work on it until its report is written."""
    with failures_in_one_line():
        from researcher.study.settings import (
            check_study,
            complete_from_topic,
            read_job,
            read_programs,
            read_settings,
        )

        settings = read_settings(
            {
                "brain": _choose_brain(brain),
                "model": model,
                **_environment_settings(env),
                "train_envs": [_in_full(name) for name in train_env or ()],
                "programs": read_programs(program or (), env),
                "job": {} if job is None else read_job(job),
                "train_model": train_model,
                "n_gpu": n_gpu,
                "seeds": seeds,
                "underpowered": underpowered,
                "steps": steps,
                "eval_episodes": eval_episodes,
                "eval_every": eval_every,
                "judged_by": judged_by,
                "servers": [url.strip() for entry in servers or [] for url in entry.split(",") if url.strip()],
                "parallel": parallel,
                "max_runs": max_runs,
                "max_hours": max_hours,
                "max_llm_tokens": max_llm_tokens,
                "max_llm_usd": max_llm_usd,
                "llm_price": None if llm_price is None else llm_price.split(","),
                "assume": assume,
                "unsafe_no_sandbox": unsafe_no_sandbox,
                "engine": engine,
            }
        )
        settings = complete_from_topic(topic, settings)
        check_study(topic, settings)
        with _open(home, db) as store:
            from researcher.study.requests import create_study, resume_command

            study = create_study(store, topic, settings)
            go_on = f"{resume_command(study.id, home)}{_database_option(db)}"
            typer.echo(f"study {study.id} (Ctrl-C stops; go on later with: {go_on})", err=True)
            _work(store, study.id, home, db, as_json)


@app.command()
def resume(
    study_id: StudyArgument, home: HomeOption = DEFAULT_HOME, db: DatabaseOption = None, as_json: JsonOption = False
) -> None:
    """Go on with a study that was paused, stopped or cut short; a finished one is left as it is."""
    with failures_in_one_line(), _open(home, db, must_exist=True) as store:
        _work(store, study_id, home, db, as_json)


@app.command()
def status(
    study_id: NewestStudyArgument = None,
    home: HomeOption = DEFAULT_HOME,
    db: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a study and its runs as they are now."""
    with failures_in_one_line(), _open(home, db, read_only=True) as store:
        from researcher.study.progress import SHOWN_EVENTS, render
        from researcher.study.snapshot import take_snapshot

        study = _find(store, study_id)
        snapshot = take_snapshot(store, study.id)
        if as_json:
            typer.echo(json.dumps(snapshot.to_json() | _paths(store, study.id, home, db), indent=2))
            return
        events = store.list_events(study.id, newest_first=True, limit=SHOWN_EVENTS)
        Console().print(render(snapshot, tuple(reversed(events))))


@app.command()
def watch(
    study_id: NewestStudyArgument = None,
    home: HomeOption = DEFAULT_HOME,
    db: DatabaseOption = None,
) -> None:
    """Follow a study that another process works on; Ctrl-C ends the watching, not the study."""
    with failures_in_one_line(), _open(home, db, read_only=True) as store:
        from experiments_db import StudyStatus
        from researcher.study.progress import REFRESH_S, Follower

        study = _find(store, study_id)
        with Follower(store, study.id, Console(stderr=True)):
            while store.get_study(study.id).status is StudyStatus.RUNNING:
                time.sleep(REFRESH_S)
        typer.echo(f"study {study.id} is {store.get_study(study.id).status}", err=True)


@app.command(name="list")
def list_studies(home: HomeOption = DEFAULT_HOME, db: DatabaseOption = None, as_json: JsonOption = False) -> None:
    """List all studies, newest first."""
    with failures_in_one_line(), _open(home, db, read_only=True) as store:
        studies = store.list_studies()
        if as_json:
            typer.echo(json.dumps([asdict(study) for study in studies], indent=2))
            return
        table = Table("study", "status", "brain", "begun", "topic", box=None)
        for study in studies:
            begun = time.strftime("%Y-%m-%d %H:%M", time.localtime(study.created_at))
            table.add_row(study.id, study.status.value, study.brain, begun, study.topic)
        Console().print(table)


@app.command()
def report(
    study_id: NewestStudyArgument = None,
    pdf: Annotated[bool, typer.Option("--pdf", help="Write report.pdf beside it as well.")] = False,
    home: HomeOption = DEFAULT_HOME,
    db: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the report anew from the database and print where it is."""
    with failures_in_one_line(), _open(home, db, read_only=True) as store:
        from researcher.report.write import build_report

        study = _find(store, study_id)
        paths = build_report(store, study.id, home / "studies" / study.id / "report")
        found = {"report": str(paths.markdown), "html": str(paths.html)}
        if pdf:
            from researcher.report.pdf import write_pdf

            found["pdf"] = str(paths.markdown.with_suffix(".pdf"))
            write_pdf(paths.markdown, Path(found["pdf"]), made_at=study.finished_at or study.updated_at)
        _print_paths(found | {"database": _database(home, db)}, as_json)


@app.command()
def verify(
    study_id: NewestStudyArgument = None,
    home: HomeOption = DEFAULT_HOME,
    db: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Recompute every number of a study from its raw rewards and find what was changed; exit 8 if anything was."""
    with failures_in_one_line(), _open(home, db, read_only=True) as store:
        from researcher.verification.verify import verify_study

        result = verify_study(store, _find(store, study_id).id)
        if as_json:
            typer.echo(json.dumps(result.to_json(), indent=2))
        else:
            typer.echo("\n".join(result.lines()))
        if result.mismatches:
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
    with failures_in_one_line(), _open(home, db, read_only=not note, must_exist=True) as store:
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
) -> None:
    """Write a study's tables as files; the directory is made if it is missing."""
    with failures_in_one_line(), _open(home, db, read_only=True) as store:
        from experiments_db.frames import ExportFormat, export_study
        from researcher.errors import TopicInvalid

        *named, directory = places
        if len(named) > 1:
            raise TopicInvalid("too many arguments: researcher export [STUDY] DIRECTORY")
        if not named and any(study.id == directory for study in store.list_studies()):
            raise TopicInvalid(f"where do the tables go? researcher export {directory} DIRECTORY")
        study = _find(store, named[0] if named else None)
        if file_format not in set(ExportFormat):
            raise TopicInvalid(f"unknown format {file_format!r}: use {' or '.join(ExportFormat)}")
        for path in export_study(store, study.id, Path(directory), ExportFormat(file_format)):
            typer.echo(str(path))


@app.command()
def ui(
    port: Annotated[int, typer.Option(min=1, max=65_535, help="Port of the explorer.")] = 8501,
    home: HomeOption = DEFAULT_HOME,
    db: DatabaseOption = None,
) -> None:
    """Open the explorer on the database of studies; Ctrl-C ends it."""
    with failures_in_one_line():
        with _open(home, db, read_only=True):
            pass
        package = find_spec("ui")
        if find_spec("streamlit") is None or package is None or package.origin is None:
            raise ResearchError("the explorer needs streamlit: pip install 'swarm-researcher[ui]'")
        program = str(Path(package.origin).with_name("app.py"))
        command = [sys.executable, "-m", "streamlit", "run", program, "--server.port", str(port)]
        os.execve(sys.executable, command, {**os.environ, "SWARM_RESEARCH_DB": _database(home, db)})


@app.command()
def pause(study_id: StudyArgument, home: HomeOption = DEFAULT_HOME, db: DatabaseOption = None) -> None:
    """Ask a study to stop working soon; `resume` goes on with it."""
    _ask(study_id, home, db, "paused")


@app.command()
def stop(study_id: StudyArgument, home: HomeOption = DEFAULT_HOME, db: DatabaseOption = None) -> None:
    """Ask a study to stop working soon, for good; `resume` can still take it up again."""
    _ask(study_id, home, db, "stopped")


def _ask(study_id: str, home: Path, db: str | None, wanted: str) -> None:
    with failures_in_one_line(), _open(home, db, must_exist=True) as store:
        from experiments_db import StudyStatus
        from researcher.study.requests import ask_to_end

        ask_to_end(store, study_id, StudyStatus(wanted))
        typer.echo(f"study {study_id} will be {wanted} within seconds", err=True)


def _work(store: Any, study_id: str, home: Path, db: str | None, as_json: bool) -> None:
    """Carry a study on with progress on stderr, print the paths of what it made; exit 128 + signal if one ended it."""
    from experiments_db import StudyStatus
    from researcher.study.requests import find_study

    study = find_study(store, study_id)
    if study.status is StudyStatus.FINISHED:
        typer.echo(f"study {study.id} is finished already: nothing is left to do", err=True)
        _print_result(store, study, home, db, as_json)
        return
    from researcher.loop.session import work_on
    from researcher.study.progress import Follower

    log = home / "studies" / study.id / "researcher.log"
    with log_to(log), Follower(store, study.id, Console(stderr=True)):
        outcome = work_on(store, study.id, home)
    if outcome.signal is not None:
        raise typer.Exit(128 + outcome.signal)
    typer.echo(f"study {study.id} is {outcome.study.status}: {outcome.study.status_reason}", err=True)
    _print_result(store, outcome.study, home, db, as_json)


def _print_result(store: Any, study: Any, home: Path, db: str | None, as_json: bool) -> None:
    """Where everything is; of a finished study also what it found and how to look at it."""
    from experiments_db import StudyStatus

    values: dict[str, Any] = {"study": study.id, "status": study.status.value} | _paths(store, study.id, home, db)
    if study.status is StudyStatus.FINISHED:
        from researcher.report.summary import summarize
        from researcher.study.requests import home_option

        found = summarize(store, study.id)
        explorer = f"researcher ui{home_option(home)}{_database_option(db)}"
        left_out = {"not_studied": found.not_studied} if found.not_studied else {}
        values = left_out | {"answer": found.answer, "verdicts": list(found.verdicts)} | values | {"explorer": explorer}
    _print_paths(values, as_json)


def _environment_settings(env: str | None) -> dict[str, Any]:
    """A path is stored in full: the study may be taken up from another directory."""
    from swarm.environments.registry import is_bundled

    if env is None or is_bundled(env):
        return {"task": env}
    return {"env": _in_full(env)}


def _in_full(env: str) -> str:
    source, mark, options = env.partition("?")
    return f"{Path(source).resolve()}{mark}{options}" if Path(source).exists() else env


def _choose_brain(wanted: str | None) -> str:
    if wanted is not None:
        return wanted
    if os.environ.get("OPENAI_API_KEY"):
        typer.echo("brain: llm, because OPENAI_API_KEY is set (--brain rules works without a model)", err=True)
        return "llm"
    typer.echo("brain: rules, because OPENAI_API_KEY is not set (a designed experiment, no language model)", err=True)
    return "rules"


@contextmanager
def _open(home: Path, db: str | None, *, read_only: bool = False, must_exist: bool = False) -> Generator[Any]:
    """The store of a command. One that an older version wrote is upgraded first, also to be only read."""
    from experiments_db import SchemaTooOld, open_store

    location = _database(home, db)
    if read_only or must_exist:
        # A mistyped --home must not leave an empty database behind.
        try:
            open_store(location, read_only=True).close()
        except SchemaTooOld:
            open_store(location).close()
    with open_store(location, read_only=read_only) as store:
        yield store


def _database(home: Path, db: str | None) -> str:
    return db or str(home / "research.db")


def _database_option(db: str | None) -> str:
    from researcher.study.requests import database_option

    return database_option(db)


def _find(store: Any, study_id: str | None) -> Any:
    from researcher.errors import StudyNotFound
    from researcher.study.requests import find_study

    if study_id is not None:
        return find_study(store, study_id)
    newest = store.list_studies(limit=1)
    if not newest:
        raise StudyNotFound("there is no study yet: begin one with `researcher start --topic ...`")
    return newest[0]


def _paths(store: Any, study_id: str, home: Path, db: str | None) -> dict[str, str]:
    location = _database(home, db)
    # A URL may hold a password, which the store's name of itself leaves out.
    found = {"database": store.location if "://" in location else location}
    for name, kind in (("report", "report.markdown"), ("html", "report.html")):
        for artifact in store.list_artifacts(study_id, kind=kind):
            found[name] = artifact.path
    return found


def _print_paths(values: Mapping[str, str | list[str]], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(values))
        return
    for name, value in values.items():
        if isinstance(value, str):
            typer.echo(f"{name}: {value}")
        else:
            typer.echo("\n".join([f"{name}:", *(f"  {line}" for line in value)]))


def main() -> None:
    app()


if __name__ == "__main__":
    main()
