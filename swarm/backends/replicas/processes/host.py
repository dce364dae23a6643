"""The host process of one replica on a node of a Ray cluster, where it has an actor run the guard.

It is a Ray driver of its own: however it ends, Ray ends the actor, and the guard ends the rest.

Usage: python -m swarm.backends.replicas.processes.host, with a `ReplicaOrder` as JSON in SWARM_REPLICA_ORDER.
Standard output gets one line: our process id, and the replica's base URL. Output of the replica
goes to standard error. The exit status is the guard's, or 137 if the node or the actor is gone.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUntypedFunctionDecorator=false

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NoReturn

import ray
from pydantic import TypeAdapter
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.util import get_node_ip_address
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from swarm.backends.replicas.adapter import ReplicaOrder, load_adapter
from swarm.backends.replicas.processes.launcher import (
    ORDER_VARIABLE,
    REMOTE_GRACE_S,
    STOP_GRACE_S,
    check_address,
    complete_environment,
    free_port,
    guarded_command,
    own_directory,
)
from swarm.errors import EngineFailure, SwarmError
from swarm.processes.child import claim_stdout

LOOK_INTERVAL_S: Final = 0.5
PATIENCE_S: Final = 5.0
"""A cluster with free devices starts an actor sooner than this; afterwards the log names what is missing."""
NEXT_TRY_S: Final = 2.0
DEVICES: Final = "CUDA_VISIBLE_DEVICES"
KILLED: Final = 137


class ReplicaHost:
    """Actor with the guard and its command, on the node that Ray chose. `wait` runs beside the other methods."""

    def __init__(self) -> None:
        self._guard: subprocess.Popen[str] | None = None

    def start(self, order: ReplicaOrder) -> str:
        """Return the replica's base URL. Raise EngineFailure, JobInvalid."""
        address, directory = get_node_ip_address(), own_directory()
        port = free_port(address)
        try:
            self._guard = _start_guard(order, address, port, directory)
        except BaseException:
            # Without a guard, nothing else removes the directory.
            shutil.rmtree(directory, ignore_errors=True)
            raise
        host = f"[{address}]" if ":" in address else address
        return f"http://{host}:{port}"

    def wait(self) -> int:
        """Wait for the guard's end, and return its exit status."""
        assert self._guard is not None and self._guard.stdout is not None
        output = self._guard.stdout.read().split()
        return int(output[-1]) if output else KILLED

    def stop(self) -> None:
        """Make the guard end its command in order."""
        assert self._guard is not None and self._guard.stdin is not None
        self._guard.stdin.close()


