"""What runs inside vLLM: weights from files, by an older vLLM's rules as well, and tokens that grammars may use."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from llguidance import LLMatcher, LLTokenizer, grammar_from
from vllm_stand_in import PACKAGE

from swarm.backends import token_texts
from swarm.backends.replicas.vllm.adapter import INSIDE
from swarm.model_path import BUNDLED_DIRECTORY


@pytest.fixture(scope="module", autouse=True)
def late_imports() -> None:
    global torch, load_file, save_file, AutoTokenizer
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import AutoTokenizer


START_TOKEN, END_TOKEN, TOOL_CALL = 1, 2, 378


def load_inside(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, INSIDE / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up.
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def weights_module(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(PACKAGE))
    yield load_inside("swarm_weights")
    for name in set(sys.modules) - before:
        if name.split(".")[0] in {"vllm", "swarm_weights"}:
            del sys.modules[name]


@pytest.fixture
def model_directory(tmp_path: Path) -> Path:
    """The bundled model in two files, as large models come."""
    directory = tmp_path / "model"
    directory.mkdir()
    shutil.copy(BUNDLED_DIRECTORY / "config.json", directory)
    tensors = load_file(BUNDLED_DIRECTORY / "model.safetensors")
    names = sorted(tensors)
    parts = {"one.safetensors": names[::2], "two.safetensors": names[1::2]}
    for file, held in parts.items():
        save_file({name: tensors[name] for name in held}, directory / file)
    index = {name: file for file, held in parts.items() for name in held}
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    # Of no model: whoever reads by the index leaves it alone.
    save_file({"stray": torch.zeros(1)}, directory / "stray.safetensors")
    return directory


def test_model_directory_gives_all_tensors_and_a_tied_head_by_its_name(
    weights_module: Any, model_directory: Path
) -> None:
    read = dict(weights_module.read_tensors(model_directory))
    tensors = load_file(BUNDLED_DIRECTORY / "model.safetensors")
    assert set(read) == {*tensors, "lm_head.weight"}
    assert all(torch.equal(read[name], tensor) for name, tensor in tensors.items())
    assert torch.equal(read["lm_head.weight"], tensors["model.embed_tokens.weight"])


def test_head_that_is_not_tied_is_left_to_the_file(weights_module: Any, model_directory: Path) -> None:
    (model_directory / "config.json").write_text("{}")
    assert "lm_head.weight" not in dict(weights_module.read_tensors(model_directory))
    with pytest.raises(FileNotFoundError):
        dict(weights_module.read_tensors(model_directory / "nothing"))


def test_engine_of_an_older_vllm_loads_with_the_function_it_is_given(weights_module: Any, tmp_path: Path) -> None:
    path = tmp_path / "v1.safetensors"
    save_file({"a": torch.ones(2), "lm_head.weight": torch.zeros(1)}, path)
    from vllm.distributed.weight_transfer.factory import (  # type: ignore[import-not-found]
        WeightTransferEngineFactory,
    )

    engine = WeightTransferEngineFactory.registered["shm_file"]("config", "parallel config")
    loaded: dict[str, torch.Tensor] = {}
    engine.receive_weights(engine.parse_update_info({"path": str(path)}), load_weights=loaded.update)
    assert set(loaded) == {"a", "lm_head.weight"}


def test_plain_added_tokens_may_spell_text_and_special_ones_may_not(monkeypatch: pytest.MonkeyPatch) -> None:
    import llguidance.hf

    original = llguidance.hf.from_tokenizer
    monkeypatch.setattr(llguidance.hf, "from_tokenizer", original)
    monkeypatch.setitem(sys.modules, "token_texts", token_texts)
    load_inside("swarm_grammars").install()
    load_inside("swarm_grammars").install()
    tokenizer = AutoTokenizer.from_pretrained(BUNDLED_DIRECTORY)
    corrected = llguidance.hf.from_tokenizer(tokenizer, 384)
    anything = "/(.|\\n)*/"
    assert TOOL_CALL not in _allowed(original(tokenizer, 384), anything)
    assert TOOL_CALL in _allowed(corrected, anything)
    assert END_TOKEN in _allowed(corrected, anything)
    assert START_TOKEN not in _allowed(corrected, anything)
    assert corrected.eos_token == original(tokenizer, 384).eos_token


def _allowed(tokenizer: LLTokenizer, expression: str) -> set[int]:
    matcher = LLMatcher(tokenizer, grammar_from("grammar", f"start: {expression}\n"))
    words = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint32)
    return {token for token in range(384) if words[token // 32] >> (token % 32) & 1}
