"""The commands that start, watch, check and stop a server, and the registration of all others."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shlex
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from swarm import __version__
from swarm.cli import environments, job, models, options, records, scoring, skills
from swarm.cli.failures import failures_in_one_line
from swarm.cli.server_choice import choose_server
from swarm.cli.train import supervised, training
from swarm.errors import BadRequest

if TYPE_CHECKING:
    from swarm.config import ServerConfig
    from swarm.job import TrainJob
    from swarm.overwatch.snapshot import ServerSnapshot
    from swarm.server.http import Announce, ResumedJob

# Nothing heavy is imported before the arguments are parsed.
app = typer.Typer(help="Reinforcement learning for LLM agents as a service.", no_args_is_help=True)
app.add_typer(environments.app, name="env")
app.add_typer(skills.app, name="skills")
app.add_typer(models.app, name="models")
app.command()(training.train)
app.command()(supervised.sft)
app.command(name="eval")(scoring.evaluate)
app.command(name="import")(records.import_ledger)
for command in (records.export, records.gc, records.backup, records.restore):
    app.command()(command)
app.command(name="job")(job.show_or_change)

ChosenUrlOption = Annotated[
    str | None,
    typer.Option(
        "--url", envvar="SWARM_URL", help="The server's address (default: the server that runs on this machine)."
    ),
]
VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="Log every step on stderr.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"swarm {__version__} (Python {sys.version.split()[0]})")
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
    host: Annotated[
        str | None, typer.Option(help="Address to listen on; another than loopback needs SWARM_TOKEN.")
    ] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 picks a free one.")] = None,
    home: options.HomeOption = None,
    job: Annotated[Path | None, typer.Option(help="A job.yaml to start with; else a client sends one.")] = None,
    no_resume: Annotated[
        bool, typer.Option("--no-resume", help="Do not go on with the job that was interrupted here.")
    ] = False,
    new_ledger: Annotated[
        bool,
        typer.Option("--new-ledger", help="Set a ledger aside that cannot be gone on with, and begin with a new one."),
    ] = False,
    peer: Annotated[
        list[str] | None,
        typer.Option(help="URL of a server that shares episodes with this one; repeatable (default: $SWARM_PEERS)."),
    ] = None,
    eval_env: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME=ENVIRONMENT that jobs may name as their eval_env; repeatable (default: $SWARM_EVAL_ENVS)."
        ),
    ] = None,
    record: options.RecordOption = None,
    no_record: options.NoRecordOption = False,
    log: options.LogOption = None,
    warm_up: Annotated[
        bool, typer.Option("--warm-up", help="Load the libraries of the local engine now, before a job comes.")
    ] = False,
    as_json: options.JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Run a server in the foreground until Ctrl-C, SIGTERM or `swarm stop`.

    A job that was interrupted in this directory, not stopped by command, goes on at once. Its trainings are recorded
    in a database, which `researcher ui` shows.
    """
    with failures_in_one_line():
        from swarm.config import ServerConfig
        from swarm.job import TrainJob

        config = ServerConfig.from_environment(
            host=host,
            port=port,
            home=home,
            peers=tuple(peer) if peer else None,
            eval_envs=tuple(eval_env) if eval_env else None,
        )
        train_job = None if job is None else TrainJob.build_job_from_yaml(job)
        _configure_logging(verbose)
        sinks = options.chosen_sinks(no_record, log)

        def announce(url: str, resumed: ResumedJob | None) -> None:
            if sinks:
                records.start_recorder(config.home, options.runs_directory(record), url, sinks)
            _announce(url, config.home, resumed, as_json=as_json, has_job=train_job is not None)

        warm_up |= train_job is not None and train_job.chosen_engine == "local"
        _run_server(config, train_job, announce, not no_resume, new_ledger, warm_up)


