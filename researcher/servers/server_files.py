"""The files that a study's own servers leave behind: removal of those no longer needed, and compression of the rest."""

from __future__ import annotations

import fcntl
import logging
import lzma
import re
import shutil
import sqlite3
import time
from collections.abc import Iterator, Set
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from researcher.record.runs import PROJECT
from swarm.config import LEDGER

logger = logging.getLogger(__name__)

OPTIMIZER_STATE = "trainer_state.pt"
"""The part of a checkpoint that is needed to resume training but not to serve; two thirds of its size."""

PACKED = f"{LEDGER}.xz"
RECORDER_LOCK = "recorded/lock"
"""The file in a server's home that the recorder of the server locks while it works."""
RECORDER_PATIENCE_S = 60.0
_RUN = re.compile(r"run-(\d+)")
_CHECKPOINT = re.compile(r"step-\d+")


@dataclass(frozen=True, slots=True)
class Removed:
    """The checkpoints that were removed, and the bytes freed, including those of recovery files."""

    checkpoints: tuple[Path, ...]
    freed: int


def remove_checkpoints(servers: Path, needed: Set[Path], *, are_stopped: bool) -> Removed:
    """Remove recovery files and checkpoints below `servers`, except the checkpoints `needed`.

    A server keeps its runs in PROJECT/NAME/run-NNNN of its home. There `checkpoints/` holds the checkpoints that were
    asked for, and `recovery/` those for a restart after a crash.

    Unless the servers are stopped, the newest run of each stays as it is: its engine may have to restart from there.
    """
    removed: list[Path] = []
    freed = 0
    for run in _past_runs(servers, with_newest=are_stopped):
        freed += _remove(run / "recovery")
        kept = run / "checkpoints"
        for checkpoint in sorted(kept.iterdir()) if kept.is_dir() else ():
            if _CHECKPOINT.fullmatch(checkpoint.name) and checkpoint.resolve() not in needed:
                freed += _remove(checkpoint)
                removed.append(checkpoint.resolve())
    return Removed(tuple(removed), freed)


def remove_optimizer_state(checkpoint: Path) -> int:
    """Remove the optimizer state of a checkpoint and return the bytes freed; the weights stay."""
    state = checkpoint / OPTIMIZER_STATE
    size = _size(state)
    state.unlink(missing_ok=True)
    return size


def pack_ledgers(servers: Path) -> int:
    """Compress the ledgers of stopped servers and return the bytes freed.

    A ledger that a tracker still gets its last steps from is left as it is. `unpack_ledgers` and `xz --decompress` undo
    it.
    """
    freed = 0
    for ledger in sorted(servers.glob(f"*/{LEDGER}")):
        if not _recorder_is_done(ledger.parent):
            logger.warning("%s is left as it is: it is still being recorded in a tracker", ledger)
            continue
        try:
            with closing(sqlite3.connect(ledger)) as database:
                (is_busy, *_) = database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        except sqlite3.Error as error:
            logger.warning("%s is left as it is: %s", ledger, error)
            continue
        if is_busy:
            continue
        before, draft = _size(ledger), ledger.with_name(f".{PACKED}")
        with ledger.open("rb") as source, lzma.open(draft, "wb", preset=1) as target:
            shutil.copyfileobj(source, target, 1 << 20)
        draft.replace(ledger.with_name(PACKED))
        for suffix in ("", "-wal", "-shm"):
            ledger.with_name(f"{LEDGER}{suffix}").unlink(missing_ok=True)
        freed += before - _size(ledger.with_name(PACKED))
    return freed


def _recorder_is_done(server: Path) -> bool:
    """Wait for the recorder of a stopped server, if it has one, and return whether it is done."""
    try:
        lock = (server / RECORDER_LOCK).open("rb")
    except FileNotFoundError:
        return True
    give_up_at = time.monotonic() + RECORDER_PATIENCE_S
    with lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > give_up_at:
                    return False
                time.sleep(0.2)
            else:
                return True


def unpack_ledgers(servers: Path) -> None:
    """Decompress the ledgers of servers that are to start again."""
    for packed in sorted(servers.glob(f"*/{PACKED}")):
        draft = packed.with_name(f".{LEDGER}")
        with lzma.open(packed) as source, draft.open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
        draft.replace(packed.with_name(LEDGER))
        packed.unlink()


def _past_runs(servers: Path, *, with_newest: bool) -> Iterator[Path]:
    for server in sorted(path for path in servers.glob("*") if path.is_dir()):
        runs = [path for path in server.glob(f"{PROJECT}/*/run-*") if _RUN.fullmatch(path.name)]
        runs.sort(key=lambda path: int(path.name.partition("-")[2]))
        yield from runs if with_newest else runs[:-1]


def _remove(folder: Path) -> int:
    size = sum(_size(path) for path in folder.rglob("*") if path.is_file())
    shutil.rmtree(folder, ignore_errors=True)
    return size


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0
