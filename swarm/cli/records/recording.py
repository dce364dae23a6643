"""The recorder beside a server, and the command `swarm import`, which records a ledger that nobody serves.

Place in the flow: `swarm start` begins the recorder once it serves. The recorder is a process of its own and outlives
its server for as long as there is something to write.
"""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from swarm.cli.failures import failures_in_one_line
from swarm.cli.options import DATABASE_SINK, LogOption, RecordOption, chosen_sinks, runs_directory
from swarm.errors import BadRequest, LedgerError, LedgerInUse, NotFound

logger = logging.getLogger(__name__)

LOG = "recorder.log"


def start_recorder(home: Path, runs: Path, sinks: Iterable[str]) -> None:
    """Begin to record the trainings of this process, which is a server at `home`, in the sinks of these names.

    A recorder that cannot begin is no reason not to serve; the log says so.
    """
    from swarm.processes import own_name

    command = [sys.executable, "-m", "swarm.recorder", str(home.absolute()), "--runs", str(runs)]
    command += [word for name in sinks for word in ("--sink", name)]
    try:
        with (home / LOG).open("ab") as log:
            subprocess.Popen(
                [*command, "--server", own_name()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Ctrl-C in the server's terminal is not meant for the recorder, which ends by itself.
                start_new_session=True,
            )
    except OSError as error:
        logger.error("trainings are not recorded: %s; `swarm import %s` records them later", error, home)


def import_ledger(
    home: Annotated[Path, typer.Argument(help="Directory of a server, with its ledger.", metavar="HOME")],
    record: RecordOption = None,
    no_record: Annotated[bool, typer.Option("--no-record", help="Record in the trackers of --log alone.")] = False,
    log: LogOption = None,
) -> None:
    """Record the trainings in a server's ledger in the database that `researcher ui` shows, and in trackers.

    What is recorded already is not recorded twice. The server may run meanwhile.
    """
    with failures_in_one_line():
        from swarm.config import LEDGER
        from swarm.recorder.episodes import EpisodeChooser
        from swarm.recorder.reading import LedgerReader
        from swarm.recorder.recording import Recording
        from swarm.sinks import open_sink

        if not (home / LEDGER).exists():
            raise NotFound(f"{home} holds no {LEDGER}: name the directory of a server", param="home")
        runs, sinks = runs_directory(record), chosen_sinks(no_record, log)
        if not sinks:
            raise BadRequest("--no-record leaves nothing to record in: give --log as well", param="no_record")
        for name in sinks:
            sink = open_sink(name, str(runs))
            try:
                recording = Recording(LedgerReader(home / LEDGER, EpisodeChooser()), name, sink, home)
                if not recording.catch_up(is_served=_is_served(home / LEDGER)):
                    raise LedgerError(f"{home / LEDGER} was not recorded as a whole in {name}: {recording.failure}")
            finally:
                sink.close()
            where = str(runs) if name == DATABASE_SINK else name
            typer.echo(f"{recording.steps} new steps of {home} are recorded in {where}", err=True)


def _is_served(ledger: Path) -> bool:
    """Return whether a server writes to the ledger. Only a ledger at rest may be read without its log."""
    from swarm.ledger.database import hold_lock

    try:
        hold_lock(ledger).close()
    except LedgerInUse:
        return True
    return False
