"""The servers that run on this machine for this user, so that a command can ask which one is meant."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from swarm.processes.child import is_dead, own_name


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server: its address, its home, and its process as `own_name` names it."""

    url: str
    home: str
    process: str


@contextmanager
def announced_server(url: str, home: Path) -> Generator[None]:
    """Have this process on the list as a server at `url`, until the context ends.

    A directory that cannot be written is no reason not to serve: the server is then not on the list.
    """
    entry = _directory() / f"{os.getpid()}.json"
    server = RunningServer(url, str(home.resolve()), own_name())
    draft = entry.with_suffix(".draft")
    with suppress(OSError):
        entry.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if _is_own(entry.parent):
            draft.write_text(json.dumps(asdict(server)))
            draft.replace(entry)
    try:
        yield
    finally:
        with suppress(OSError):
            entry.unlink(missing_ok=True)


def list_running_servers() -> list[RunningServer]:
    """Return the servers of this user on this machine, in the order of their addresses.

    Entries of processes that are gone are removed.
    """
    directory = _directory()
    if not _is_own(directory):
        return []
    found: list[RunningServer] = []
    for entry in directory.glob("*.json"):
        try:
            server = RunningServer(**json.loads(entry.read_bytes()))
        except (OSError, ValueError, TypeError):
            continue
        if is_dead(server.process):
            with suppress(OSError):
                entry.unlink(missing_ok=True)
        else:
            found.append(server)
    return sorted(found, key=lambda server: server.url)


def _directory() -> Path:
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Path(runtime) / "swarm" if runtime else Path(tempfile.gettempdir()) / f"swarm-{os.getuid()}"


def _is_own(directory: Path) -> bool:
    """Return whether nobody but this user can write the list. In a shared directory another may have made it."""
    try:
        state = directory.stat()
    except OSError:
        return False
    return state.st_uid == os.getuid() and not state.st_mode & 0o022
