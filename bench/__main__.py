"""`python -m bench NAME ...`: runs benchmarks and prints their figures. `python -m bench gpu` has options of its own.

Exit codes: 0 done, 1 a benchmark failed, 2 wrong usage, 130 interrupted, 143 terminated.
"""

from __future__ import annotations

import importlib
import json
import signal
import sys
from enum import StrEnum
from typing import Annotated, Any

import httpx
import typer
from rich.console import Console
from rich.table import Table

from bench.results import Conditions, read_conditions, to_row
from swarm.errors import SwarmError


class Benchmark(StrEnum):
    """Each is a module of this package."""

    REAL_SIZE = "real_size"
    MERGING = "merging"
    JUDGE = "judge"


def main(
    names: Annotated[list[Benchmark], typer.Argument(help="Which to run. `gpu --help` shows one more.")],
    seconds: Annotated[float, typer.Option(min=0.2, max=900, help="How long each case is measured.")] = 3.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines on stdout instead of a table.")] = False,
) -> None:
    """Measure how fast models are sampled and trained here, and how often the judge is wrong."""
    # A benchmark ends its child processes on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    finished = [_measure(name, seconds, as_json=as_json) for name in names]
    raise typer.Exit(0 if all(finished) else 1)


def _measure(name: Benchmark, seconds: float, *, as_json: bool) -> bool:
    """Run and show one benchmark. Return False after a failure, which is reported in one line."""
    typer.echo(f"bench: {name}, {seconds:g} s per case", err=True)
    conditions = read_conditions(seconds)
    try:
        # Each benchmark is imported only when it runs, because it loads the parts that it measures.
        rows = [to_row(result, conditions) for result in importlib.import_module(f"bench.{name}").run(seconds)]
    except (SwarmError, httpx.HTTPError, OSError) as error:  # TimeoutError is an OSError
        typer.echo(f"bench: {name} failed: {str(error) or type(error).__name__}", err=True)
        return False
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    if as_json:
        for row in rows:
            print(json.dumps(row), flush=True)
    else:
        _show(rows, conditions)
    return True


def _show(rows: list[dict[str, Any]], conditions: Conditions) -> None:
    """Print one figure per line."""
    where = f"swarm {conditions.version} ({conditions.git_sha or 'no git'}), {conditions.cores} x {conditions.cpu}"
    print(f"{rows[0]['benchmark']}: {where}, load average {conditions.load_1m:.2f} before")
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
    Console().print(table)


if __name__ == "__main__":
    # Its parts share minutes instead of having seconds per case, so it is a command of its own.
    if sys.argv[1:2] == ["gpu"]:
        del sys.argv[1]
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        typer.run(importlib.import_module("bench.gpu.command").main)
    else:
        typer.run(main)
