"""Checks of a server's address and of its directory. They change no ledger and no running server."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import sqlite3
import statistics
import tempfile
import time
from contextlib import closing
from pathlib import Path

import psutil

from swarm import __version__
from swarm.client import SwarmClient
from swarm.config import ServerConfig, local_url
from swarm.doctor.examination import CheckFinding, fail, ok, warn
from swarm.errors import (
    Forbidden,
    JobInvalid,
    LedgerDamaged,
    LedgerError,
    ServerUnreachable,
    SwarmError,
    Unauthorized,
)
from swarm.ledger.database import lock_of, open_unchanged
from swarm.ledger.integrity.openings import read_losses
from swarm.schemas import Status
from swarm.server.home import inspect_home, ledger_of
from swarm.trainer.checkpoints import DiskUse

ANSWER_LIMIT_S = 4.0
# Leases last tens of seconds, so a smaller difference hardly matters.
LARGEST_SKEW_S = 5.0
# 2026-01-01. A correct clock cannot show a time before this program was written.
EARLIEST_TIME = 1_767_225_600
LITTLE_SPACE_BYTES = 2**30
NO_SPACE_BYTES = 64 * 2**20
LARGE_LEDGER_BYTES = 10 * 2**30
FSYNCS = 25
FSYNC_BYTES = 4096
# Every acknowledgement waits for one durable write. Hundreds share it, so a slow disk costs latency, not throughput.
SLOW_FSYNC_S = 0.03
# SQLite's WAL mode needs memory that all processes with the open file share, which these do not offer.
NETWORK_FILESYSTEMS = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "fuse.sshfs", "9p", "ceph", "lustre"})


def check_tokens(host: str) -> CheckFinding:
    """Check the tokens in the environment by the rule of `swarm start`."""
    try:
        config = ServerConfig.from_environment(host=host)
    except JobInvalid as error:
        return fail(
            error.message,
            "set a new one: export SWARM_TOKEN=$(python -c 'import secrets; print(secrets.token_urlsafe(24))')",
        )
    tokens = {"commander": config.token, "rollout": config.rollout_token, "observer": config.observer_token}
    roles = [name for name, token in tokens.items() if token is not None]
    if not roles:
        return ok(f"none, and none is needed: only this machine can reach {host}")
    return ok(f"set for {', '.join(roles)}")


def check_port(host: str, port: int, token: str | None) -> CheckFinding:
    """Check that the port is free, or that a swarm server of this version answers there."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            reason = error.strerror or str(error)
        else:
            return ok(f"{host}:{port} is free")
    url = local_url(host, port)
    try:
        status = _status(url, token)
    except ServerUnreachable:
        return fail(f"{host}:{port} cannot be used: {reason}", "stop what listens there, or choose another --port")
    except (Unauthorized, Forbidden):
        return ok(f"a swarm server answers at {url}; it does not accept the token that is set here")
    except SwarmError:
        return fail(f"another program, which is no swarm server, listens on {host}:{port}", "choose another --port")
    if status.server_version != __version__:
        return warn(
            f"a swarm server of version {status.server_version} answers at {url}, and this is version {__version__}",
            "install the same version on both",
        )
    return ok(f"a swarm server answers at {url}: {status.state}, step {status.step}")


def check_clock(host: str, port: int, token: str | None, home: Path) -> CheckFinding:
    """Check the clock. Deadlines and leases are stored as times of day, so a wrong clock ends episodes wrongly."""
    now = time.time()
    shown = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(now))
    if now < EARLIEST_TIME:
        return fail(f"{shown} cannot be right", "set the clock, preferably by NTP")
    ledger = ledger_of(home)
    ahead_s = ledger.stat().st_mtime - now if ledger.exists() else 0.0
    if ahead_s > LARGEST_SKEW_S:
        return warn(
            f"{shown}: the ledger was last written {ahead_s:.0f} s in the future", "set the clock, preferably by NTP"
        )
    try:
        skew_s = _status(local_url(host, port), token).now - time.time()
    except SwarmError:
        return ok(shown)
    if abs(skew_s) > LARGEST_SKEW_S:
        return warn(f"{shown}: the server's clock differs by {skew_s:+.0f} s", "set both clocks by NTP")
    return ok(f"{shown}, the same as the server's")


def _status(url: str, token: str | None) -> Status:
    with SwarmClient(url, token, timeout=ANSWER_LIMIT_S) as client:
        return client.status()


