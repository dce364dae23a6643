"""Weights with a missing, unexpected or misshapen tensor are refused by its name, wherever they are loaded."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from swarm.backends.local.learning.learner import read_weights
from swarm.backends.local.model.adapter import refuse_other_adapter
from swarm.backends.local.model.loading import load_model
from swarm.backends.weights import UnfitWeights, check_fit
from swarm.errors import CheckpointError, EngineFailure
from swarm.model_path import resolve_model

Weights = dict[str, torch.Tensor]
QUERY = "model.layers.0.self_attn.q_proj.weight"


def rename(weights: Weights) -> None:
    weights["model.layers.0.self_attn.query.weight"] = weights.pop(QUERY)


def cut(weights: Weights) -> None:
    weights[QUERY] = weights[QUERY][:-1].contiguous()


def add(weights: Weights) -> None:
    weights["model.extra.weight"] = torch.zeros(2)


def store_head(weights: Weights) -> None:
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()


CHANGES: dict[str, tuple[Callable[[Weights], object], tuple[str, ...]]] = {
    "removed": (lambda weights: weights.pop(QUERY), (f"{QUERY} is missing",)),
    "renamed": (rename, (f"{QUERY} is missing", "self_attn.query.weight is no tensor")),
    "misshapen": (cut, (QUERY, "127x128", "128x128")),
    "unexpected": (add, ("model.extra.weight is no tensor",)),
    "unexpected beside a stored head": (lambda weights: (store_head(weights), add(weights)), ("model.extra.weight",)),
}


def model_with(tmp_path: Path, change: Callable[[Weights], object]) -> Path:
    directory = shutil.copytree(resolve_model("nano"), tmp_path / "model")
    weights = load_file(directory / "model.safetensors")
    change(weights)
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


@pytest.mark.parametrize(("change", "said"), CHANGES.values(), ids=CHANGES.keys())
def test_other_tensors_than_the_models_are_refused_by_name(
    tmp_path: Path, change: Callable[[Weights], object], said: tuple[str, ...]
) -> None:
    directory = model_with(tmp_path, change)
    with pytest.raises(EngineFailure) as of_engine:
        load_model(directory, device="cpu", max_model_len=None)
    with pytest.raises(UnfitWeights) as of_check:
        check_fit(directory)
    nano = AutoModelForCausalLM.from_pretrained(resolve_model("nano"), local_files_only=True)
    with pytest.raises(CheckpointError) as of_checkpoint:
        read_weights(directory, nano)
    for message in (of_engine.value.message, str(of_check.value), of_checkpoint.value.message):
        assert all(words in message for words in said) and "\n" not in message


def test_a_tied_head_may_be_stored_or_not(tmp_path: Path) -> None:
    for number, change in enumerate((lambda weights: None, store_head)):
        directory = model_with(tmp_path / str(number), change)
        load_model(directory, device="cpu", max_model_len=None)
        check_fit(directory)


def test_another_adapter_is_refused_by_the_names_of_its_tensors(tmp_path: Path) -> None:
    own = {"base_model.model.q.lora_A.weight": torch.zeros(2, 4)}
    for stored, said in (
        ({}, "q.lora_A.weight is missing"),
        ({**own, "v.lora_A.weight": torch.zeros(2, 4)}, "v.lora_A.weight is no tensor"),
        ({"base_model.model.q.lora_A.weight": torch.zeros(3, 4)}, "3x4 in place of 2x4"),
    ):
        with pytest.raises(CheckpointError, match=said):
            refuse_other_adapter(tmp_path, stored, own)
    refuse_other_adapter(tmp_path, dict(own), own)
