"""The start of a replica's processes: beside the server, or on a node of a Ray cluster.

Place in the flow: replica.py asks for processes at every start, and receives the process to watch and the server to
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

from swarm.backends.replicas.adapter import SamplerServer
from swarm.backends.replicas.layout import ReplicaOrder
from swarm.backends.replicas.plan import ReplicaPlan
from swarm.backends.replicas.processes.command import (
    LOOPBACK,
    SECRETS,
    STOP_GRACE_S,
    complete_environment,
    free_port,
    guarded_command,
    own_directory,
)
from swarm.backends.replicas.processes.guarded_process import GuardedProcess, start_process

ORDER_VARIABLE: Final = "SWARM_REPLICA_ORDER"
REMOTE_GRACE_S: Final = 2 * STOP_GRACE_S
"""The guard's own grace, and the time for the messages both ways."""
PLACING_SHARE: Final = 0.8
"""Share of the start time for finding a node: after it, too little time is left to load the model."""


@dataclass(frozen=True, slots=True)
class Launched:
    """Replica whose processes have been started. `node_id` is Ray's name of its node; None beside the server."""

    process: GuardedProcess
    server: SamplerServer
    node_id: str | None = None


async def launch(plan: ReplicaPlan, index: int, seed: int, node_id: str | None) -> Launched:
    """Start replica `index`, on the node of its last start if the cluster has free devices there.

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
        node_id=node_id,
    )
    return await (_beside_the_server(plan, order) if plan.ray_address is None else _on_a_node(plan, order))


async def _beside_the_server(plan: ReplicaPlan, order: ReplicaOrder) -> Launched:
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
    return Launched(process, plan.adapter.connect(f"http://{LOOPBACK}:{port}", order, plan.limits))


async def _on_a_node(plan: ReplicaPlan, order: ReplicaOrder) -> Launched:
    # In the environment, because every user can read the command line of a process.
    encoded = TypeAdapter(ReplicaOrder).dump_json(order).decode()
    environment = {name: value for name, value in os.environ.items() if name not in SECRETS} | {ORDER_VARIABLE: encoded}
    process = await start_process(
        [sys.executable, "-m", "swarm.backends.replicas.processes.host"],
        environment,
        _log_of(plan, order),
        grace_s=REMOTE_GRACE_S,
        start_limit_s=PLACING_SHARE * plan.limits.boot_timeout_s,
    )
    base_url, placed_on = process.place
    return Launched(process, plan.adapter.connect(base_url, order, plan.limits), placed_on)


def _log_of(plan: ReplicaPlan, order: ReplicaOrder) -> Path:
    return plan.log_directory.resolve() / f"{plan.settings.sampler}-{order.index}.log"
