"""The Ray cluster of the training processes: an existing one, or a private one that ends with the driver."""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportPrivateUsage=false

from __future__ import annotations

import hashlib
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import ray
from ray._private import state as ray_state
from ray._private import worker as ray_worker

from swarm.backends.replicas.processes.launcher import check_address
from swarm.backends.verl.driver.reaper import end_others
from swarm.errors import EngineFailure

LOOPBACK: Final = "127.0.0.2"
"""Not 127.0.0.1, which Ray replaces by the address of an interface that other hosts can reach."""
LONGEST_DIRECTORY: Final = 40
"""Characters. Ray puts sockets some 65 characters below its directory, and socket paths end at 107."""
OBJECT_STORE_BYTES: Final = 2**28
"""Object store of a cluster on the CPU. It carries only code; rows travel through the TransferQueue."""
CPUS_PER_SLOT: Final = 4
"""Logical CPUs. verl reserves 3 per training process, and its queue a few more."""
CPUS_BESIDE: Final = 8
WATCH_INTERVAL_S: Final = 0.5
QUEUE_ACTOR: Final = "TransferQueueController"
QUEUE_NAMESPACE: Final = "transfer_queue"
QUEUE_PATIENCE_S: Final = 30.0
"""How long Ray may take to notice that the driver of an earlier run has died."""


class RayCluster:
    """Connection to a cluster from construction to `end`. One per process, made by its main thread."""

    def __init__(
        self, address: str | None, home: Path, *, slots: int, on_gpu: bool, environment: Mapping[str, str]
    ) -> None:
        """Connect to `address`, or start a private cluster with this many slots if `address` is None.

        `environment` is added to the environment of every process. Raise EngineFailure with the reason.
        """
        self._directory = None if address is not None else _empty(own_directory(home))
        self._expected = threading.Event()
        if address is not None:
            check_address(address)
        runtime = {"env_vars": dict(environment)}
        try:
            if self._directory is None:
                ray.init(address=address, runtime_env=runtime, log_to_driver=True)
            else:
                _start(self._directory, runtime, slots=slots, on_gpu=on_gpu)
        except Exception as error:
            # Ray raises errors of many types here; the driver reports them as data.
            where = f"at {address} cannot be reached" if address else "cannot be started"
            raise EngineFailure(f"a Ray cluster {where}: {' '.join(str(error).split())[:300]}") from error
        if address is not None:
            _await_free_queue()

    def watch(self, lost: Callable[[str], None]) -> None:
        """Call `lost` once, with one line, when one of our processes has died unexpectedly."""
        threading.Thread(target=self._watch, args=(lost,), daemon=True).start()

    def end(self) -> None:
        """Leave the cluster, and end a private one. This process cannot connect again. Idempotent."""
        self._expected.set()
        if self._directory is None:
            ray.shutdown()
            return
        # An orderly end takes seconds, and there is nothing to save.
        end_others()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _watch(self, lost: Callable[[str], None]) -> None:
        # Ray's own health check needs a quarter of a minute to notice that a daemon does not answer.
        job = ray.get_runtime_context().get_job_id()
        while not self._expected.wait(WATCH_INTERVAL_S):
            node: Any = ray_worker._global_node
            if self._directory is not None and (daemons := node.dead_processes()):
                lost(f"the Ray cluster is gone: its {daemons[0][0]} died")
                return
            try:
                found: dict[str, Any] = ray_state.actors()
            except Exception as error:  # noqa: BLE001  whatever Ray raises is the reason that is reported
                if not self._expected.is_set():
                    lost(f"the Ray cluster is gone: {' '.join(str(error).split())[:200]}")
                return
            dead = [actor for actor in found.values() if actor["JobID"] == job and actor["State"] == "DEAD"]
            if dead and not self._expected.is_set():
                actor = dead[0]
                lost(f"the training process {actor['ActorClassName']} (pid {actor['Pid']}) died")
                return


def own_directory(home: Path) -> Path:
    """Return Ray's directory for sockets and logs: below `home`, or below the system's if that is too long."""
    directory = home.resolve() / "ray"
    if len(str(directory)) > LONGEST_DIRECTORY:
        digest = hashlib.sha256(str(home.resolve()).encode()).hexdigest()[:12]
        directory = Path(tempfile.gettempdir()) / f"swarm-ray-{digest}"
    return directory


def _empty(directory: Path) -> Path:
    """Remove the files that a killed run left in the directory, and return it."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True, mode=0o700)
    return directory


def _start(directory: Path, runtime: dict[str, Any], *, slots: int, on_gpu: bool) -> None:
    ray.init(
        address="local",
        num_cpus=CPUS_PER_SLOT * slots + CPUS_BESIDE,
        num_gpus=slots,
        object_store_memory=None if on_gpu else OBJECT_STORE_BYTES,
        include_dashboard=False,
        log_to_driver=True,
        runtime_env=runtime,
        _node_ip_address=LOOPBACK,
        _temp_dir=str(directory),
    )


def _await_free_queue() -> None:
    """Wait until the cluster has no TransferQueue, because it can have only one.

    The queue of a driver that just died disappears by itself. Raise EngineFailure if it stays.
    """
    give_up_at = time.monotonic() + QUEUE_PATIENCE_S
    while True:
        try:
            ray.get_actor(QUEUE_ACTOR, namespace=QUEUE_NAMESPACE)
        except ValueError:
            return
        if time.monotonic() > give_up_at:
            raise EngineFailure("this Ray cluster runs the TransferQueue of another job: one verl run per cluster")
        time.sleep(WATCH_INTERVAL_S)
