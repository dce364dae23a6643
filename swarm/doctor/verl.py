"""Checks of what the verl engine needs beside the server: its trainer, its samplers' vLLM, Ray, shared memory.

Place in the flow: listed by checks.py. Every other engine does without, so nothing here fails: it warns.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

from swarm.doctor.examination import Finding, ok, warn
from swarm.doctor.installed import check_optional_extra

SHARED_MEMORY = Path("/dev/shm")
ENOUGH_SHARED_MEMORY = 2 * 2**30
RAY_PORT = 6379
CONNECT_LIMIT_S = 3.0
VLLM_LIMIT_S = 8.0

_ASK_VERSION = "import importlib.metadata; print(importlib.metadata.version('vllm'))"


def check_trainer() -> Finding:
    """What trains: verl's workers over Ray, in the server's own environment."""
    return check_optional_extra("verl")


def check_sampler(vllm_python: Path | None, limit_s: float = VLLM_LIMIT_S) -> Finding:
    """What samples: vLLM, under the interpreter that the server would start it with."""
    python = Path(sys.executable) if vllm_python is None else vllm_python
    remedy = "for the verl engine: install vLLM in an environment of its own and set SWARM_VLLM_PYTHON to its python"
    try:
        done = subprocess.run([python, "-c", _ASK_VERSION], capture_output=True, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired:
        return warn(f"{python} did not answer within {limit_s:.0f} s", remedy)
    except OSError as error:
        return warn(f"{python} does not run: {error.strerror}", remedy)
    version = done.stdout.strip()
    if not version:
        return warn(f"vLLM is not installed for {python} (optional)", remedy)
    return ok(f"vLLM {version} at {python}")


def check_ray(address: str | None) -> Finding:
    """Whether the cluster that was named answers."""
    if address is None:
        return ok("none named: the verl engine starts a local one")
    parts = urlsplit(address if "//" in address else f"//{address}")
    try:
        host, port = parts.hostname, parts.port or RAY_PORT
    except ValueError:
        host, port = None, RAY_PORT
    if address == "auto":
        return ok("auto: the one that runs on this machine, if any")
    if not host:
        return warn(f"{address} is no address of a cluster", "write SWARM_RAY_ADDRESS like head-node:6379")
    try:
        socket.create_connection((host, port), CONNECT_LIMIT_S).close()
    except OSError as error:
        return warn(f"{host}:{port} does not answer: {error}", "start the cluster, or unset SWARM_RAY_ADDRESS")
    return ok(f"{host}:{port} answers")


def check_shared_memory() -> Finding:
    """New weights pass through it from the trainer to the samplers of the same host."""
    if not SHARED_MEMORY.is_dir() or not os.access(SHARED_MEMORY, os.W_OK):
        return warn(f"{SHARED_MEMORY} cannot be written", "the verl engine needs it: mount a tmpfs there")
    free = shutil.disk_usage(SHARED_MEMORY).free
    message = f"{free / 2**30:.1f} GiB free in {SHARED_MEMORY}"
    if free < ENOUGH_SHARED_MEMORY:
        return warn(
            f"{message}: a model of more than {free / 2**30 / 2:.1f} GiB does not fit twice",
            "the verl engine keeps the present and the next weights there: enlarge it (docker: --shm-size)",
        )
    return ok(message)