def check_home(home: Path) -> CheckFinding:
    """Check that the directory can be written, has free space, and is not on a network filesystem."""
    place = existing_parent(home)
    try:
        with tempfile.NamedTemporaryFile(dir=place, prefix=".swarm-doctor-") as probe:
            probe.write(bytes(FSYNC_BYTES))
            probe.flush()
    except OSError as error:
        return fail(
            f"{home} cannot be written: {error.strerror}", "set a directory that you own with --home or SWARM_HOME"
        )
    free = shutil.disk_usage(place).free
    shown = f"{home}{'' if home.exists() else ' (new)'}: {_size(free)} free"
    if free < NO_SPACE_BYTES:
        return fail(shown, "delete files: the server refuses episodes with HTTP 507 once the disk is full")
    if free < LITTLE_SPACE_BYTES:
        return warn(shown, "delete files: each checkpoint takes about three times the size of the model")
    kind = _filesystem(place)
    if kind in NETWORK_FILESYSTEMS:
        return warn(
            f"{shown}, on a network filesystem ({kind})", "use a local disk: here the ledger may hang or be damaged"
        )
    return ok(shown)


def check_disk_use(home: Path) -> CheckFinding:
    """Check the disk space that ledger and checkpoints use."""
    if not home.is_dir():
        return ok("nothing yet")
    try:
        use = DiskUse.of(home)
    except OSError as error:
        return fail(f"{home} cannot be read: {error.strerror}", "check the permissions of the directory")
    shown = (
        f"ledger {_size(use.ledger)}, checkpoints {_size(use.checkpoints)}, for crash recovery {_size(use.recovery)}"
    )
    if use.ledger > LARGE_LEDGER_BYTES:
        return warn(
            shown, f"run `swarm gc --home {home}`, which deletes the tokens of old episodes; --dry-run shows how much"
        )
    return ok(shown)


def check_fsync(home: Path) -> CheckFinding:
    """Check the median time of a durable 4 KiB write, on a temporary file."""
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
        return fail(f"cannot be measured: {error.strerror}", "see the check `home`")
    median_s, longest_s = statistics.median(times), max(times)
    message = f"{median_s * 1000:.1f} ms per durable write (longest {longest_s * 1000:.0f} ms)"
    if median_s > SLOW_FSYNC_S:
        return warn(message, "use a local SSD: every acknowledgement waits for such a write")
    return ok(message)


def check_ledger(home: Path) -> CheckFinding:
    """Check that the ledger is undamaged, has the schema of this version, and belongs to its control file."""
    path = ledger_of(home)
    try:
        found = inspect_home(home, None)
        if found.mark is None:
            return ok("none yet: the first start creates it")
        with closing(open_unchanged(path)) as connection:
            losses = read_losses(connection)
    except LedgerDamaged as error:
        return fail(error.finding, f"swarm restore BACKUP --home {home}, or swarm start --home {home} --new-ledger")
    except LedgerError as error:
        what, _, remedy = error.message.rpartition(": ")
        return fail(what, remedy)
    except (sqlite3.Error, OSError) as error:
        return fail(f"{path} cannot be read: {error}", "check the permissions of the file and its directory")
    if losses:
        newest = losses[-1][0]
        return warn(f"{path} was {newest}", "put the newer ledger back if there is one")
    holder = holder_of(path)
    state = "" if holder is None else f", in use by process {holder}"
    return ok(f"undamaged, {found.mark.acknowledged:,} acknowledged episodes, {_size(path.stat().st_size)}{state}")


def holder_of(path: Path) -> str | None:
    """Return the process id of the server that has the ledger open, or None."""
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
    """Return the directory, or the nearest parent that exists, in which `swarm start` would create it."""
    resolved = directory.resolve()
    return next((place for place in (resolved, *resolved.parents) if place.exists()), Path("/"))


def _filesystem(place: Path) -> str:
    """Return the type of the filesystem of `place`, or "" if the system does not list it."""
    mounts = [mount for mount in psutil.disk_partitions(all=True) if place.is_relative_to(mount.mountpoint)]
    return max(mounts, key=lambda mount: len(mount.mountpoint)).fstype if mounts else ""


def _size(amount: int) -> str:
    return f"{amount / 2**30:.1f} GiB" if amount >= 2**30 else f"{amount / 2**20:.1f} MiB"
