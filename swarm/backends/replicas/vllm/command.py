"""The command line and the environment of one vLLM replica.

Place in the flow: replica.py asks for both before it starts a process. These are plain functions over settings, which
know nothing of processes, HTTP or weights.
"""

from __future__ import annotations

import getpass
import importlib.util
import json
import os
import socket
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

from swarm.backends.replicas.layout import SamplerSettings
from swarm.errors import JobInvalid

INSIDE: Final = Path(__file__).parent / "inside_vllm"
"""Modules for the interpreter that has vLLM."""
GUARD: Final = Path(__file__).parents[1] / "processes" / "guard.py"
SHARED: Final = "shared"
GRAMMAR_LIBRARY: Final = "llguidance"
LOOPBACK: Final = "127.0.0.1"
SERVED_NAME: Final = "policy"
MOST_TOP_LOGPROBS: Final = 20
STOP_GRACE_S: Final = 5.0
"""vLLM has nothing to save; it frees devices and files."""
KEY_VARIABLE: Final = "VLLM_API_KEY"
OWN_FLAGS: Final = frozenset(
    {
        "api_key", "data_parallel_size", "device", "dtype", "enable_sleep_mode", "generation_config", "host",
        "logprobs_mode", "max_model_len", "max_num_seqs", "middleware", "model", "port", "root_path", "seed",
        "served_model_name", "ssl_certfile", "ssl_keyfile", "stream_interval", "structured_outputs_config",
        "tensor_parallel_size", "tokenizer", "uds", "weight_transfer_config", "worker_extension_cls",
    }
)  # fmt: skip
"""Flags that the sampler relies on, or for which a job has another setting. If `stream_interval` delayed tokens past a
weight change, they would be recorded with the wrong version."""
CPU_DEFAULTS: Final = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
"""One GiB of cache, and threads that the operating system may move: the cores are shared with the trainer."""
EAGER_ON_CPU: Final = {"TORCHDYNAMO_DISABLE": "1"}
"""Without a compiled model, compiling a few functions of the sampler would delay the first request by the time that it
takes to start."""
SECRETS: Final = ("SWARM_TOKEN", "SWARM_ROLLOUT_TOKEN", "SWARM_OBSERVER_TOKEN")


def build_command(
    python: Path,
    settings: SamplerSettings,
    *,
    port: int,
    seed: int,
    cores: Sequence[int],
    threads: int = 1,
    host: str = LOOPBACK,
) -> list[str]:
    """Return the guard's command line with vLLM as its child. Raise JobInvalid for a flag that a job must not set.

    `cores` are the cores that the caller itself may use; `threads` is the number of threads that compute the model.
    """
    layout = settings.layout
    options: dict[str, Any] = {
        "host": host,
        "port": port,
        "served_model_name": SERVED_NAME,
        "dtype": settings.dtype,
        "max_num_seqs": settings.max_num_seqs,
        "max_model_len": settings.max_model_len,
        "seed": seed,
        "tensor_parallel_size": layout.tensor_parallel,
        # vLLM's own sampling defaults, not those of the model: each request carries its parameters.
        "generation_config": "vllm",
        "logprobs_mode": "processed_logprobs",
        "max_logprobs": MOST_TOP_LOGPROBS,
        # The grammars of requests are written for this backend, as for the local sampler.
        "structured_outputs_config": {"backend": "guidance"},
        "weight_transfer_config": {"backend": settings.transport},
        "worker_extension_cls": "swarm_weights.Extension",
        "middleware": "swarm_access.RequireKey",
        "disable_uvicorn_access_log": True,
    }
    if layout.data_parallel > 1:
        options["data_parallel_size"] = layout.data_parallel
    if layout.colocated:
        options["enable_sleep_mode"] = True
    options |= _checked(settings)
    vllm = [str(python), "-m", "vllm.entrypoints.cli.main", "serve", str(settings.model_directory)]
    guard = [str(python), str(GUARD), str(STOP_GRACE_S), _cores_of(settings, cores, threads)]
    return [*guard, *vllm, *_as_arguments(options)]


