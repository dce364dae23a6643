"""Checks of the installation: Python, packages, torch, the sandbox, and what the verl engine needs."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import resource
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from packaging.requirements import Requirement

from swarm.doctor.examination import CheckFinding, fail, ok, warn
from swarm.extras import DISTRIBUTION
from swarm.processes.child import python_module
from swarm.sandbox.cgroup import find_parent
from swarm.sandbox.seccomp import build_filter

OLDEST_PYTHON, NEWEST_PYTHON = (3, 11), (3, 12)
# Each running episode has one connection, and a server is built for thousands of episodes.
ENOUGH_OPEN_FILES = 4096
PROBE_LIMIT_S = 120.0
"""So long because the probe loads torch and runs the bundled model, which takes ten seconds on an idle machine."""

BWRAP_LIMIT_S = 10.0
SHARED_MEMORY = Path("/dev/shm")
ENOUGH_SHARED_MEMORY = 2 * 2**30
RAY_PORT = 6379
CONNECT_LIMIT_S = 3.0
VLLM_LIMIT_S = 8.0

_ASK_VERSION = "import importlib.metadata; print(importlib.metadata.version('vllm'))"


def check_python() -> CheckFinding:
    present = f"Python {sys.version.split()[0]} at {sys.executable}"
    if not OLDEST_PYTHON <= sys.version_info[:2] <= NEWEST_PYTHON:
        return fail(present, "make a virtual environment with Python 3.11 or 3.12")
    return ok(present)


def check_packages(extra: str, *, is_optional: bool) -> CheckFinding:
    """Check that the packages of an extra are installed in versions that fit."""
    try:
        declared = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return warn(
            "the package is not installed, so its requirements are not known", "in its folder, run: pip install -e ."
        )
    wanted = [Requirement(line) for line in declared]
    wanted = [item for item in wanted if item.marker is not None and item.marker.evaluate({"extra": extra})]
    missing, wrong = _compare(wanted)
    remedy = f'pip install "{DISTRIBUTION}[{extra}]"'
    if missing:
        message = f"not installed: {', '.join(missing)}"
        return warn(f"{message} (optional)", f"to use it: {remedy}") if is_optional else fail(message, remedy)
    if wrong:
        return fail(f"versions that do not fit: {', '.join(wrong)}", remedy)
    return ok(f"{len(wanted)} packages fit")


class TensorProbe:
    """The trial of torch and of the bundled model, made once for both checks.

    It runs in a process of its own, because a broken build of torch may hang or crash the process that imports it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._outcome: _ProbeOutcome | None = None

    def outcome(self) -> _ProbeOutcome:
        """Return the outcome of the process. The first call runs it, and calls meanwhile wait for the same run."""
        with self._lock:
            if self._outcome is None:
                self._outcome = _run_probe()
            return self._outcome


def check_tensors(probe: TensorProbe) -> CheckFinding:
    outcome = probe.outcome()
    cores = len(os.sched_getaffinity(0))
    if not outcome.found:
        return fail(
            f"torch does not load: {outcome.problem}", f'install it again: pip install "{DISTRIBUTION}[server]"'
        )
    found = outcome.found[0]
    message = f"torch {found['version']}, {cores} CPU core{'s' if cores > 1 else ''}"
    if found["gpus"]:
        return ok(f"{message}, {len(found['gpus'])} GPU: {', '.join(found['gpus'])}")
    if shutil.which("nvidia-smi"):
        return warn(
            f"{message}; a GPU driver is installed, but this build of torch finds no GPU",
            "to use the GPU, install a CUDA build of torch that fits the driver",
        )
    if cores < 2:
        return warn(f"{message}, no GPU", "use more cores: clients on this machine share the only one with the model")
    return ok(f"{message}, no GPU: the local engine runs on the CPU")


def check_bundled_model(probe: TensorProbe) -> CheckFinding:
    outcome = probe.outcome()
    if len(outcome.found) < 2:
        if outcome.found and outcome.is_late:
            return warn(f"did not run: {outcome.problem}, though torch loads", "check the load of this machine")
        return fail(f"the bundled model does not run: {outcome.problem}", f"install {DISTRIBUTION} again")
    found = outcome.found[1]
    return ok(f"nano: {found['parameters']:,} parameters, loaded and run in {found['seconds']:.1f} s")


def check_bubblewrap() -> CheckFinding:
    """Check bubblewrap, which the researcher needs to run code that a language model wrote."""
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        return warn(
            "not installed (only code written by a language model needs it)",
            "install the system package 'bubblewrap'",
        )
    command = [bwrap, "--unshare-all", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "true"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=BWRAP_LIMIT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return warn(f"does not work here: {error}", "allow unprivileged user namespaces")
    if done.returncode != 0:
        return warn(
            f"does not work here: {_last_line(done.stderr)}",
            "allow unprivileged user namespaces (on Ubuntu: an AppArmor profile for bwrap)",
        )
    return ok(f"isolates processes here; {_limits_in_force()}; {_filter_in_force()}")


def _limits_in_force() -> str:
    parent = find_parent()
    if parent is None:
        return "a watch limits memory and processes, because no cgroup of version 2 can be created here"
    return f"cgroups in {parent} and a watch limit memory and processes"


def _filter_in_force() -> str:
    if build_filter(platform.machine()):
        return "system calls are filtered"
    return f"system calls are not filtered, because there is no filter for {platform.machine()}"


def check_open_files() -> CheckFinding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= ENOUGH_OPEN_FILES:
        return ok(f"{'no limit' if soft == resource.RLIM_INFINITY else f'{soft:,} per process'}")
    highest = "" if hard == resource.RLIM_INFINITY else f" (up to {hard:,} without root)"
    return warn(
        f"{soft:,} per process, which also limits the number of connected clients",
        f"before `swarm start`, run: ulimit -n {ENOUGH_OPEN_FILES}{highest}",
    )


def _compare(wanted: Iterable[Requirement]) -> tuple[list[str], list[str]]:
    missing: list[str] = []
    wrong: list[str] = []
    for requirement in wanted:
        try:
            version = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            missing.append(requirement.name)
            continue
        if not requirement.specifier.contains(version, prereleases=True):
            wrong.append(f"{requirement.name} {version} (wanted {requirement.specifier})")
    return missing, wrong


@dataclass(frozen=True, slots=True)
class _ProbeOutcome:
    """The findings of the probe about torch and then about the model, and the `problem` that ended it early."""

    found: Sequence[dict[str, Any]]
    problem: str = ""
    is_late: bool = False


def _run_probe() -> _ProbeOutcome:
    command = python_module("swarm.backends.local.probe")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_LIMIT_S)
    except subprocess.TimeoutExpired as error:
        # subprocess gives bytes here, although it was called with text=True.
        output = error.stdout.decode(errors="replace") if isinstance(error.stdout, bytes) else ""
        return _ProbeOutcome(_parsed(output), f"no answer within {PROBE_LIMIT_S:.0f} s", is_late=True)
    except OSError as error:
        return _ProbeOutcome((), str(error))
    problem = "" if done.returncode == 0 else _last_line(done.stderr) or f"the process ended with {done.returncode}"
    return _ProbeOutcome(_parsed(done.stdout), problem)


def _parsed(output: str) -> list[dict[str, Any]]:
    """Return the JSON lines of the probe, without lines that libraries print while they load."""
    return [json.loads(line) for line in output.splitlines() if line.startswith("{") and line.endswith("}")]


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else ""


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
