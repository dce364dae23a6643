"""The processes of a replica: their command, and their start beside the server or on a node of a Ray cluster."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import importlib.util
import os
import secrets
import shutil
import signal
import socket
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter

from swarm.backends.replicas.adapter import ReplicaOrder, ReplicaPlan, SamplerAdapter, SamplerServer
from swarm.errors import EngineFailure, JobInvalid
from swarm.processes.child import python_module, tail
from swarm.sampler import EngineLost

CONNECT_TIMEOUT_S: Final = 10.0


def check_address(address: str) -> None:
    """Raise EngineFailure unless a process listens at the address."""
    if address == "auto":
        return
    host, _colon, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal():
        raise EngineFailure(f"ray_address {address}: give the cluster's own address, host:port, not a client's")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_TIMEOUT_S).close()
    except OSError as error:
        raise EngineFailure(f"a Ray cluster at {address} cannot be reached: {error}") from error


GUARD: Final = Path(__file__).parent / "guard.py"
SHARED: Final = "shared"
GRAMMAR_LIBRARY: Final = "llguidance"
TOKEN_TEXTS: Final = Path(__file__).parents[2] / "token_texts.py"
LOOPBACK: Final = "127.0.0.1"
STOP_GRACE_S: Final = 5.0
"""A sampler has nothing to save; it frees devices and files."""
SECRETS: Final = ("SWARM_TOKEN", "SWARM_ROLLOUT_TOKEN", "SWARM_OBSERVER_TOKEN")


def guarded_command(
    adapter: SamplerAdapter, order: ReplicaOrder, *, port: int, cores: Sequence[int], host: str = LOOPBACK
) -> list[str]:
    """Return the guard's command line with the server as its child. Raise JobInvalid for a flag that is not the job's.

    `cores` are the cores that the caller itself may use.
    """
    guard = [str(order.python), str(GUARD), str(STOP_GRACE_S), _cores_of(order, cores)]
    return [*guard, *adapter.command(order, host=host, port=port)]


def complete_environment(
    adapter: SamplerAdapter, order: ReplicaOrder, inherited: Mapping[str, str], directory: Path
) -> dict[str, str]:
    """Return the environment of a replica. `directory` comes from `own_directory`.

    Raise JobInvalid if the server sees too few GPUs for the layout.
    """
    environment = {name: value for name, value in inherited.items() if name not in SECRETS}
    environment |= {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(directory / SHARED), inherited.get("PYTHONPATH")])),
        "TMPDIR": str(directory),
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": str(order.threads),
        "NO_COLOR": "1",
    }
    # Compiled code serves more than one run, so it stays in torch's default place.
    environment.setdefault(
        "TORCHINDUCTOR_CACHE_DIR", str(Path(tempfile.gettempdir()) / f"torchinductor_{getpass.getuser()}")
    )
    if order.settings.layout.device == "cuda":
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(_devices(inherited, order))
    return adapter.environment(order, environment)


def own_directory() -> Path:
    """Return a new directory for the temporary files of one run, which the guard removes.

    It contains the server's own library of grammars, and the module that corrects it, for the replica. Every version
    of the library accepts slightly different languages, and the trainer must find possible every token that the sampler
    drew.
    """
    directory = Path(tempfile.mkdtemp(prefix="swarm-replica-"))
    (directory / SHARED).mkdir()
    spec = importlib.util.find_spec(GRAMMAR_LIBRARY)
    for place in (spec and spec.submodule_search_locations) or ():
        (directory / SHARED / GRAMMAR_LIBRARY).symlink_to(place)
    (directory / SHARED / TOKEN_TEXTS.name).symlink_to(TOKEN_TEXTS)
    return directory


def free_port(host: str = LOOPBACK) -> int:
    """Return a port that is free now: a replica that finds it taken is started again with another."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def _cores_of(order: ReplicaOrder, cores: Sequence[int]) -> str:
    """Return the cores of a replica on a CPU.

    The processes of a sampler wait for one another by spinning. On few cores, a server that shares all of them would
    stop for seconds. One core is therefore left to the server, unless the model is to be computed on all of them.
    """
    if order.settings.layout.device != "cpu" or len(cores) < 2 or order.threads >= len(cores):
        return "all"
    return ",".join(str(core) for core in sorted(cores)[1:])


