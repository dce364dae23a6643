"""`swarm start | status | stop | eval`: the server and its state from a terminal.

Place in the flow: top of the package. Arguments are parsed before anything heavy is imported; data goes to stdout,
messages to stderr, and every failure to one line with a documented exit code.

Exit codes: 0 done, 1 failure, 2 wrong usage or a bad job, 3 not found, 4 not authorized, 5 server unreachable,
75 temporary (port or directory in use, engine not ready: try again), 130 interrupted.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from swarm import __version__
from swarm.errors import BadRequest, EngineFailure, NotFound, ServerUnreachable, SwarmError, Unauthorized, Unavailable

app = typer.Typer(help="Reinforcement learning for LLM agents as a service.", no_args_is_help=True)

DEFAULT_URL = "http://127.0.0.1:10086"

UrlOption = Annotated[str, typer.Option("--url", envvar="SWARM_URL", help="The server's address.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print machine-readable JSON on stdout.")]


def exit_code(error: SwarmError) -> int:
    """The documented exit code of a failure."""
    by_class: tuple[tuple[type[SwarmError], int], ...] = (
        (BadRequest, 2),
        (NotFound, 3),
        (Unauthorized, 4),
        (ServerUnreachable, 5),
        (Unavailable, 75),
    )
    if error.code in {"port_in_use", "ledger_in_use"}:
        return 75
    return next((code for cls, code in by_class if isinstance(error, cls)), 1)


@contextmanager
def failures_in_one_line() -> Generator[None]:
    """Turn a domain error into one line on stderr and its exit code."""
    try:
        yield
    except SwarmError as error:
        typer.echo(f"swarm: {error.message}", err=True)
        raise typer.Exit(exit_code(error)) from error
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


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
    home: Annotated[Path | None, typer.Option(help="Directory of ledger, checkpoints and logs.")] = None,
    job: Annotated[Path | None, typer.Option(help="A job.yaml to start with; else a client sends one.")] = None,
    as_json: JsonOption = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log every step on stderr.")] = False,
) -> None:
    """Run a server in the foreground until Ctrl-C, SIGTERM or `swarm stop`."""
    with failures_in_one_line():
        from swarm.config import ServerConfig, TrainJob

        config = ServerConfig.from_environment(host=host, port=port, home=home)
        train_job = None if job is None else TrainJob.build_job_from_yaml(job)
        logging.basicConfig(
            level=logging.INFO if verbose else logging.WARNING,
            format="%(asctime)s %(levelname)s %(name)s: %(message)s",
            stream=sys.stderr,
        )
        import uvloop

        from swarm.serving import serve

        def announce(url: str) -> None:
            if as_json:
                typer.echo(json.dumps({"url": url, "pid": os.getpid(), "home": str(config.home.resolve())}))
            else:
                typer.echo(f"swarm {__version__} serves {url} (home {config.home}); Ctrl-C stops it", err=True)
            sys.stdout.flush()

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(config, train_job, announce))


@app.command()
def status(url: UrlOption = DEFAULT_URL, as_json: JsonOption = False) -> None:
    """Show what a server is doing."""
    with failures_in_one_line():
        from swarm.client import SwarmClient

        with SwarmClient(url, token=os.environ.get("SWARM_TOKEN") or None) as client:
            snapshot = client.status()
        if as_json:
            typer.echo(snapshot.model_dump_json(indent=2))
        else:
            Console().print(_status_table(snapshot.model_dump(mode="json"), url))


@app.command()
def stop(
    url: UrlOption = DEFAULT_URL,
    engine_only: Annotated[bool, typer.Option("--engine-only", help="Free the model, keep the server.")] = False,
) -> None:
    """Stop a server: running episodes are aborted, what was acknowledged is kept."""
    with failures_in_one_line():
        from swarm.client import SwarmClient

        with SwarmClient(url, token=os.environ.get("SWARM_TOKEN") or None) as client:
            if engine_only:
                client.stop_engine()
            else:
                client.shut_down()
        typer.echo(f"{'engine' if engine_only else 'server'} at {url} is stopping", err=True)


@app.command(name="eval")
def evaluate_task(
    task: Annotated[str, typer.Option(help="Task family, for example reverse.")],
    url: UrlOption = DEFAULT_URL,
    split: Annotated[str, typer.Option(help="train, validation or test.")] = "validation",
    episodes: Annotated[int, typer.Option("--episodes", "-n", min=1, max=100_000, help="How many tasks.")] = 200,
    workers: Annotated[int, typer.Option(min=1, max=256, help="Episodes at the same time.")] = 16,
    as_json: JsonOption = False,
) -> None:
    """Measure the served weights on a task family, with eval episodes that never train."""
    with failures_in_one_line():
        import httpx

        from swarm.client import ConnectionStack, SwarmClient, evaluate
        from swarm.tasks import Split, run_agent, task_family

        family = task_family(task)
        if split not in set(Split):
            raise BadRequest(f"unknown split {split!r}: use {', '.join(Split)}", param="split")
        tasks = family.tasks(Split(split), episodes)
        began = time.monotonic()
        with (
            httpx.Client(timeout=120, transport=ConnectionStack()) as http,
            SwarmClient(url, token=os.environ.get("SWARM_TOKEN") or None, client_id="swarm-eval") as client,
        ):
            result = evaluate(
                client,
                tasks,
                lambda item, key: run_agent(
                    family, item, base_url=key.base_url, api_key=key.api_key, model=key.model, http=http
                ),
                max_workers=workers,
            )
        if result.mean is None:
            raise EngineFailure(f"no episode was scored; the first failure: {result.failures[0].error}")
        shown: dict[str, Any] = {
            "task": task,
            "split": split,
            "episodes": result.n,
            "mean_reward": result.mean,
            "stderr": result.stderr,
            "failures": len(result.failures),
            "weight_versions": sorted(result.weight_versions),
            "seconds": round(time.monotonic() - began, 2),
        }
        if as_json:
            typer.echo(json.dumps(shown))
        else:
            margin = "" if result.stderr is None else f" ± {1.96 * result.stderr:.3f}"
            typer.echo(
                f"{task}/{split}: {result.mean:.3f}{margin} (95 %, n={result.n}, weight version "
                f"{', '.join(map(str, shown['weight_versions']))}, {len(result.failures)} failed, {shown['seconds']} s)"
            )


def _status_table(status: dict[str, Any], url: str) -> Table:
    table = Table(title=f"swarm at {url}", show_header=False, title_justify="left")
    total = status["total_steps"]
    rows = {
        "state": f"{status['state']} {'— ' + status['reason'] if status['reason'] else ''}",
        "job": f"{status['project_name']}/{status['experiment_name']} on {status['model']}"
        if status["model"]
        else "none",
        "step": f"{status['step']}{f' of {total}' if total else ''} (weight version {status['weight_version']})",
        "tokens/s": f"{status['tokens_per_second']:.0f}",
    }
    if pool := status["pool"]:
        rows["batch"] = (
            f"{pool['tasks']}/{pool['tasks_target']} tasks, {pool['episodes']}/{pool['episodes_target']} episodes "
            f"({pool['stop_rule']}), {pool['running_train']} train and {pool['running_eval']} eval running"
        )
    for client in status["clients"]:
        idle = status["now"] - client["last_seen_at"]
        rows[f"client {client['client_id']}"] = (
            f"{client['running']} running, {client['completed']} done, {idle:.0f} s ago"
        )
    if status["failures"]:
        rows["not trained"] = ", ".join(f"{reason}: {count}" for reason, count in status["failures"].items())
    metrics = status["last_metrics"]
    shown = [name for name in ("critic/score/mean", "actor/entropy", "actor/grad_norm") if name in metrics]
    if shown:
        rows["last step"] = ", ".join(f"{name} {metrics[name]:.3f}" for name in shown)
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def main() -> None:
    app()


if __name__ == "__main__":
    main()