def _run_server(
    config: ServerConfig, job: TrainJob | None, announce: Announce, resume: bool, new_ledger: bool, warm_up: bool
) -> None:
    """Run a server until it is stopped. It is on the list of running servers once it answers. Die by a signal."""
    import uvloop

    from swarm.processes.imports import collect_rarely, keep_torch_out

    keep_torch_out()
    collect_rarely()
    with ExitStack() as listed, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:

        def announce_and_list(url: str, resumed: ResumedJob | None) -> None:
            from swarm.processes.running_servers import announced_server

            listed.enter_context(announced_server(url, config.home))
            announce(url, resumed)

        ended_by = runner.run(_serve(config, job, announce_and_list, resume, new_ledger, warm_up))
    if ended_by is not None:
        # Everything is closed, so the process now dies by the signal, as its sender expects. uvloop has left its own
        # handlers in place, so the default handler is set first.
        signal.signal(ended_by, signal.SIG_DFL if ended_by is signal.SIGTERM else signal.default_int_handler)
        signal.raise_signal(ended_by)


async def _serve(
    config: ServerConfig, job: TrainJob | None, announce: Announce, resume: bool, new_ledger: bool, warm_up: bool
) -> signal.Signals | None:
    """Serve until a stop. The local worker imports its libraries while this process imports those of the server."""
    from swarm.config import WORKER_LOG
    from swarm.processes.imports import plain_httpx

    with plain_httpx():
        from swarm.backends.base import Backends

        backends = Backends(config, config.home / WORKER_LOG)
        if warm_up:
            await backends.warm_up()
        try:
            from swarm.server.http import serve

            return await serve(config, job, announce, resume=resume, new_ledger=new_ledger, backends=backends)
        finally:
            await backends.close()


def _announce(url: str, home: Path, resumed: ResumedJob | None, *, as_json: bool, has_job: bool) -> None:
    """Say that the server answers requests, and which job it resumes, if any."""
    if as_json:
        resumes = None if resumed is None else _name_of(resumed[0])
        typer.echo(json.dumps({"url": url, "pid": os.getpid(), "home": str(home.resolve()), "resumes": resumes}))
    else:
        typer.echo(f"swarm {__version__} serves {url} (home {home}); Ctrl-C stops it", err=True)
    if resumed is not None:
        typer.echo(_resume_line(*resumed, home), err=True)
    elif not has_job and not as_json:
        typer.echo("it waits for a job: a client sends one, or `swarm start --job job.yaml`", err=True)
    sys.stdout.flush()


def _name_of(job: TrainJob) -> str:
    return f"{job.project_name}/{job.experiment_name}"


def _resume_line(job: TrainJob, steps: int, home: Path) -> str:
    """Return a line about the job that a server resumes, and how to start without it."""
    anew = f"to begin without it: swarm start --home {shlex.quote(str(home))} --no-resume"
    if job.total_steps is not None and steps >= job.total_steps:
        return (
            f"{_name_of(job)} has done all its {job.total_steps} steps: it is served and takes no train episodes; sync"
            f" it with more total_steps to go on; {anew}"
        )
    of_all = "" if job.total_steps is None else f" of {job.total_steps}"
    return f"going on with {_name_of(job)} at step {steps}{of_all}, which was interrupted; {anew}"


@app.command()
def status(url: ChosenUrlOption = None, as_json: options.JsonOption = False) -> None:
    """Show what a server is doing."""
    with failures_in_one_line():
        from swarm.client import SwarmClient

        url = url or choose_server("swarm status --url")
        with SwarmClient(url, token=options.token_of("observer", "commander", "rollout")) as client:
            snapshot = client.status()
        if as_json:
            typer.echo(snapshot.model_dump_json(indent=2))
            return
        from swarm.overwatch.snapshot import ServerSnapshot

        _print_report(ServerSnapshot(client.url, time.time(), snapshot), with_history=False)


