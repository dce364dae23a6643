"""Decoding with heads that share keys computes what transformers computes, and leaves the model as it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, Qwen2Config
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from swarm.backends.local.decoding.attention import GROUPED_ATTENTION, attend
from swarm.backends.local.decoding.forward import RowTokens, SlotForward
from swarm.backends.local.model.attention_choice import attention_configs

VOCABULARY = 50


class Layer(torch.nn.Module):
    """What transformers reads of a layer that calls an attention function."""

    is_causal = True

    def __init__(self, sharing: int) -> None:
        super().__init__()
        self.num_key_value_groups = sharing


def build_model(attention: str) -> Any:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY, hidden_size=48, intermediate_size=64, num_hidden_layers=2, num_attention_heads=6,
        num_key_value_heads=2, max_position_embeddings=64, attn_implementation=attention,
    )  # fmt: skip
    return AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval()


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
    layer = Layer(sharing)
    wanted, _ = sdpa_attention_forward(layer, query, key, value, mask, scaling=scaling)
    found, _ = attend(layer, query, key, value, mask, scaling=scaling)
    assert found.shape == wanted.shape
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@torch.inference_mode()
def test_decoding_gives_the_logits_of_a_plain_pass_and_leaves_the_model_as_it_was(
    attention: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, used = build_model(attention), list[str]()

    def noted(layer: torch.nn.Module, *tensors: Any, **options: Any) -> tuple[torch.Tensor, None]:
        used.append(layer.config._attn_implementation)
        return attend(layer, *tensors, **options)

    monkeypatch.setattr("swarm.backends.local.decoding.forward.attend", noted)
    forward, rows = SlotForward(module, 64), [list(range(1, 10)), list(range(20, 25))]
    forward.fill(0, [RowTokens(0, row[:-1]) for row in rows])
    found = forward.decode([row[-1] for row in rows], [len(row) - 1 for row in rows])
    wanted = torch.stack([module(input_ids=torch.tensor([row])).logits[0, -1] for row in rows])
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    assert used == ([GROUPED_ATTENTION] * 2 if attention == "sdpa" else [])
    assert {config._attn_implementation for config in attention_configs(module)} == {attention}
