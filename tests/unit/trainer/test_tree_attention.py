"""Attention along a token tree has the numbers of one dense mask of ancestors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from late import Late
from tests_support import examples

torch = Late("torch")
attentions, trees = (Late(f"swarm.backends.local.learning.sharing.{name}") for name in ("attention", "tree"))

DIM = 8
SCALING = 0.3


def samples() -> st.SearchStrategy[list[list[int]]]:
    """Few different tokens, so that samples share beginnings of all lengths; one may be the beginning of another."""
    token = st.integers(0, 1)
    beginning = st.lists(token, max_size=24)
    ends = st.lists(st.lists(token, min_size=1, max_size=12), min_size=1, max_size=5)
    groups = st.lists(st.tuples(beginning, ends), min_size=1, max_size=3)
    return groups.map(lambda chosen: [[*first, *end] for first, several in chosen for end in several])


def tree_of(chosen: Sequence[Sequence[int]]) -> Any:
    return trees.build_tree([np.asarray(sample) for sample in chosen])


def ancestors(tree: Any) -> torch.Tensor:
    """[P, P]: whether the token of the line sees the token of the column."""
    visible_PP = torch.zeros(tree.tokens, tree.tokens, dtype=torch.bool)
    for path in tree.paths:
        for depth, place in enumerate(path.places_T):
            visible_PP[place, path.places_T[: depth + 1]] = True
    return visible_PP


@pytest.mark.parametrize(("least_keys", "calls"), [(None, 0), (1, 1), (7 * 200, 1), (7 * 200 + 1, 0)])
def test_a_prompt_in_common_is_read_in_place_if_that_saves_enough(least_keys: int | None, calls: int) -> None:
    prompt = [5] * 200
    tree = tree_of([[*prompt, 10 + repeat] for repeat in range(8)])
    assert len(trees.lay_out(tree, torch.device("cpu"), least_keys=least_keys).shared_keys) == calls


def fused(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layout: Any) -> torch.Tensor:
    return attentions.attend_fused(query, key, value, layout, SCALING)


def by_blocks(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layout: Any) -> torch.Tensor:
    """As on devices without the fused operation."""
    # What transformers asks the layer that calls its attention.
    layer: Any = SimpleNamespace(is_causal=True, num_key_value_groups=query.shape[1] // key.shape[1])
    states = (query.transpose(0, 1)[None], key.transpose(0, 1)[None], value.transpose(0, 1)[None])
    return attentions.attend_by_blocks(layer, states, layout, SCALING)[0]


def dense(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, visible_PP: torch.Tensor) -> torch.Tensor:
    sharing = query.shape[1] // key.shape[1]
    keys, values = (each.repeat_interleave(sharing, dim=1) for each in (key, value))
    scores = torch.einsum("phd,khd->hpk", query, keys) * SCALING
    weights = scores.masked_fill(~visible_PP, -torch.inf).softmax(-1)
    return torch.einsum("hpk,khd->phd", weights, values)


def states_of(tree: Any, shared_by: int, dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(tree.tokens)
    return [
        torch.randn(tree.tokens, heads, DIM, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
        for heads in (4, 4 // shared_by, 4 // shared_by)
    ]


def output_and_gradients(
    attention: Callable[..., torch.Tensor], states: Sequence[torch.Tensor], *others: object
) -> list[torch.Tensor]:
    output = attention(*states, *others)
    towards = torch.linspace(-1, 1, output.numel(), dtype=torch.float64).view(output.shape).to(output.dtype)
    return [output.detach(), *torch.autograd.grad(output, states, towards)]


@pytest.mark.parametrize(
    ("attention", "least_keys"), [(fused, 1), (fused, 12), (fused, 256), (fused, None), (by_blocks, None)]
)
@given(chosen=samples(), shared_by=st.sampled_from([1, 2, 4]))
@settings(max_examples=examples(25), deadline=None)
def test_outputs_and_gradients_are_those_of_one_dense_mask(
    attention: Any, least_keys: int | None, chosen: list[list[int]], shared_by: int
) -> None:
    tree = tree_of(chosen)
    layout = trees.lay_out(tree, torch.device("cpu"), least_keys=least_keys).with_additive_masks(torch.float64)
    states = states_of(tree, shared_by, torch.float64)
    found = output_and_gradients(attention, states, layout)
    expected = output_and_gradients(dense, states, ancestors(tree))
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_parts_are_joined_in_float32_whatever_the_model_computes_in_and_repeat_bit_for_bit(kind: str) -> None:
    dtype = getattr(torch, kind)
    prompt = [1] * 300
    tree = tree_of([[*prompt, *[2 + repeat] * 9] for repeat in range(8)])
    layout = trees.lay_out(tree, torch.device("cpu")).with_additive_masks(dtype)
    assert layout.shared_keys
    states = states_of(tree, 2, dtype)
    found, again = (output_and_gradients(fused, states, layout) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(found, again, strict=True))
    exact = [state.detach().double().requires_grad_() for state in states]
    expected = output_and_gradients(dense, exact, ancestors(tree))
    # Half precision rounds what goes in and what comes out, to some thousandths.
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == dtype
        assert ((one.double() - other).norm() / other.norm()).item() < tolerance


@pytest.mark.parametrize("widths", [(8, 4), (4, 8)])
def test_values_may_be_of_another_width_than_keys(widths: tuple[int, int]) -> None:
    tree = tree_of([[*[1] * 40, *[repeat % 3] * 7, repeat] for repeat in range(9)])
    layout = trees.lay_out(tree, torch.device("cpu")).with_additive_masks(torch.float64)
    assert layout.shared_keys
    query, key, value = states_of(tree, 2, torch.float64)
    of_keys, of_values = widths
    states = [
        each.detach()[..., :width].requires_grad_()
        for each, width in ((query, of_keys), (key, of_keys), (value, of_values))
    ]
    found = output_and_gradients(fused, states, layout)
    expected = output_and_gradients(dense, states, ancestors(tree))
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other, rtol=1e-6, atol=1e-6)
