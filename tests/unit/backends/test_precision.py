"""A model is loaded in the number format that suits it, by as many threads as help, and its base is shared memory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from swarm.backends.threads import THREADED_PARAMETERS, THREADED_WORK, choose_threads, choose_training_threads
from swarm.errors import CheckpointError, EngineFailure
from swarm.job import TrainJob
from swarm.model_path import BUNDLED_DIRECTORY, stored_dtype, stored_parameters


@pytest.fixture(scope="module", autouse=True)
def late_imports() -> None:
    global torch, save_file, AutoModelForCausalLM, AutoTokenizer, load_model, choose_dtype, computing_with
    global multiplies_bfloat16
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from swarm.backends.local.model.computing import choose_dtype, computing_with, multiplies_bfloat16
    from swarm.backends.local.model.loading import load_model


def store_nano(directory: Path, dtype: torch.dtype) -> Path:
    AutoModelForCausalLM.from_pretrained(BUNDLED_DIRECTORY, dtype=dtype).save_pretrained(directory)
    AutoTokenizer.from_pretrained(BUNDLED_DIRECTORY).save_pretrained(directory)
    return directory


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_format_of_a_checkpoint_is_that_of_its_weights(tmp_path: Path, dtype: str) -> None:
    save_file(
        {"counts": torch.zeros(2, dtype=torch.int64), "weight": torch.zeros(2, dtype=getattr(torch, dtype))},
        tmp_path / "model.safetensors",
    )
    assert stored_dtype(tmp_path) == dtype


def test_weights_are_counted_without_being_read(tmp_path: Path) -> None:
    assert stored_parameters(tmp_path) == 0
    save_file({"a": torch.zeros(2, 3), "b": torch.zeros(5)}, tmp_path / "model.safetensors")
    save_file({"c": torch.zeros(4, dtype=torch.bfloat16)}, tmp_path / "more.safetensors")
    assert stored_parameters(tmp_path) == 15


def test_a_folder_without_weights_has_no_format_and_a_damaged_file_is_named(tmp_path: Path) -> None:
    assert stored_dtype(tmp_path) is None
    (tmp_path / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(CheckpointError, match=r"damaged: model\.safetensors"):
        stored_dtype(tmp_path)


@pytest.mark.parametrize(
    ("wanted", "device", "chosen"),
    [
        ("float32", "cuda", "float32"),
        ("bfloat16", "cpu", "bfloat16"),
        ("auto", "cuda", "bfloat16"),
        ("auto", "cpu", "float32"),
    ],
)
def test_format_is_what_the_job_asks_for_or_suits_the_device(wanted: str, device: str, chosen: str) -> None:
    assert choose_dtype(BUNDLED_DIRECTORY, wanted=wanted, device=device) == getattr(torch, chosen)


def test_auto_keeps_a_bfloat16_checkpoint_as_it_is_where_the_processor_multiplies_it(tmp_path: Path) -> None:
    if not multiplies_bfloat16():
        pytest.skip("this processor does not multiply bfloat16")
    directory = store_nano(tmp_path, torch.bfloat16)
    loaded = load_model(directory, device="cpu", max_model_len=None)
    assert {weight.dtype for weight in loaded.module.parameters()} == {torch.bfloat16}


def test_a_model_in_bfloat16_is_served_in_float32_if_the_job_says_so(tmp_path: Path) -> None:
    directory = store_nano(tmp_path, torch.bfloat16)
    loaded = load_model(directory, device="cpu", max_model_len=None, dtype="float32")
    assert {weight.dtype for weight in loaded.module.parameters()} == {torch.float32}


def test_damaged_weights_are_a_failure_of_the_engine_with_the_file_named(tmp_path: Path) -> None:
    directory = store_nano(tmp_path, torch.float32)
    (directory / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(EngineFailure, match=r"model\.safetensors"):
        load_model(directory, device="cpu", max_model_len=None)


def test_a_small_model_has_one_thread_and_a_large_one_no_more_than_the_process_may_use() -> None:
    assert choose_threads(THREADED_PARAMETERS - 1) == 1
    assert 1 <= choose_threads(THREADED_PARAMETERS) <= len(os.sched_getaffinity(0))
    assert choose_threads(THREADED_PARAMETERS, 1) == 1


def test_a_large_batch_of_a_small_model_is_trained_by_as_many_threads_as_a_large_model() -> None:
    small, most = 1000, choose_threads(THREADED_PARAMETERS)
    assert choose_training_threads(small, THREADED_WORK // small - 1) == 1
    assert choose_training_threads(small, THREADED_WORK // small) == most
    assert choose_training_threads(THREADED_PARAMETERS, 1) == most
    assert choose_training_threads(THREADED_PARAMETERS, THREADED_WORK, 1) == 1


def test_threads_of_a_training_step_are_given_back_behind_it_also_if_it_fails() -> None:
    before = torch.get_num_threads()
    with pytest.raises(EngineFailure), computing_with(before + 1):
        assert torch.get_num_threads() == before + 1
        raise EngineFailure("the step failed")
    assert torch.get_num_threads() == before


def test_the_base_of_adapters_is_the_pages_of_its_file_which_all_processes_share() -> None:
    loaded = load_model(BUNDLED_DIRECTORY, device="cpu", max_model_len=None, lora=TrainJob(lora_rank=4).resolve())
    ranges = [
        tuple(int(end, 16) for end in line.split()[0].split("-"))
        for line in Path("/proc/self/maps").read_text().splitlines()
        if line.endswith("model.safetensors")
    ]
    base = [weight for name, weight in loaded.module.named_parameters() if "lora_" not in name]
    assert base and all(any(low <= weight.data_ptr() < high for low, high in ranges) for weight in base)
