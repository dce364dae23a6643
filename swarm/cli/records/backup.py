"""The commands `swarm backup` and `swarm restore`, which copy a server's home and put the copy back.

Place in the flow: commands.py registers the commands. They work on the files of a home. A backup may be made while a
server runs there. The module only parses options and prints; swarm/server/backup.py does the work.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from swarm.cli.failures import failures_in_one_line
from swarm.cli.options import home_named

if TYPE_CHECKING:
    from swarm.server.backup import Saved

HomeOption = Annotated[
    Path | None, typer.Option("--home", help="Directory of the server (default: $SWARM_HOME/swarm, runs/swarm).")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print machine-readable JSON on stdout.")]


def backup(
    directory: Annotated[Path, typer.Argument(help="A new or empty directory for the backup.")],
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy ledger and checkpoints of a server, which may go on meanwhile.

    The copy is read to its end before it gets its name.
    """
    with failures_in_one_line():
        from swarm.server.backup import back_up

        saved = back_up(home_named(home), directory)
        typer.echo(json.dumps(_figures(saved)) if as_json else f"{directory}: {_text(saved)}")


def restore(
    directory: Annotated[Path, typer.Argument(help="What `swarm backup` wrote.")],
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put a backup into the home of a server, and set aside what is there. Stop the server first."""
    with failures_in_one_line():
        from swarm.server import backup as backups

        done = backups.restore(directory, home_named(home))
        if as_json:
            aside = None if done.aside is None else str(done.aside)
            typer.echo(json.dumps({**_figures(done.saved), "set_aside": aside, "replaced": done.replaced}))
            return
        typer.echo(f"{done.home}: {_text(done.saved)}")
        if done.aside is not None:
            typer.echo(f"set aside in {done.aside}: {done.replaced or 'runs without a ledger'}", err=True)
        typer.echo(f"to go on: swarm start --home {shlex.quote(str(done.home))}", err=True)


def _figures(saved: Saved) -> dict[str, object]:
    return {**asdict(saved), "directory": str(saved.directory)}


def _text(saved: Saved) -> str:
    job = "no job" if saved.job is None else f"step {saved.step} of {saved.job}"
    return f"{saved.episodes:,} acknowledged episodes, {job}, {saved.size / 1e6:.1f} MB"
