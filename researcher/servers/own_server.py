"""One swarm server of our own: a child process with its files in a folder, at the address that it had before.

Place in the flow: servers/server_pool.py starts one for each of its own slots, and again when it has ended. A job that
its end has interrupted goes on by itself. This module knows nothing of studies.
"""

from __future__ import annotations

import sys
from pathlib import Path
from urllib.parse import urlsplit

from researcher.errors import ServerProblem
from swarm.processes.announcement import NoAnnouncement, await_announcement
from swarm.processes.child import Child, server_environment

START_TIMEOUT_S = 60.0
"""A cold start imports the web stack from disk; far above the seconds that takes on a busy laptop."""

_PORT_TAKEN = "cannot listen on"


def start_own_server(
    folder: Path, before: str | None, token: str | None, max_threads: int | None = None
) -> tuple[Child, str]:
    """Its process and its address: that of `before`, if its port is still free. It obeys nobody without `token`, if
    there is one, and a large model takes at most `max_threads`. Raises ServerProblem if it does not come up."""
    port = urlsplit(before).port if before else None
    try:
        return _start(folder, port or 0, token, max_threads)
    except ServerProblem as error:
        if not port or _PORT_TAKEN not in str(error):
            raise
        return _start(folder, 0, token, max_threads)


def _start(folder: Path, port: int, token: str | None, max_threads: int | None) -> tuple[Child, str]:
    folder.mkdir(parents=True, exist_ok=True)
    out, errors = folder / "stdout.log", folder / "stderr.log"
    out.unlink(missing_ok=True)
    argv = [sys.executable, "-m", "swarm.cli", "start", "--port", str(port), "--home", str(folder), "--json"]
    # A token meant for other servers would lock us out of our own.
    environment = server_environment()
    if token is not None:
        environment["SWARM_TOKEN"] = token
    if max_threads is not None:
        environment.setdefault("SWARM_MAX_TORCH_THREADS", str(max_threads))
    child = Child(argv, env=environment, cwd=folder, out=out, errors=errors)
    try:
        return child, str(await_announcement(child, out, errors, START_TIMEOUT_S)["url"])
    except NoAnnouncement as error:
        child.stop()
        raise ServerProblem(f"a local swarm server did not start: {error} (log: {errors})") from error
