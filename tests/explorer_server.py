"""The explorer as people start it: a Streamlit process on a free port."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

ROOT = Path(__file__).parents[1]
LIMIT_S = 120.0


@contextmanager
def serve(database: Path, log: Path) -> Iterator[str]:
    """Starts the explorer on a database and gives its address; its messages go to `log`."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    argv = [sys.executable, "-m", "streamlit", "run", "ui/app.py", "--server.port", url.rpartition(":")[2]]
    argv += ["--server.headless", "true", "--server.fileWatcherType", "none"]
    environ = {**os.environ, "SWARM_RESEARCH_DB": str(database), "PYTHONPATH": str(ROOT)}
    with log.open("wb") as file, subprocess.Popen(argv, cwd=ROOT, env=environ, stdout=file, stderr=file) as server:
        try:
            await_health(url, server)
            yield url
        finally:
            server.terminate()


def await_health(url: str, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline and server.poll() is None:
        try:
            if httpx.get(f"{url}/_stcore/health", timeout=60).is_success:
                return
        except httpx.TransportError:
            time.sleep(0.2)
    raise TimeoutError(f"the explorer did not start within {LIMIT_S:.0f} s")
