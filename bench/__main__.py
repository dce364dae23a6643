"""`python -m bench [NAME ...]`: runs benchmarks, prints their figures and appends them to the results file.
These are commands of their own, with options of their own: `compare` measures two versions side by side
(bench/board/command.py), `table` writes the page of what came out (bench/board/table.py), and `chaos` works on studies
under faults (bench/chaos/command.py).

Place in the flow: top of the package. Figures go to stdout, messages to stderr. What has been measured is kept if a
later benchmark fails.

Exit codes: 0 done, 1 a benchmark failed, 2 wrong usage, 130 interrupted, 143 terminated.
"""

from __future__ import annotations

import importlib
import json
import signal
import sys
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import httpx
import typer
from rich.console import Console
from rich.table import Table

from bench.results import Conditions, Result, append_rows, read_conditions, to_row
from swarm.errors import SwarmError

DEFAULT_RESULTS = Path(__file__).with_name("results.jsonl")
COMMANDS = MappingProxyType(
    {"chaos": "bench.chaos.command", "compare": "bench.board.command", "table": "bench.board.table"}
)
"""What belongs into another file than the results of benchmarks, by the module that has its `main`."""


class Benchmark(StrEnum):
    """Each is a module of this package."""

    ENGINE = "engine"
    GATEWAY = "gateway"
    LEARNER = "learner"
    REAL_SIZE = "real_size"
    REAL_STEP = "real_step"
    MERGING = "merging"
    CONTROL_PLANE = "control_plane"
    OPEN_EPISODES = "open_episodes"
    SCALE = "scale"
    JUDGE = "judge"
    RECORD = "record"
    PEERS = "peers"


def main(
    names: Annotated[list[Benchmark] | None, typer.Argument(help="Which to run; all without a name.")] = None,
    seconds: Annotated[float, typer.Option(min=0.2, max=900, help="How long each case is measured.")] = 3.0,
    results: Annotated[Path, typer.Option(help="JSON lines file that the figures are appended to.")] = DEFAULT_RESULTS,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines on stdout instead of a table.")] = False,
    live: Annotated[bool, typer.Option("--live", help="Of scale: measure small cases on a real server too.")] = False,
) -> None:
    """Measure how fast the service and the record of studies are here, and how often the judge is wrong."""
    if live and Benchmark.SCALE not in (names or Benchmark):
        raise typer.BadParameter("only scale has a live part: name it as well", param_hint="--live")
    # A benchmark ends its child processes on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    chosen = names or all_that_can_run()
    finished = [_measure(name, seconds, results, as_json=as_json, live=live) for name in chosen]
    raise typer.Exit(0 if all(finished) else 1)


def all_that_can_run() -> list[Benchmark]:
    """Every benchmark; what is left out because something is not installed is named in a line."""
    reason = importlib.import_module(f"bench.{Benchmark.PEERS}").reason_to_skip()
    if reason is None:
        return list(Benchmark)
    typer.echo(f"bench: {Benchmark.PEERS} is skipped: {reason}", err=True)
    return [name for name in Benchmark if name is not Benchmark.PEERS]


def _measure(name: Benchmark, seconds: float, results: Path, *, as_json: bool, live: bool) -> bool:
    """Run, show and keep one benchmark. False if something went wrong, which is then said in one line."""
    typer.echo(f"bench: {name}, {seconds:g} s per case", err=True)
    conditions = read_conditions(seconds)
    try:
        rows = [to_row(result, conditions) for result in _run(name, seconds, live=live)]
    except (SwarmError, httpx.HTTPError, OSError) as error:  # TimeoutError is an OSError
        typer.echo(f"bench: {name} failed: {str(error) or type(error).__name__}", err=True)
        return False
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    _show(name, rows, conditions, as_json=as_json)
    try:
        append_rows(results, rows)
    except OSError as error:
        typer.echo(f"bench: {results} cannot be written: {error.strerror}", err=True)
        return False
    typer.echo(f"bench: {len(rows)} figures appended to {results}", err=True)
    return True


def _run(name: Benchmark, seconds: float, *, live: bool) -> list[Result]:
    # Only the benchmarks that are run load what they measure.
    run = importlib.import_module(f"bench.{name}").run
    return run(seconds, live=live) if name is Benchmark.SCALE else run(seconds)


def _show(name: Benchmark, rows: list[dict[str, Any]], conditions: Conditions, *, as_json: bool) -> None:
    if as_json:
        for row in rows:
            print(json.dumps(row), flush=True)
        return
    where = f"swarm {conditions.version} ({conditions.git_sha or 'no git'}), {conditions.cores} x {conditions.cpu}"
    print(f"{rows[0]['benchmark']}: {where}, load average {conditions.load_1m:.2f} before")
    tables = importlib.import_module(f"bench.{name}").tables(rows) if name is Benchmark.SCALE else [_table(rows)]
    for table in tables:
        Console().print(table)


def _table(rows: list[dict[str, Any]]) -> Table:
    """One figure per line."""
    table = Table()
    for heading in ("case", "metric", "value", "unit"):
        table.add_column(heading, justify="right" if heading == "value" else "left")
    case = rows[0]["case"]
    for row in rows:
        if row["case"] != case:
            table.add_section()
            case = row["case"]
        value = f"{row['value']:,.0f}" if row["value"] >= 1000 else f"{row['value']:.4g}"
        table.add_row(row["case"], row["metric"], value, row["unit"])
    return table


def run_command() -> None:
    """Run the command that the first word names, or benchmarks."""
    if module := COMMANDS.get(sys.argv[1] if len(sys.argv) > 1 else ""):
        command = importlib.import_module(module).main
        sys.argv[:2] = [f"{sys.argv[0]} {sys.argv[1]}"]
        typer.run(command)
    else:
        typer.run(main)


if __name__ == "__main__":
    run_command()
