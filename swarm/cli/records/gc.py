"""The command `swarm gc`, which frees disk space by removing data that a server no longer needs.

Place in the flow: commands.py registers the command. It works on the files of a home while no server runs there. The
module only parses options and prints; swarm/server/cleanup.py does the work.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from swarm.cli.failures import failures_in_one_line
from swarm.cli.options import home_named

if TYPE_CHECKING:
    from swarm.server.cleanup import Cleaned


def gc(
    home: Annotated[Path | None, typer.Option("--home", help="Directory of the server (default as for start).")] = None,
    keep_days: Annotated[
        float, typer.Option(min=0, max=36_500, help="Keep the tokens of episodes that ended within so many days.")
    ] = 0.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go, and change nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print machine-readable JSON on stdout.")] = False,
) -> None:
    """Drop the tokens of old episodes and the recovery copies of runs that are over.

    Rewards, metrics and events stay, and so does all that a server needs to go on. Stop the server first.
    """
    with failures_in_one_line():
        from swarm.server.cleanup import clean

        done = clean(home_named(home), keep_days=keep_days, is_dry_run=dry_run)
        typer.echo(json.dumps(_figures(done)) if as_json else _text(done))


def _figures(done: Cleaned) -> dict[str, object]:
    return {
        "dry_run": done.is_dry_run,
        "episodes": done.ledger.episodes,
        "turns": done.ledger.turns,
        "ledger_bytes_before": done.ledger.bytes_before,
        "ledger_bytes_after": done.ledger.bytes_after,
        "kept_after_step": done.kept_after_step,
        "removed": [str(path) for path in done.removed],
        "removed_bytes": done.removed_bytes,
    }


def _text(done: Cleaned) -> str:
    would, ledger = ("would go" if done.is_dry_run else "went"), done.ledger
    return (
        f"ledger: {ledger.bytes_before / 1e6:.1f} MB -> {ledger.bytes_after / 1e6:.1f} MB, the tokens of"
        f" {ledger.episodes:,} episodes {would}; those of steps after {done.kept_after_step} stay\n"
        f"recovery copies: {len(done.removed)} {would}, {done.removed_bytes / 1e6:.1f} MB"
    )