def build_environment(
    inherited: Mapping[str, str], settings: SamplerSettings, *, index: int, key: str, threads: int, directory: Path
) -> dict[str, str]:
    """Return the environment of the replica with this number. `directory` comes from `own_directory`.

    Raise JobInvalid if the server sees too few GPUs for the layout.
    """
    environment = {name: value for name, value in inherited.items() if name not in SECRETS}
    environment |= {
        "PYTHONPATH": os.pathsep.join(
            filter(None, [str(INSIDE), str(directory / SHARED), inherited.get("PYTHONPATH")])
        ),
        "TMPDIR": str(directory),
        KEY_VARIABLE: key,
        # This enables the routes that pause, update and put to sleep.
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": str(threads),
        "NO_COLOR": "1",
    }
    if allowed := inherited.get("VLLM_PLUGINS"):
        environment["VLLM_PLUGINS"] = f"{allowed},swarm_grammars"
    # Compiled code serves more than one run, so it stays in torch's default place.
    environment.setdefault(
        "TORCHINDUCTOR_CACHE_DIR", str(Path(tempfile.gettempdir()) / f"torchinductor_{getpass.getuser()}")
    )
    if settings.layout.device == "cpu":
        eager = EAGER_ON_CPU if settings.flags.get("enforce_eager") else {}
        return {**CPU_DEFAULTS, **eager, **environment}
    return environment | {"CUDA_VISIBLE_DEVICES": ",".join(_devices(inherited, settings, index))}


def own_directory() -> Path:
    """Return a new directory for the temporary files of one run, which the guard removes.

    It contains the server's own library of grammars for the replica. Every version of the library accepts slightly
    different languages, and the trainer must find possible every token that the sampler drew.
    """
    directory = Path(tempfile.mkdtemp(prefix="swarm-vllm-"))
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


def _checked(settings: SamplerSettings) -> dict[str, Any]:
    chosen = {name.replace("-", "_"): value for name, value in settings.flags.items()}
    # verl has its own setting for this, which must agree with the layout.
    if chosen.get("enable_sleep_mode") is settings.layout.colocated:
        del chosen["enable_sleep_mode"]
    taken = sorted(OWN_FLAGS & chosen.keys())
    if taken:
        raise JobInvalid(
            f"the option {taken[0]} of vLLM is set by the engine: leave it out",
            param=f"{settings.flags_setting}.{taken[0]}",
        )
    return chosen


def _as_arguments(options: Mapping[str, Any]) -> list[str]:
    arguments: list[str] = []
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        match value:
            case None:
                continue
            case True:
                arguments.append(flag)
            case False:
                arguments.append(f"--no-{name.replace('_', '-')}")
            case Mapping():
                arguments += [flag, json.dumps(value)]
            case str() | int() | float():
                arguments += [flag, str(value)]
            case Sequence():
                arguments += [flag, *(str(each) for each in cast("Sequence[object]", value))]
            case _:
                raise JobInvalid(f"the option {name} of vLLM cannot be {value!r}")
    return arguments


def _cores_of(settings: SamplerSettings, cores: Sequence[int], threads: int) -> str:
    """Return the cores of a replica on a CPU.

    vLLM's processes wait for one another by spinning. On few cores, a server that shares all of them would stop for
    seconds. One core is therefore left to the server, unless the model is to be computed on all of them.
    """
    if settings.layout.device != "cpu" or len(cores) < 2 or threads >= len(cores):
        return "all"
    return ",".join(str(core) for core in sorted(cores)[1:])


def _devices(inherited: Mapping[str, str], settings: SamplerSettings, index: int) -> list[str]:
    layout = settings.layout
    each = layout.tensor_parallel * layout.data_parallel
    first = layout.first_device + index * each
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
