"""One swarm server of the study's own: a child process with its files in a folder, at its earlier address if possible.

Place in the flow: servers/server_pool.py starts one for each of its own slots, and again when it has ended. The new
process resumes an interrupted job by itself. This module knows nothing of studies.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from researcher.errors import ServerProblem
from swarm.processes import Child, NoAnnouncement, await_announcement, server_environment

START_TIMEOUT_S = 60.0
"""Far above the seconds that a cold start takes on a busy laptop, where it imports the web stack from disk."""

_PORT_TAKEN = "cannot listen on"


def start_own_server(
    folder: Path,
    before: str | None,
    token: str | None,
    options: Sequence[str] = (),
    max_threads: int | None = None,
) -> tuple[Child, str]:
    """Start a server and return its process and its address, which is `before` if that port is still free.

    With a `token`, the server refuses requests without it. `options` are more options of `swarm start`. The study
    records its runs, so the server does not record them in the database. A large model uses at most `max_threads`.
    Raises ServerProblem if the server does not start.
    """
    port = urlsplit(before).port if before else None
    try:
        return _start(folder, port or 0, token, options, max_threads)
    except ServerProblem as error:
        if not port or _PORT_TAKEN not in str(error):
            raise
        return _start(folder, 0, token, options, max_threads)


def _start(
    folder: Path, port: int, token: str | None, options: Sequence[str], max_threads: int | None
) -> tuple[Child, str]:
    folder.mkdir(parents=True, exist_ok=True)
    out, errors = folder / "stdout.log", folder / "stderr.log"
    out.unlink(missing_ok=True)
    argv = [
        sys.executable,
        "-m",
        "swarm.cli",
        "start",
        "--port",
        str(port),
        "--home",
        str(folder),
        "--json",
        "--no-record",
        *options,
    ]
    # The environment may hold a token meant for other servers, which would lock us out of our own.
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
