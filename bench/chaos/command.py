"""`python -m bench chaos`: a study under faults, checked against the same study without them, or some for many minutes.

Place in the flow: bench/__main__.py hands over to this. The table, or JSON, goes to stdout, what happens meanwhile to
stderr.

Exit codes: 0 all checks passed, 1 one did not or there were too few faults, 2 wrong usage, 130 interrupted, 143
terminated.
"""

from __future__ import annotations

import json
import shutil
import signal
import sys
import tempfile
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from bench.chaos.campaign import Attack, Played, play_both, play_for
from bench.chaos.checks import Check
from bench.chaos.study import ChaosStudy
from experiments_db import StoreError
from swarm import SwarmError

RATES = (1e-3, 1e-4, 3e-5, 1e-5, 3e-6)
"""On the bundled model all but the first are clearly worse, however a run went."""
TOPICS = {
    "lr": RATES,
    "num_repeat": (8.0, 2.0, 4.0, 6.0, 12.0),
    "temperature": (1.0, 0.6, 0.8, 1.2, 1.4),
}
"""What the studies of an unattended run compare, in turn."""
SEEDS, PLANS = 3, 2
STEPS = {"fake": 12, "local": 12}
EPISODES = {"fake": 40, "local": 100}
MINUTES_PER_KILL = 3.0
LEAST_KILLS = 5


class Engine(StrEnum):
    """`local` trains the bundled model nano."""

    FAKE = "fake"
    LOCAL = "local"


def main(
    seed: Annotated[int, typer.Option(help="The schedule of faults is drawn from it.")] = 1,
    faults: Annotated[int, typer.Option(min=1, help="How many have to hit something.")] = 50,
    engine: Annotated[Engine, typer.Option(help="fake, or local for the bundled model nano.")] = Engine.FAKE,
    seeds: Annotated[int, typer.Option(min=3, max=10, help="Runs per arm and plan, of 5 arms and 2 plans.")] = SEEDS,
    pause: Annotated[
        float | None, typer.Option(min=0.1, help="Mean seconds between two faults (default: spread over the study).")
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(min=0.5, help="Run studies on nano with kills alone; begin none after so long.")
    ] = None,
    studies: Annotated[int, typer.Option(min=1, help="With --minutes: how many, one after another.")] = 3,
    home: Annotated[
        Path | None,
        typer.Option(help="New directory for everything (default: a temporary one, removed if all passed)."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")] = False,
) -> None:
    """Work on studies while what they stand on is killed, filled up, locked and lied to, and check what comes out."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = Path(tempfile.mkdtemp(prefix="swarm-chaos-")) if home is None else home.resolve()
    typer.echo(f"chaos: everything is in {folder}", err=True)
    try:
        if minutes is not None:
            kills = max(LEAST_KILLS, round(minutes / MINUTES_PER_KILL))
            planned = [_study(Engine.LOCAL, setting, seeds) for setting in _in_turn(studies)]
            played = play_for(folder, planned, seed, minutes, kills)
        else:
            attack = Attack(seed, faults) if pause is None else Attack(seed, faults, pause)
            played = list(play_both(folder, _study(engine, "lr", seeds), attack, is_spread=pause is None))
    except (OSError, SwarmError, StoreError) as error:
        typer.echo(f"chaos: {str(error) or type(error).__name__}", err=True)
        raise typer.Exit(1) from error
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    is_passed = all(each.is_passed for each in played)
    document = {"seed": seed, "passed": is_passed, "studies": [each.to_json() for each in played]}
    if as_json:
        typer.echo(json.dumps(document, indent=1))
    else:
        _show(played, folder)
    (folder / "chaos.json").write_text(json.dumps(document, indent=1))
    if is_passed and home is None:
        shutil.rmtree(folder, ignore_errors=True)
    raise typer.Exit(0 if is_passed else 1)


def _study(engine: Engine, setting: str, seeds: int) -> ChaosStudy:
    return ChaosStudy(setting, TOPICS[setting], seeds, PLANS, STEPS[engine], EPISODES[engine], engine.value)


def _in_turn(count: int) -> list[str]:
    settings = list(TOPICS)
    return [settings[number % len(settings)] for number in range(count)]


def _show(played: list[Played], folder: Path) -> None:
    console = Console()
    for each in played:
        found = each.outcome
        console.print(f"[bold]study {found.study_id}[/bold]: {found.seconds:.0f} s, {len(each.faults)} faults")
        console.print(_checks(each.checks))
        figures: dict[str, Any] = {
            **{f"fault: {kind}": count for kind, count in sorted(each.by_kind.items())},
            **{f"found no target: {kind}": count for kind, count in each.missed.items() if count},
            **{f"left out: {kind}": reason for kind, reason in each.left_out.items()},
            **{f"runs {status}": count for status, count in sorted(found.attempts.items())},
            **{f"event: {kind}": count for kind, count in sorted(found.waits.items())},
        }
        table = Table("figure", "value", box=None)
        for name, value in figures.items():
            table.add_row(name, str(value))
        console.print(table)
    runs = sum(each.outcome.scored for each in played)
    console.print(f"{len(played)} studies, {runs} trials scored; all that is known is in {folder}/chaos.json")


def _checks(checks: list[Check]) -> Table:
    table = Table("check", "", "found")
    for check in checks:
        table.add_row(check.name, "ok" if check.is_passed else "FAILED", check.found)
    return table
