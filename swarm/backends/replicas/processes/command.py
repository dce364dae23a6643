"""The part of a replica's command line and environment that every kind of server has.

Place in the flow: launcher.py and host.py complete the adapter's command and environment here before they start a
process. These are plain functions, which know nothing of HTTP or weights.
"""

from __future__ import annotations

import getpass
import importlib.util
import os
import socket
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from swarm.backends.replicas.adapter import SamplerAdapter
from swarm.backends.replicas.layout import ReplicaOrder
from swarm.errors import JobInvalid

GUARD: Final = Path(__file__).parent / "guard.py"
SHARED: Final = "shared"
GRAMMAR_LIBRARY: Final = "llguidance"
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

    It contains the server's own library of grammars for the replica. Every version of the library accepts slightly
    different languages, and the trainer must find possible every token that the sampler drew.
    """
    directory = Path(tempfile.mkdtemp(prefix="swarm-replica-"))
    (directory / SHARED).mkdir()
    spec = importlib.util.find_spec(GRAMMAR_LIBRARY)
    for place in (spec and spec.submodule_search_locations) or ():
        (directory / SHARED / GRAMMAR_LIBRARY).symlink_to(place)
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