@app.command()
def overwatch(
    url: Annotated[
        str | None,
        typer.Argument(
            envvar="SWARM_URL", help="The server's address (default: the server that runs on this machine)."
        ),
    ] = None,
    every: Annotated[float, typer.Option(min=0.2, max=3600, help="Seconds between two looks.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print one snapshot and exit.")] = False,
    as_json: options.JsonOption = False,
) -> None:
    """Watch a server live, without touching it: q quits, p pauses, r looks at once.

    Without an address it looks at the only server that you run on this machine: several end it with exit code 2, none
    with 5. Without a terminal, as in a pipe, it prints one snapshot, as with --once.
    """
    with failures_in_one_line():
        if as_json and not once:
            raise BadRequest("--json prints one snapshot: add --once", param="json")
        url = url or choose_server("swarm overwatch")
        token = options.token_of("observer", "commander", "rollout")
        if once or not sys.stdout.isatty():
            asyncio.run(_print_snapshot(url, token, as_json=as_json))
            return
        from swarm.overwatch.dashboard import Dashboard
        from swarm.overwatch.snapshot import Watcher

        Dashboard(Watcher(url, token), every).run()


async def _print_snapshot(url: str, token: str | None, *, as_json: bool) -> None:
    from swarm.overwatch.snapshot import Watcher

    watcher = Watcher(url, token)
    try:
        snapshot = await watcher.look()
    finally:
        await watcher.close()
    if snapshot.error is not None:
        raise snapshot.error
    if as_json:
        typer.echo(json.dumps(snapshot.as_json(), indent=2))
    else:
        _print_report(snapshot, with_history=True)


def _print_report(snapshot: ServerSnapshot, *, with_history: bool) -> None:
    from rich.console import Console

    from swarm.overwatch import panels

    Console().print(panels.report(snapshot, with_history=with_history))


@app.command()
def stop(
    url: ChosenUrlOption = None,
    engine_only: Annotated[bool, typer.Option("--engine-only", help="Free the model, keep the server.")] = False,
    as_json: options.JsonOption = False,
) -> None:
    """Stop a server: running episodes are aborted, what was acknowledged is kept."""
    with failures_in_one_line():
        from swarm.client import SwarmClient

        url = url or choose_server("swarm stop --url")
        with SwarmClient(url, token=options.token_of("commander")) as client:
            if engine_only:
                client.stop_engine()
            else:
                client.shut_down()
        what = "engine" if engine_only else "server"
        typer.echo(f"{what} at {url} is stopping", err=True)
        if as_json:
            typer.echo(json.dumps({"url": url, "stopping": what}))


@app.command()
def doctor(
    host: Annotated[str, typer.Option(help="Address that `start` would listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port that `start` would listen on.")] = 10086,
    home: options.HomeOption = None,
    as_json: options.JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Examine this machine: what keeps a server from running well, and what to do about it.

    Changes nothing. Exit code 1 if a check fails, 0 otherwise.
    """
    from swarm.config import cluster_from_environment
    from swarm.doctor.checks import checks_of
    from swarm.doctor.examination import Health, examine, table_of, worst

    _configure_logging(verbose)
    ray_address, vllm_python = cluster_from_environment()
    checks = checks_of(
        host,
        port,
        options.home_named(home),
        options.token_of("observer", "commander", "rollout"),
        ray_address=ray_address,
        vllm_python=vllm_python,
        is_home_named=home is not None,
    )
    outcomes = examine(checks)
    if as_json:
        shown = {"verdict": worst(outcomes), "checks": [outcome.as_json() for outcome in outcomes]}
        typer.echo(json.dumps(shown, indent=2))
    else:
        from rich.console import Console

        Console().print(table_of(outcomes))
    raise typer.Exit(1 if worst(outcomes) is Health.FAIL else 0)


def _configure_logging(verbose: bool) -> None:
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    # httpx logs one line per call to a sampler, which adds nothing to the server's own log.
    logging.getLogger("httpx").setLevel(logging.WARNING)