def _devices(inherited: Mapping[str, str], order: ReplicaOrder) -> list[str]:
    layout = order.settings.layout
    each = layout.tensor_parallel * layout.data_parallel
    first = layout.first_device + order.index * each
    wanted = [str(number) for number in range(first, first + each)]
    visible = inherited.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return wanted
    names = [name.strip() for name in visible.split(",") if name.strip()]
    if first + each > len(names):
        raise JobInvalid(
            f"the sampler needs GPUs {wanted[0]} to {wanted[-1]} of those in CUDA_VISIBLE_DEVICES, which names "
            f"{len(names)}: lower actor_rollout_ref.rollout.n_gpus_per_node"
        )
    return names[first : first + each]


GUARD_START_S: Final = 30.0
"""The guard is a small script, but a busy machine may be slow to read its interpreter."""
END_MARGIN_S: Final = 20.0
"""Extra time for the guard beyond the grace of its command."""
LOG_TAIL_BYTES: Final = 16_384
LONGEST_REASON: Final = 400
ERROR_MARKS: Final = ("Error", "error:", "Exception", "Killed")


class GuardedProcess:
    """One run of one command. Used from one asyncio event loop."""

    def __init__(
        self, guard: Process, first_line: Sequence[str], log_path: Path, log_start: int, grace_s: float
    ) -> None:
        """Watch a guard whose command runs.

        `first_line` is the guard's first line: the process id of the group leader, and on a cluster its base URL.
        """
        self.pid = int(first_line[0])
        self.base_url = first_line[-1]
        self.exited = asyncio.Event()
        self.exit_status: int | None = None
        self._guard = guard
        self._log_path = log_path
        self._log_start = log_start
        self._grace_s = grace_s
        self._reason: str | None = None
        self._watch = asyncio.create_task(self._wait())

    @property
    def reason(self) -> str:
        """Reason of the end, in one line."""
        return self._reason or "it is running"

    async def stop(self) -> None:
        """End the process in order, and wait for its end. Idempotent."""
        self._reason = self._reason or "it was stopped"
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        try:
            async with asyncio.timeout(self._grace_s + END_MARGIN_S):
                await asyncio.shield(self._watch)
        except TimeoutError:
            self.kill("it did not end in time")
            await self._watch

    def kill(self, reason: str) -> None:
        """End the process now. `exited` is set once it has ended."""
        self._reason = self._reason or reason
        # The guard notices that its command has ended, and ends the rest of the group.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    async def _wait(self) -> None:
        status = await self._guard.wait()
        if status < 0:
            # If the guard was killed, the group still runs.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        self.exit_status = status
        self._reason = self._reason or self._describe(status)
        self.exited.set()

    def _describe(self, status: int) -> str:
        killed_by = -status if status < 0 else status - 128 if status > 128 else 0
        how = f"was killed by {signal.Signals(killed_by).name}" if killed_by else f"ended with status {status}"
        output = last_words(self._log_path, self._log_start)
        return how + (f": {output} ({self._log_path})" if output else f" (see {self._log_path})")


async def start_process(
    command: Sequence[str],
    environment: Mapping[str, str],
    log_path: Path,
    *,
    grace_s: float,
    start_limit_s: float = GUARD_START_S,
    remedy: str = "",
) -> GuardedProcess:
    """Start a command, and return once it runs.

    Raise EngineFailure with the remedy if it cannot run, and EngineLost if the guard does not answer.
    """
    try:
        log_path.parent.mkdir(parents=True, exist_ok=True)
        with log_path.open("ab") as log:
            log_start = log.tell()
            guard = await asyncio.create_subprocess_exec(
                *command,
                stdin=PIPE,
                stdout=PIPE,
                stderr=log,
                env=dict(environment),
                cwd=log_path.parent,
                # A Ctrl-C in the terminal is meant for the server, which then ends its replicas in order.
                start_new_session=True,
            )
    except OSError as error:
        raise EngineFailure(f"{command[0]} cannot be run: {error.strerror}{remedy}") from error
    assert guard.stdout is not None
    try:
        async with asyncio.timeout(start_limit_s):
            line = await guard.stdout.readline()
    except TimeoutError:
        await _end(guard, grace_s)
        output = last_words(log_path, log_start)
        raise EngineLost(f"a replica was not started in time{f': {output}' if output else ''}") from None
    except BaseException:
        await _end(guard, grace_s)
        raise
    words = line.decode(errors="replace").split()
    if not words or not words[0].isdigit():
        status = await guard.wait()
        reason = f"a replica cannot be run: {last_words(log_path, log_start) or 'its guard ended'}"
        raise EngineLost(reason) if status < 0 or status > 128 else EngineFailure(reason)
    return GuardedProcess(guard, words, log_path, log_start, grace_s)


