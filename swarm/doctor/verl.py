"""Checks of the verl engine's requirements: its trainer, vLLM for its samplers, Ray and shared memory.

Place in the flow: checks.py lists them. The other engines need none of these, so a check here warns and never fails.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

from swarm.doctor.examination import CheckFinding, ok, warn
from swarm.doctor.installed import check_optional_extra

SHARED_MEMORY = Path("/dev/shm")
ENOUGH_SHARED_MEMORY = 2 * 2**30
RAY_PORT = 6379
CONNECT_LIMIT_S = 3.0
VLLM_LIMIT_S = 8.0

_ASK_VERSION = "import importlib.metadata; print(importlib.metadata.version('vllm'))"


def check_trainer() -> CheckFinding:
    """Check the packages of the trainer, which runs verl's workers over Ray in the server's own environment."""
    return check_optional_extra("verl")


def check_sampler(vllm_python: Path | None, limit_s: float = VLLM_LIMIT_S) -> CheckFinding:
    """Check the sampler vLLM, with the interpreter that the server would start it with."""
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


def check_ray(address: str | None) -> CheckFinding:
    """Check that the given Ray cluster answers."""
    if address is None:
        return ok("none given: the verl engine starts a local cluster")
    parts = urlsplit(address if "//" in address else f"//{address}")
    try:
        host, port = parts.hostname, parts.port or RAY_PORT
    except ValueError:
        host, port = None, RAY_PORT
    if address == "auto":
        return ok("auto: the verl engine uses the cluster on this machine, if there is one")
    if not host:
        return warn(f"{address} is not the address of a cluster", "set SWARM_RAY_ADDRESS to one like head-node:6379")
    try:
        socket.create_connection((host, port), CONNECT_LIMIT_S).close()
    except OSError as error:
        return warn(f"{host}:{port} does not answer: {error}", "start the cluster, or unset SWARM_RAY_ADDRESS")
    return ok(f"{host}:{port} answers")


def check_shared_memory() -> CheckFinding:
    """Check the shared memory, by which the trainer passes new weights to the samplers on the same host."""
    if not SHARED_MEMORY.is_dir() or not os.access(SHARED_MEMORY, os.W_OK):
        return warn(f"{SHARED_MEMORY} cannot be written", "mount a tmpfs there: the verl engine needs it")
    free = shutil.disk_usage(SHARED_MEMORY).free
    message = f"{free / 2**30:.1f} GiB free in {SHARED_MEMORY}"
    if free < ENOUGH_SHARED_MEMORY:
        return warn(
            f"{message}: the verl engine needs space for two copies of the weights, so a model may have at most "
            f"{free / 2**30 / 2:.1f} GiB",
            "enlarge it for larger models (docker: --shm-size)",
        )
    return ok(message)
