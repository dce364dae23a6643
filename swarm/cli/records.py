"""The commands on the files of a server's home: `swarm backup | restore | gc | export | import`, and the recorder."""

from __future__ import annotations

import json
import logging
import shlex
import subprocess
from collections.abc import Iterable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from swarm.cli import options
from swarm.cli.failures import failures_in_one_line
from swarm.errors import BadRequest, LedgerError, LedgerInUse, NotFound

if TYPE_CHECKING:
    from swarm.backends.local.export import Exported
    from swarm.ledger import RecordLoss
    from swarm.server.backup import Saved
    from swarm.server.cleanup import Cleaned

logger = logging.getLogger(__name__)

RECORDER_LOG = "recorder.log"


def backup(
    directory: Annotated[Path, typer.Argument(help="A new or empty directory for the backup.")],
    home: options.HomeOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Copy ledger and checkpoints of a server, which may go on meanwhile.

    The copy is read to its end before it gets its name.
    """
    with failures_in_one_line():
        from swarm.server.backup import back_up

        saved = back_up(options.home_named(home), directory)
        typer.echo(json.dumps(asdict(saved), default=str) if as_json else f"{directory}: {_text_of(saved)}")


def restore(
    directory: Annotated[Path, typer.Argument(help="What `swarm backup` wrote.")],
    home: options.HomeOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Put a backup into the home of a server, and set aside what is there. Stop the server first."""
    with failures_in_one_line():
        from swarm.server import backup as backups

        done = backups.restore(directory, options.home_named(home))
        if as_json:
            shown = {**asdict(done.saved), "set_aside": done.aside, "replaced": done.replaced}
            typer.echo(json.dumps(shown, default=str))
            return
        typer.echo(f"{done.home}: {_text_of(done.saved)}")
        if done.aside is not None:
            typer.echo(f"set aside in {done.aside}: {done.replaced or 'runs without a ledger'}", err=True)
        typer.echo(f"to go on: swarm start --home {shlex.quote(str(done.home))}", err=True)


def _text_of(saved: Saved) -> str:
    job = "no job" if saved.job is None else f"step {saved.step} of {saved.job}"
    return f"{saved.episodes:,} acknowledged episodes, {job}, {saved.size / 1e6:.1f} MB"


def gc(
    home: options.HomeOption = None,
    keep_days: Annotated[
        float, typer.Option(min=0, max=36_500, help="Keep the tokens of episodes that ended within so many days.")
    ] = 0.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go, and change nothing.")] = False,
    as_json: options.JsonOption = False,
) -> None:
    """Drop the tokens of old episodes and the recovery copies of runs that are over.

    Rewards, metrics and events stay, and so does all that a server needs to go on. Stop the server first.
    """
    with failures_in_one_line():
        from swarm.server.cleanup import clean

        done = clean(options.home_named(home), keep_days=keep_days, is_dry_run=dry_run)
        typer.echo(json.dumps(_cleaned(done)) if as_json else _sizes(done))


def _cleaned(done: Cleaned) -> dict[str, object]:
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


def _sizes(done: Cleaned) -> str:
    would, ledger = ("would go" if done.is_dry_run else "went"), done.ledger
    return (
        f"ledger: {ledger.bytes_before / 1e6:.1f} MB -> {ledger.bytes_after / 1e6:.1f} MB, the tokens of"
        f" {ledger.episodes:,} episodes {would}; those of steps after {done.kept_after_step} stay\n"
        f"recovery copies: {len(done.removed)} {would}, {done.removed_bytes / 1e6:.1f} MB"
    )


def export(
    places: Annotated[
        list[str],
        typer.Argument(
            metavar="[RUN|CHECKPOINT] DIR",
            help="A run as project/experiment, or the directory of a run or checkpoint (default: the newest run), and"
            " where the model goes.",
        ),
    ],
    step: Annotated[
        int | None, typer.Option(min=0, help="The checkpoint of this step of the run (default: its newest).")
    ] = None,
    merge_lora: Annotated[
        bool, typer.Option("--merge-lora", help="Of a LoRA run: the whole model, the adapter merged into its base.")
    ] = False,
    dtype: Annotated[
        str | None, typer.Option(help="float32, bfloat16 or float16 (default: as in the checkpoint).")
    ] = None,
    home: options.HomeOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Hand the weights over: a folder with model, tokenizer and chat template that transformers and vLLM load.

    DIR must be new or empty. A server may be running: what it does is not disturbed.
    """
    with failures_in_one_line():
        from swarm.trainer.checkpoints import find_checkpoint

        *named, target = places
        if len(named) > 1:
            raise BadRequest("too many arguments: swarm export [RUN|CHECKPOINT] DIR")
        checkpoint = find_checkpoint(options.home_named(home), named[0] if named else None, step)
        from swarm.backends.local.export import export_checkpoint
        from swarm.backends.local.model.computing import DTYPES

        if dtype is not None and dtype not in DTYPES:
            raise BadRequest(f"unknown dtype {dtype!r}: use {', '.join(DTYPES)}", param="dtype")
        done = export_checkpoint(checkpoint, Path(target), dtype=dtype, merge_lora=merge_lora)
        typer.echo(json.dumps(asdict(done), default=str) if as_json else _line_of(done))


def _line_of(done: Exported) -> str:
    what = "an adapter of " if done.is_adapter else ""
    return (
        f"{done.directory}: step {done.step} of {done.checkpoint}, {what}{done.parameters:,} parameters in"
        f" {done.dtype}, {done.bytes / 1e6:.1f} MB"
    )


def start_recorder(home: Path, runs: Path, url: str, sinks: Iterable[str]) -> None:
    """Begin to record the trainings of this process, a server at `home` and `url`, in the sinks of these names.

    A recorder that cannot begin is no reason not to serve; the log says so.
    """
    from swarm.processes import own_name, python_module

    command = python_module("swarm.recorder", str(home.absolute()), "--runs", str(runs), "--url", url)
    command += [word for name in sinks for word in ("--sink", name)]
    try:
        with (home / RECORDER_LOG).open("ab") as log:
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
    record: options.RecordOption = None,
    no_record: Annotated[bool, typer.Option("--no-record", help="Record in the trackers of --log alone.")] = False,
    log: options.LogOption = None,
) -> None:
    """Record the trainings in a server's ledger in the database that `researcher ui` shows, and in trackers.

    What is recorded already is not recorded twice. The server may run meanwhile.
    """
    with failures_in_one_line():
        from swarm.config import LEDGER
        from swarm.recorder.progress import ProgressRecording
        from swarm.recorder.reading import LedgerReader
        from swarm.recorder.recording import Recording
        from swarm.sinks import ProgressSink, open_sink

        if not (home / LEDGER).exists():
            raise NotFound(f"{home} holds no {LEDGER}: name the directory of a server", param="home")
        runs, sinks = options.runs_directory(record), options.chosen_sinks(no_record, log)
        if not sinks:
            raise BadRequest("--no-record leaves nothing to record in: give --log as well", param="no_record")
        for name in sinks:
            sink = open_sink(name, str(runs))
            try:
                reader, is_served = LedgerReader(home / LEDGER), _is_served(home / LEDGER)
                recording = Recording(reader, name, sink, home)
                if not recording.catch_up(is_served=is_served):
                    raise LedgerError(f"{home / LEDGER} was not recorded as a whole in {name}: {recording.failure}")
                if isinstance(sink, ProgressSink):
                    ProgressRecording(reader, sink, home, partial(_name_loss, home)).catch_up(is_served=is_served)
            finally:
                sink.close()
            where = str(runs) if name == options.DATABASE_SINK else name
            typer.echo(f"{recording.steps} new steps of {home} are recorded in {where}", err=True)


def _name_loss(home: Path, _: object, loss: RecordLoss) -> bool:
    """Tell the user. The loss is not on record until a server that records hears of it."""
    typer.echo(f"{home} was {loss}", err=True)
    return False


def _is_served(ledger: Path) -> bool:
    """Return whether a server writes to the ledger. Only a ledger at rest may be read without its log."""
    from swarm.ledger.database import hold_lock

    try:
        hold_lock(ledger).close()
    except LedgerInUse:
        return True
    return False
