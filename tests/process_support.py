"""Questions about processes that may end at any moment, also while they are asked about."""

from __future__ import annotations

from collections.abc import Iterable

import psutil


def is_running(process: psutil.Process | int) -> bool:
    """Whether the process, or the one with this id, has not ended yet. A zombie has."""
    try:
        found = psutil.Process(process) if isinstance(process, int) else process
        return found.is_running() and found.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def command_of(process: psutil.Process) -> list[str]:
    """The words of its command line; none if the process has ended."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


def descendants(pid: int) -> list[psutil.Process]:
    """The running processes below the one with this id; none if that one has ended."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def kill_all(processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
