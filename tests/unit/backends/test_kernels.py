"""Faster layers and attention compute what the model's own compute, for sampling alone."""

from __future__ import annotations

from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import random_model

from swarm.model_path import BUNDLED_DIRECTORY
from swarm.types import SamplingParams


@pytest.fixture(scope="module", autouse=True)
def late_imports() -> None:
    global torch, AutoModelForCausalLM, BatchingLimits, BatchSampler, RowTokens, SlotForward, kernels, LEAST_PRODUCTS
    global PackedLinears, multiplies_bfloat16, Qwen2Config, sdpa_attention_forward, GROUPED_ATTENTION, attend
    global attention_configs
    import torch
    from transformers import AutoModelForCausalLM, Qwen2Config
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    from swarm.backends.local.decoding import kernels
    from swarm.backends.local.decoding.batching import BatchingLimits, BatchSampler
    from swarm.backends.local.decoding.forward import RowTokens, SlotForward
    from swarm.backends.local.decoding.kernels import GROUPED_ATTENTION, LEAST_PRODUCTS, PackedLinears, attend
    from swarm.backends.local.model.computing import attention_configs, multiplies_bfloat16


WIDE = 2048


def dtype_of(kind: str) -> torch.dtype:
    if kind == "bfloat16" and not multiplies_bfloat16():
        pytest.skip("this processor does not multiply bfloat16")
    return getattr(torch, kind)


def layers_of(module: torch.nn.Module) -> list[torch.nn.Linear]:
    return [layer for layer in module.modules() if isinstance(layer, torch.nn.Linear)]


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1,), (3, 1), (2, 5), (700,)])
def test_copies_compute_what_the_layer_computes(kind: str, bias: bool, shape: tuple[int, ...]) -> None:
    dtype = dtype_of(kind)
    torch.manual_seed(0)
    layer = torch.nn.Linear(WIDE, 384, bias=bias, dtype=dtype)
    given = torch.randn(*shape, WIDE, dtype=dtype)
    assert given.numel() * layer.out_features >= LEAST_PRODUCTS
    strided = torch.randn(*shape, 2 * WIDE, dtype=dtype)[..., ::2]
    packed = PackedLinears(layer)
    with torch.inference_mode():
        expected = [layer(each) for each in (given, strided)]
        with packed.applied():
            found = [layer(each) for each in (given, strided)]
            assert "forward" in layer.__dict__
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape and one.dtype == other.dtype
        assert torch.allclose(one, other, atol=1e-5 if dtype == torch.float32 else 1e-2, rtol=1e-2)


def test_a_module_is_as_it_was_behind_the_block_also_if_a_pass_fails() -> None:
    layer = torch.nn.Linear(WIDE, 384)
    packed = PackedLinears(layer)
    with pytest.raises(RuntimeError), torch.inference_mode(), packed.applied():
        layer(torch.zeros(WIDE - 1))
    assert "forward" not in layer.__dict__
    given = torch.randn(8, WIDE, requires_grad=True)
    layer(given).sum().backward()
    assert given.grad is not None and layer.weight.grad is not None


def test_no_copies_are_made_where_memory_is_scarce(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = torch.nn.Linear(WIDE, 384, bias=False)
    monkeypatch.setattr(kernels, "FREE_PER_COPY", 2**40)
    with PackedLinears(layer).applied():
        assert "forward" not in layer.__dict__


def test_layers_that_may_compute_something_else_are_left_alone() -> None:
    class Doubled(torch.nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(input)

    changed = torch.nn.Linear(WIDE, 384)
    changed.__dict__["forward"] = lambda given: 3 * torch.nn.functional.linear(given, changed.weight)  # type: ignore[assignment]
    module = torch.nn.ModuleList([Doubled(WIDE, 384), changed, torch.nn.Linear(WIDE, 384, dtype=torch.float64)])
    given = torch.randn(8, WIDE)
    with torch.inference_mode(), PackedLinears(module).applied():
        assert torch.equal(module[0](given), 2 * torch.nn.functional.linear(given, module[0].weight, module[0].bias))  # type: ignore[arg-type]
        assert torch.equal(changed(given), 3 * torch.nn.functional.linear(given, changed.weight))
    assert "forward" in changed.__dict__


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_a_model_samples_from_copies_and_a_copy_of_the_model_does_not(kind: str) -> None:
    dtype = dtype_of(kind)
    module: Any = AutoModelForCausalLM.from_pretrained(BUNDLED_DIRECTORY, dtype=dtype).eval()
    rows = [[(7 + 3 * row + place) % 384 for place in range(20)] for row in range(40)]
    with torch.inference_mode():
        forward = SlotForward(module, 64)
        forward.fill(0, [RowTokens(0, row[:-1]) for row in rows])
        served = forward.decode([row[-1] for row in rows], [19] * len(rows))
        plain = module(input_ids=torch.tensor(rows)).logits[:, -1]
    tolerance = 1e-4 if dtype == torch.float32 else 0.3
    assert (torch.log_softmax(served.float(), -1) - torch.log_softmax(plain.float(), -1)).abs().max() < tolerance
    assert not any("forward" in layer.__dict__ for layer in layers_of(module))
    assert not any("forward" in layer.__dict__ for layer in layers_of(deepcopy(module)))


def test_changed_weights_are_sampled_from_once_they_are_published() -> None:
    module: Any = AutoModelForCausalLM.from_pretrained(BUNDLED_DIRECTORY, dtype=torch.float32).eval()
    sampler = BatchSampler(module, BatchingLimits(2048, 384, 64), [2], str)
    greedy = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)

    def sampled() -> list[list[int]]:
        tokens: dict[int, list[int]] = {}
        for handle in range(40):
            sampler.submit(handle, [7 + handle, *range(20, 60)], greedy)
        while not sampler.idle:
            for each in sampler.step():
                assert each.token_id is not None
                tokens.setdefault(each.handle, []).append(each.token_id)
        return [tokens[handle] for handle in range(40)]

    before = sampled()
    sampler.pause()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.05)
    sampler.publish(1)
    after = sampled()
    assert after != before
    fresh = BatchSampler(deepcopy(module), BatchingLimits(2048, 384, 64), [2], str)
    sampler = fresh
    assert sampled() == after


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
