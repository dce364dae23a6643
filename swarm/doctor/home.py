"""Checks of a server's directory: can it be written, is there room, how long does a write take, is the ledger sound.

Place in the flow: listed by checks.py. It reads the ledger file without opening it for writing, and without leaving a
file of its own behind. Knows nothing of what the rows mean.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
import statistics
import tempfile
import time
from pathlib import Path

from swarm.doctor.examination import Finding, fail, ok, warn
from swarm.errors import LedgerDamaged, LedgerError
from swarm.ledger.database import lock_of
from swarm.server.home import inspect_home, ledger_of
from swarm.trainer.run_directories import DiskUse

LITTLE_SPACE_BYTES = 2**30
NO_SPACE_BYTES = 64 * 2**20
LARGE_LEDGER_BYTES = 10 * 2**30
FSYNCS = 25
FSYNC_BYTES = 4096
# Every acknowledgement waits for one; groups of hundreds share it, so that slower disks cost latency, not throughput.
SLOW_FSYNC_S = 0.03
# WAL wants memory shared between the processes that have the file open, which these do not offer.
NETWORK_FILESYSTEMS = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "fuse.sshfs", "9p", "ceph", "lustre"})


def check_home(home: Path) -> Finding:
    """Writable, with room, and not on a network filesystem."""
    place = existing_parent(home)
    try:
        with tempfile.NamedTemporaryFile(dir=place, prefix=".swarm-doctor-") as probe:
            probe.write(bytes(FSYNC_BYTES))
            probe.flush()
    except OSError as error:
        return fail(f"{home} cannot be written: {error.strerror}", "give a directory you own with --home or SWARM_HOME")
    free = shutil.disk_usage(place).free
    shown = f"{home}{'' if home.exists() else ' (new)'}: {_size(free)} free"
    if free < NO_SPACE_BYTES:
        return fail(shown, "free space: episodes are refused with HTTP 507 once the disk is full")
    if free < LITTLE_SPACE_BYTES:
        return warn(shown, "free some space: each checkpoint takes about three times the size of the model")
    kind = _filesystem(place)
    if kind in NETWORK_FILESYSTEMS:
        return warn(f"{shown}, on a network filesystem ({kind})", "use a local disk: the ledger may lock up or break")
    return ok(shown)


def check_disk_use(home: Path) -> Finding:
    """What ledger and checkpoints take."""
    if not home.is_dir():
        return ok("nothing yet")
    try:
        use = DiskUse.of(home)
    except OSError as error:
        return fail(f"{home} cannot be read: {error.strerror}", "look at the rights of the directory")
    shown = (
        f"ledger {_size(use.ledger)}, checkpoints {_size(use.checkpoints)}, for crash recovery {_size(use.recovery)}"
    )
    if use.ledger > LARGE_LEDGER_BYTES:
        return warn(shown, f"swarm gc --home {home} drops the tokens of old episodes; --dry-run says how much")
    return ok(shown)


def check_fsync(home: Path) -> Finding:
    """The median time of a durable 4 KiB write, measured on a file that is removed again."""
    times: list[float] = []
    try:
        with tempfile.NamedTemporaryFile(dir=existing_parent(home), prefix=".swarm-doctor-") as probe:
            for _ in range(FSYNCS):
                began = time.perf_counter()
                probe.write(bytes(FSYNC_BYTES))
                probe.flush()
                os.fsync(probe.fileno())
                times.append(time.perf_counter() - began)
    except OSError as error:
        return fail(f"cannot be measured: {error.strerror}", "see the check of the home")
    median_s, longest_s = statistics.median(times), max(times)
    message = f"{median_s * 1000:.1f} ms per durable write (longest {longest_s * 1000:.0f} ms)"
    if median_s > SLOW_FSYNC_S:
        return warn(message, "every acknowledgement waits this long: a local SSD would be faster")
    return ok(message)


def check_ledger(home: Path) -> Finding:
    """Whole to the last row, the one that belongs to its control file and runs, and of a schema that is read here."""
    path = ledger_of(home)
    try:
        found = inspect_home(home, None)
        if found.mark is None:
            return ok("none yet: the first start creates it")
    except LedgerDamaged as error:
        return fail(error.finding, f"swarm restore BACKUP --home {home}, or swarm start --home {home} --new-ledger")
    except LedgerError as error:
        what, _, remedy = error.message.rpartition(": ")
        return fail(what, remedy)
    except (sqlite3.Error, OSError) as error:
        return fail(f"{path} cannot be read: {error}", "look at the rights of the file and its directory")
    holder = holder_of(path)
    state = "" if holder is None else f", in use by process {holder}"
    return ok(f"whole, {found.mark.acknowledged:,} acknowledged episodes, {_size(path.stat().st_size)}{state}")


def holder_of(path: Path) -> str | None:
    """The process that has the ledger open, or None."""
    try:
        with lock_of(path).open(encoding="ascii") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return lock.read().strip() or "unknown"
    except OSError:
        return None
    return None


def existing_parent(directory: Path) -> Path:
    """The directory, or the nearest one above it that exists: there `start` would create it."""
    resolved = directory.resolve()
    return next((place for place in (resolved, *resolved.parents) if place.exists()), Path("/"))


def _filesystem(place: Path) -> str:
    """Type of the filesystem `place` is on; "" where the system does not say."""
    try:
        lines = Path("/proc/mounts").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    best, kind = "", ""
    for line in lines:
        _, mount, found, *_ = line.split(" ")
        if place.is_relative_to(mount) and len(mount) >= len(best):
            best, kind = mount, found
    return kind


def _size(amount: int) -> str:
    return f"{amount / 2**30:.1f} GiB" if amount >= 2**30 else f"{amount / 2**20:.1f} MiB"