async def _end(guard: Process, grace_s: float) -> None:
    """End a guard and everything that it has started."""
    assert guard.stdin is not None
    guard.stdin.close()
    try:
        async with asyncio.timeout(grace_s + END_MARGIN_S):
            await guard.wait()
    except TimeoutError:
        guard.kill()
        await guard.wait()


def last_words(log_path: Path, start: int) -> str:
    """Return the last error in the log after byte `start`, or else its last line."""
    written = log_path.stat().st_size - start if log_path.is_file() else 0
    lines = [line.strip() for line in tail(log_path, min(written, LOG_TAIL_BYTES)).splitlines() if line.strip()]
    telling = [line for line in lines if any(mark in line for mark in ERROR_MARKS)]
    return (telling or lines or [""])[-1][:LONGEST_REASON]


ORDER_VARIABLE: Final = "SWARM_REPLICA_ORDER"
REMOTE_GRACE_S: Final = 2 * STOP_GRACE_S
"""The guard's own grace, and the time for the messages both ways."""
PLACING_SHARE: Final = 0.8
"""Share of the start time for finding a node: after it, too little time is left to load the model."""


async def launch(plan: ReplicaPlan, index: int, seed: int) -> tuple[GuardedProcess, SamplerServer]:
    """Start the processes of replica `index`.

    Raise EngineFailure if it cannot run, EngineLost if no devices become free in time, and JobInvalid.
    """
    order = ReplicaOrder(
        plan.ray_address,
        plan.python,
        plan.settings,
        index,
        seed,
        plan.limits.threads,
        key=secrets.token_hex(16),
    )
    return await (_beside_the_server(plan, order) if plan.ray_address is None else _on_a_node(plan, order))


async def _beside_the_server(plan: ReplicaPlan, order: ReplicaOrder) -> tuple[GuardedProcess, SamplerServer]:
    port, directory = free_port(), own_directory()
    try:
        environment = complete_environment(plan.adapter, order, os.environ, directory)
        command = guarded_command(plan.adapter, order, port=port, cores=sorted(os.sched_getaffinity(0)))
        remedy = f": set SWARM_{plan.settings.sampler.upper()}_PYTHON"
        process = await start_process(command, environment, _log_of(plan, order), grace_s=STOP_GRACE_S, remedy=remedy)
    except BaseException:
        # Without a guard, nothing else removes the directory.
        shutil.rmtree(directory, ignore_errors=True)
        raise
    return process, plan.adapter.connect(f"http://{LOOPBACK}:{port}", order, plan.limits)


async def _on_a_node(plan: ReplicaPlan, order: ReplicaOrder) -> tuple[GuardedProcess, SamplerServer]:
    # In the environment, because every user can read the command line of a process.
    encoded = TypeAdapter(ReplicaOrder).dump_json(order).decode()
    environment = {name: value for name, value in os.environ.items() if name not in SECRETS} | {ORDER_VARIABLE: encoded}
    process = await start_process(
        python_module("swarm.backends.replicas.processes.host"),
        environment,
        _log_of(plan, order),
        grace_s=REMOTE_GRACE_S,
        start_limit_s=PLACING_SHARE * plan.limits.boot_timeout_s,
    )
    return process, plan.adapter.connect(process.base_url, order, plan.limits)


def _log_of(plan: ReplicaPlan, order: ReplicaOrder) -> Path:
    return plan.log_directory.resolve() / f"{plan.settings.sampler}-{order.index}.log"
