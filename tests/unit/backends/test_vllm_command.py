"""vLLM's command line and environment, as they follow from a job's settings."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from swarm.backends.replicas.adapter import ReplicaOrder, SamplerLayout, SamplerSettings
from swarm.backends.replicas.processes.launcher import complete_environment, guarded_command, own_directory
from swarm.backends.replicas.vllm.adapter import VllmAdapter
from swarm.errors import JobInvalid

SETTINGS = SamplerSettings(Path("/models/m"), SamplerLayout(), "bfloat16", max_num_seqs=8, sampler="vllm")


def order(settings: SamplerSettings, *, index: int = 0, threads: int = 1) -> ReplicaOrder:
    return ReplicaOrder(None, Path("/venv/bin/python"), settings, index, seed=5, threads=threads, key="secret")


def command(settings: SamplerSettings, *cores: int, threads: int = 1) -> list[str]:
    return guarded_command(VllmAdapter(), order(settings, threads=threads), port=1234, cores=cores)


def arguments(settings: SamplerSettings) -> dict[str, str | bool]:
    """Options by name; True where no value follows."""
    words = command(settings, 0, 1, 2)
    found: dict[str, str | bool] = {}
    for word, following in zip(words, [*words[1:], "--"], strict=True):
        if word.startswith("--"):
            found[word[2:]] = True if following.startswith("--") else following
    return found


def environment(settings: SamplerSettings, index: int = 0, **inherited: str) -> dict[str, str]:
    return complete_environment(VllmAdapter(), order(settings, index=index, threads=2), inherited, Path("/tmp/own"))


def test_command_runs_vllm_under_the_guard_with_what_the_engine_relies_on() -> None:
    words = command(SETTINGS, 0, 1, 2)
    assert words[0] == "/venv/bin/python"
    assert words[1].endswith("guard.py")
    assert words[4:9] == ["/venv/bin/python", "-m", "vllm.entrypoints.cli.main", "serve", "/models/m"]
    options = arguments(SETTINGS)
    assert (options["host"], options["port"], options["seed"]) == ("127.0.0.1", "1234", "5")
    assert options["logprobs-mode"] == "processed_logprobs"
    assert options["generation-config"] == "vllm"
    assert json.loads(str(options["weight-transfer-config"])) == {"backend": "shm_file"}
    assert "max-model-len" not in options
    assert "data-parallel-size" not in options
    assert "secret" not in " ".join(words)


def test_one_core_is_left_to_the_server_on_a_cpu() -> None:
    def cores(settings: SamplerSettings, *present: int, threads: int = 1) -> str:
        return command(settings, *present, threads=threads)[3]

    assert cores(SETTINGS, 4, 2, 7) == "4,7"
    assert cores(SETTINGS, 0) == "all"
    assert cores(SETTINGS, 0, 1, threads=2) == "all"
    assert cores(replace(SETTINGS, layout=SamplerLayout(device="cuda")), 0, 1, 2) == "all"


def test_layout_transport_and_flags_reach_the_command() -> None:
    settings = replace(
        SETTINGS,
        layout=SamplerLayout(tensor_parallel=2, data_parallel=4, colocated=True, device="cuda"),
        transport="nccl",
        max_model_len=512,
        flags={
            "enforce_eager": True, "enable_prefix_caching": False, "gpu_memory_utilization": 0.5,
            "compilation_config": {"mode": 3}, "lora_modules": ["a", "b"], "quantization": None,
            "enable_sleep_mode": True,
        },
    )  # fmt: skip
    options = arguments(settings)
    assert (options["tensor-parallel-size"], options["data-parallel-size"]) == ("2", "4")
    assert options["enable-sleep-mode"] is True
    assert options["enforce-eager"] is True
    assert options["no-enable-prefix-caching"] is True
    assert options["gpu-memory-utilization"] == "0.5"
    assert json.loads(str(options["compilation-config"])) == {"mode": 3}
    assert options["max-model-len"] == "512"
    assert json.loads(str(options["weight-transfer-config"])) == {"backend": "nccl"}
    assert "quantization" not in options


@pytest.mark.parametrize("flags", [{"logprobs_mode": "raw_logprobs"}, {"api-key": "x"}, {"enable_sleep_mode": True}])
def test_option_that_is_not_the_jobs_is_refused_by_name(flags: dict[str, Any]) -> None:
    with pytest.raises(JobInvalid, match=next(iter(flags)).replace("-", "_")) as refused:
        arguments(replace(SETTINGS, flags=flags))
    assert refused.value.param is not None
    assert refused.value.param.startswith("sampler_options.")


def test_environment_keeps_the_key_and_the_servers_secrets_apart() -> None:
    found = environment(SETTINGS, SWARM_TOKEN="t" * 16, PYTHONPATH="/mine", HOME="/root")
    assert "SWARM_TOKEN" not in found
    assert found["VLLM_API_KEY"] == "secret"
    assert found["PYTHONPATH"].endswith(":/mine")
    assert found["HF_HUB_OFFLINE"] == found["VLLM_NO_USAGE_STATS"] == found["VLLM_SERVER_DEV_MODE"] == "1"
    assert found["HOME"] == "/root"


def test_cpu_replicas_have_a_small_cache_and_free_threads_unless_told_otherwise() -> None:
    found = environment(SETTINGS, VLLM_CPU_KVCACHE_SPACE="4")
    assert found["VLLM_CPU_KVCACHE_SPACE"] == "4"
    assert found["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert found["OMP_NUM_THREADS"] == "2"
    assert "TORCHDYNAMO_DISABLE" not in found
    assert environment(replace(SETTINGS, flags={"enforce_eager": True}))["TORCHDYNAMO_DISABLE"] == "1"
    assert "CUDA_VISIBLE_DEVICES" not in found


def test_each_replica_sees_its_own_gpus() -> None:
    layout = SamplerLayout(replicas=3, tensor_parallel=2, device="cuda", first_device=2)
    settings = replace(SETTINGS, layout=layout)
    assert environment(settings, 0)["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert environment(settings, 2)["CUDA_VISIBLE_DEVICES"] == "6,7"
    assert environment(settings, 1, CUDA_VISIBLE_DEVICES="8,9,a,b,c,d")["CUDA_VISIBLE_DEVICES"] == "c,d"
    with pytest.raises(JobInvalid, match="n_gpus_per_node"):
        environment(settings, 2, CUDA_VISIBLE_DEVICES="0,1,2,3")


def test_plugins_that_the_user_allows_do_not_shut_ours_out() -> None:
    assert "VLLM_PLUGINS" not in environment(SETTINGS)
    assert environment(SETTINGS, VLLM_PLUGINS="theirs")["VLLM_PLUGINS"] == "theirs,swarm_grammars"


def test_replicas_follow_grammars_with_the_servers_own_library() -> None:
    directory = own_directory()
    assert (directory / "shared" / "llguidance" / "__init__.py").is_file()
    found = complete_environment(VllmAdapter(), order(SETTINGS), {}, directory)
    assert str(directory / "shared") in found["PYTHONPATH"].split(":")
    assert (directory / "shared" / "token_texts.py").is_file()
    shutil.rmtree(directory)
