"""The start of a replica's processes: beside the server, or on a node of a Ray cluster.

Place in the flow: replica.py asks for processes at every start, and receives the process to watch and the client to
call. This module does not know what a replica does afterwards.
"""

from __future__ import annotations

import os
import secrets
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter

from swarm.backends.replicas.client import ReplicaClient
from swarm.backends.replicas.layout import ReplicaOrder
from swarm.backends.replicas.processes.guarded_process import GuardedProcess, start_process
from swarm.backends.replicas.sampler_plan import ReplicaPlan
from swarm.backends.replicas.vllm.command import (
    LOOPBACK,
    SECRETS,
    STOP_GRACE_S,
    build_command,
    build_environment,
    free_port,
    own_directory,
)

ORDER_VARIABLE: Final = "SWARM_REPLICA_ORDER"
REMOTE_GRACE_S: Final = 2 * STOP_GRACE_S
"""The guard's own grace, and the time for the messages both ways."""
PLACING_SHARE: Final = 0.8
"""Share of the start time for finding a node: after it, too little time is left to load the model."""


@dataclass(frozen=True, slots=True)
class Launched:
    """Replica whose processes have been started. `node_id` is Ray's name of its node; None beside the server."""

    process: GuardedProcess
    client: ReplicaClient
    node_id: str | None = None


async def launch(plan: ReplicaPlan, index: int, seed: int, node_id: str | None) -> Launched:
    """Start replica `index`, on the node of its last start if the cluster has free devices there.

    Raise EngineFailure if it cannot run, EngineLost if no devices become free in time, and JobInvalid.
    """
    key = secrets.token_hex(16)
    if plan.ray_address is None:
        return await _beside_the_server(plan, index, seed, key)
    return await _on_a_node(plan, plan.ray_address, index, seed, key, node_id)


async def _beside_the_server(plan: ReplicaPlan, index: int, seed: int, key: str) -> Launched:
    port, directory = free_port(), own_directory()
    try:
        environment = build_environment(
            os.environ, plan.settings, index=index, key=key, threads=plan.limits.threads, directory=directory
        )
        cores = sorted(os.sched_getaffinity(0))
        command = build_command(
            plan.python, plan.settings, port=port, seed=seed, cores=cores, threads=plan.limits.threads
        )
        process = await start_process(command, environment, _log_of(plan, index), grace_s=STOP_GRACE_S)
    except BaseException:
        # Without a guard, nothing else removes the directory.
        shutil.rmtree(directory, ignore_errors=True)
        raise
    return Launched(process, ReplicaClient(f"http://{LOOPBACK}:{port}", key))


async def _on_a_node(
    plan: ReplicaPlan, ray_address: str, index: int, seed: int, key: str, node_id: str | None
) -> Launched:
    order = ReplicaOrder(
        ray_address, plan.python, plan.settings, index, seed, plan.limits.threads, key=key, node_id=node_id
    )
    # In the environment, because every user can read the command line of a process.
    told = TypeAdapter(ReplicaOrder).dump_json(order).decode()
    environment = {name: value for name, value in os.environ.items() if name not in SECRETS} | {ORDER_VARIABLE: told}
    process = await start_process(
        [sys.executable, "-m", "swarm.backends.replicas.processes.host"],
        environment,
        _log_of(plan, index),
        grace_s=REMOTE_GRACE_S,
        start_limit_s=PLACING_SHARE * plan.limits.boot_timeout_s,
    )
    base_url, placed_on = process.place
    return Launched(process, ReplicaClient(base_url, key), placed_on)


def _log_of(plan: ReplicaPlan, index: int) -> Path:
    return plan.log_directory.resolve() / f"vllm-{index}.log"