def _start_guard(order: ReplicaOrder, address: str, port: int, directory: Path) -> subprocess.Popen[str]:
    """Return the guard, once its command runs. Raise EngineFailure, JobInvalid."""
    inherited, index, layout = dict(os.environ), 0, order.settings.layout
    if layout.colocated:
        # Ray has given these devices to the trainer, which sleeps while the sampler is awake.
        inherited.pop(DEVICES, None)
        index = order.index % (layout.replicas // layout.nodes)
    settings = replace(order.settings, layout=replace(layout, first_device=0))
    here, adapter = replace(order, settings=settings, index=index), load_adapter(settings.sampler)
    environment = complete_environment(adapter, here, inherited, directory)
    cores = sorted(os.sched_getaffinity(0))
    python, script, *words = guarded_command(adapter, here, port=port, cores=cores, host=address)
    # Ray kills the children of an actor with it: the guard must survive to end its own children.
    command = [python, script, "--detach", *words]
    try:
        guard = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    except OSError as error:
        raise EngineFailure(f"{python} cannot be run on {address}: {error.strerror}") from error
    assert guard.stdout is not None
    if not guard.stdout.readline().strip().isdigit():
        raise EngineFailure(f"the replica cannot be run on {address}: see the last lines of its log")
    return guard


class _Closed(Exception):
    """Signal that the server no longer wants a replica."""


def main() -> int:
    # Ray prints logs to standard output, which here belong on standard error.
    output = claim_stdout()
    order = TypeAdapter(ReplicaOrder).validate_json(os.environ.pop(ORDER_VARIABLE))
    closed = threading.Event()
    threading.Thread(target=_await_close, args=(closed,), daemon=True).start()
    try:
        assert order.ray_address is not None
        check_address(order.ray_address)
        ray.init(address=order.ray_address, log_to_driver=True)
        host, base_url = _start(order, closed)
        output.write(f"{os.getpid()} {base_url}\n")
        output.flush()
        return _follow(host, closed)
    except _Closed:
        return 0
    except RayTaskError as error:
        _fail(error.cause.message if isinstance(error.cause, SwarmError) else str(error))
    except RayActorError:
        sys.stderr.write("Error: the node of the replica is gone, or its actor was killed\n")
        return KILLED
    except (SwarmError, RayError, ConnectionError) as error:
        _fail(str(error))


def _await_close(closed: threading.Event) -> None:
    while os.read(0, 4096):
        pass
    closed.set()


def _start(order: ReplicaOrder, closed: threading.Event) -> tuple[Any, str]:
    """Return the actor, and the replica's base URL. Raise _Closed, and the errors of the actor."""
    while True:
        host = _place(order)
        try:
            return host, _result(host.start.remote(order), closed, _wanted(order))
        except RayActorError as error:
            # Ray still places actors on a lost node until it notices the loss.
            sys.stderr.write(f"the replica's actor died, another is started: {' '.join(str(error).split())[:400]}\n")
            closed.wait(NEXT_TRY_S)


def _place(order: ReplicaOrder) -> Any:
    """Return the actor, on a node with free devices now or later."""
    layout = order.settings.layout
    options: dict[str, Any] = {"num_cpus": 1, "max_concurrency": 2, "max_restarts": 0}
    if layout.colocated:
        node_id = _nodes_of_the_trainer(order)[order.index // (layout.replicas // layout.nodes)]
        options["num_cpus"] = 0
        options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node_id, soft=False)
    elif layout.device == "cuda":
        options["num_gpus"] = layout.tensor_parallel * layout.data_parallel
    return ray.remote(ReplicaHost).options(**options).remote()


def _nodes_of_the_trainer(order: ReplicaOrder) -> list[str]:
    """Return the nodes of the trainer. Raise EngineFailure if they cannot be told from others."""
    layout = order.settings.layout
    each = layout.replicas // layout.nodes * layout.tensor_parallel * layout.data_parallel
    nodes: list[dict[str, Any]] = ray.nodes()
    found = sorted(node["NodeID"] for node in nodes if node["Alive"] and node["Resources"].get("GPU", 0) >= each)
    if len(found) != layout.nodes:
        raise EngineFailure(
            f"sampler and trainer share the GPUs of {layout.nodes} nodes, and the cluster has {len(found)} with {each} "
            "GPUs: give this job a cluster of its own, or set actor_rollout_ref.hybrid_engine to false"
        )
    return found


def _wanted(order: ReplicaOrder) -> str:
    layout = order.settings.layout
    return f"{layout.tensor_parallel * layout.data_parallel} GPUs" if layout.device == "cuda" else "a CPU"


def _result(pending: Any, closed: threading.Event, wanted: str) -> Any:
    """Return the result of an actor call. Raise _Closed, and the errors of the call."""
    warn_at = time.monotonic() + PATIENCE_S
    while not closed.is_set():
        done, _ = ray.wait([pending], timeout=LOOK_INTERVAL_S)
        if done:
            return ray.get(pending)
        if time.monotonic() > warn_at:
            warn_at = float("inf")
            sys.stderr.write(f"Error: no node of the Ray cluster has {wanted} free so far; waiting\n")
            sys.stderr.flush()
    raise _Closed


def _follow(host: Any, closed: threading.Event) -> int:
    """Wait until the guard has ended, or is to end. Raise RayActorError if the actor is gone."""
    ended = host.wait.remote()
    while not closed.is_set():
        done, _ = ray.wait([ended], timeout=LOOK_INTERVAL_S)
        if done:
            return int(ray.get(ended))
    ray.get(host.stop.remote(), timeout=STOP_GRACE_S)
    ray.wait([ended], timeout=REMOTE_GRACE_S)
    return 0


def _fail(reason: str) -> NoReturn:
    sys.stderr.write(f"Error: {' '.join(reason.split())[:400]}\n")
    sys.exit(1)


if __name__ == "__main__":
    sys.exit(main())
