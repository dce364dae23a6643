"""A cgroup for each sandbox, with the kernel's own limits of memory and of processes."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

PREFIX = "swarm-sandbox-"
CONTROLLERS = frozenset({"memory", "pids"})
ABANDONED_S = 600.0
"""Age in seconds from which an empty cgroup is abandoned: both its sandbox and the process that should remove it have
ended."""
REMOVE_TIMEOUT_S = 5.0
POLL_S = 0.01


def find_parent(proc: Path = Path("/proc/self")) -> Path | None:
    """Return the nearest cgroup, from this process's own upwards, that can contain one for a sandbox.

    Returns None if there is none.
    """
    return next((folder for folder in _own_cgroups(proc) if _is_usable(folder)), None)


def make_cgroup(parent: Path, memory_bytes: int, tasks: int) -> Path | None:
    """Create an empty cgroup with these limits, and remove abandoned ones.

    Returns None if this process may not create one any more.
    """
    _remove_abandoned(parent)
    folder = parent / f"{PREFIX}{secrets.token_hex(8)}"
    try:
        folder.mkdir()
        (folder / "memory.max").write_text(str(memory_bytes), encoding="ascii")
        (folder / "pids.max").write_text(str(tasks), encoding="ascii")
    except OSError:
        remove_cgroup(folder)
        return None
    # Without swap accounting there is no such file.
    with suppress(OSError):
        _set(folder / "memory.swap.max", "0")
    with suppress(OSError):
        _set(folder / "memory.oom.group", "1")
    return folder


def remove_cgroup(folder: Path) -> None:
    """End the processes in a cgroup and remove it.

    Idempotent.
    """
    with suppress(OSError):
        _set(folder / "cgroup.kill", "1")
    deadline = time.monotonic() + REMOVE_TIMEOUT_S
    while folder.is_dir() and time.monotonic() < deadline:
        try:
            folder.rmdir()
        except OSError:
            # Killed processes take a moment to disappear.
            time.sleep(POLL_S)


def has_killed(folder: Path) -> bool:
    """Return whether the memory limit killed a process in the cgroup."""
    try:
        lines = (folder / "memory.events").read_text(encoding="ascii").splitlines()
    except OSError:
        return False
    return any(line.startswith("oom_kill ") and line != "oom_kill 0" for line in lines)


def _own_cgroups(proc: Path) -> Iterator[Path]:
    try:
        lines = (proc / "cgroup").read_text(encoding="utf-8").splitlines()
        mounts = (proc / "mountinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    own = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), None)
    # proc(5): fields 4 and 5 are the mount's root and mount point; the filesystem type follows a lone hyphen.
    roots = [line.split()[3:5] for line in mounts if line.partition(" - ")[2].startswith("cgroup2 ")]
    if own is None or not roots:
        return
    root, place = roots[0]
    below = Path(own.strip()).relative_to(root) if Path(own.strip()).is_relative_to(root) else Path()
    folder = Path(place) / below
    while True:
        yield folder
        if folder == Path(place):
            return
        folder = folder.parent


def _is_usable(folder: Path) -> bool:
    """Return whether this process may create and join a cgroup below this one that has both controllers."""
    try:
        passed_on = (folder / "cgroup.subtree_control").read_text(encoding="ascii").split()
    except OSError:
        return False
    return (
        set(passed_on) >= CONTROLLERS
        and os.access(folder, os.W_OK | os.X_OK)
        and os.access(folder / "cgroup.procs", os.W_OK)
    )


def _remove_abandoned(parent: Path) -> None:
    for folder in parent.glob(f"{PREFIX}*"):
        # A cgroup in use cannot be removed.
        with suppress(OSError):
            if time.time() - folder.stat().st_mtime > ABANDONED_S:
                folder.rmdir()


def _set(file: Path, value: str) -> None:
    with file.open("r+", encoding="ascii") as opened:
        opened.write(value)
