"""Decoding with heads that share keys computes what transformers computes, and leaves the model as it was."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import random_model


@pytest.fixture(scope="module", autouse=True)
def late_imports() -> None:
    global torch, AutoModelForCausalLM, Qwen2Config, sdpa_attention_forward, GROUPED_ATTENTION, attend, RowTokens
    global SlotForward, attention_configs
    import torch
    from transformers import AutoModelForCausalLM, Qwen2Config
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    from swarm.backends.local.decoding.forward import RowTokens, SlotForward
    from swarm.backends.local.decoding.kernels import GROUPED_ATTENTION, attend
    from swarm.backends.local.model.computing import attention_configs


@given(
    batch=st.integers(1, 4),
    key_heads=st.integers(1, 3),
    sharing=st.integers(1, 7),
    queries=st.integers(1, 3),
    length=st.integers(1, 40),
    scaling=st.sampled_from([None, 0.3]),
    masked=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_whatever_the_shape_attention_is_that_of_transformers(
    batch: int, key_heads: int, sharing: int, queries: int, length: int, scaling: float | None, masked: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(batch, key_heads * sharing, queries, 8, generator=generator)
    key, value = torch.randn(2, batch, key_heads, length, 8, generator=generator)
    mask = None
    if masked:
        mask = torch.rand(batch, 1, queries, length, generator=generator) < 0.5
        mask[..., 0] = True
    # What transformers reads of a layer that calls an attention function.
    layer: Any = SimpleNamespace(is_causal=True, num_key_value_groups=sharing)
    wanted, _ = sdpa_attention_forward(layer, query, key, value, mask, scaling=scaling)
    found, _ = attend(layer, query, key, value, mask, scaling=scaling)
    assert found.shape == wanted.shape
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_decoding_gives_the_logits_of_a_plain_pass_and_leaves_the_model_as_it_was(
    attention: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"vocab_size": 50, "hidden_size": 48, "num_attention_heads": 6}
    module, used = random_model("Qwen2", attn_implementation=attention, **sizes), list[str]()

    def noted(layer: torch.nn.Module, *tensors: Any, **options: Any) -> tuple[torch.Tensor, None]:
        used.append(layer.config._attn_implementation)
        return attend(layer, *tensors, **options)

    monkeypatch.setattr("swarm.backends.local.decoding.forward.attend", noted)
    forward, rows = SlotForward(module, 64), [list(range(1, 10)), list(range(20, 25))]
    with torch.inference_mode():
        forward.fill(0, [RowTokens(0, row[:-1]) for row in rows])
        found = forward.decode([row[-1] for row in rows], [len(row) - 1 for row in rows])
        wanted = torch.stack([module(input_ids=torch.tensor([row])).logits[0, -1] for row in rows])
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    assert used == ([GROUPED_ATTENTION] * 2 if attention == "sdpa" else [])
    assert {config._attn_implementation for config in attention_configs(module)} == {attention}
