"""The arithmetic of `bench gpu`: what memory allows, what a model needs, and when two lists of scores differ."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module", autouse=True)
def late_imports() -> None:
    global torch, build_model, random_batch, compare, limit_of_memory, BatchSize, products_of_step, SHAPE
    import torch

    from bench.gpu.models import ModelShape, build_model, random_batch
    from bench.gpu.parts.learning import compare
    from bench.gpu.parts.sampling import limit_of_memory
    from bench.gpu.parts.training import BatchSize, products_of_step

    SHAPE = ModelShape(hidden=32, intermediate=64, layers=2, heads=4, key_heads=2, vocabulary=100)


def test_shape_counts_the_weights_of_the_model_that_is_built() -> None:
    model = build_model(SHAPE, torch.device("cpu"), torch.float32)
    matrices = sum(weight.numel() for weight in model.parameters() if weight.dim() == 2)
    assert matrices == SHAPE.of_layers + SHAPE.of_head
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}


def test_one_request_is_bound_by_the_weights_and_many_by_their_caches() -> None:
    weights = SHAPE.of_layers + SHAPE.of_head
    assert limit_of_memory(SHAPE, 1, 2.0 * weights, 2, 0.0) == pytest.approx(1.0)
    many = limit_of_memory(SHAPE, 10**9, 1e6, 2, 50.0)
    assert many == pytest.approx(1e6 / (2 * 50 * SHAPE.cached_numbers), rel=1e-3)


def test_products_are_six_per_weight_and_token_and_four_with_an_adapter() -> None:
    size = BatchSize(episodes=3, prompt=0, completion=1, pass_tokens=64)
    weights = SHAPE.of_layers + SHAPE.of_head
    attention = 6 * SHAPE.layers * SHAPE.hidden * 3
    assert products_of_step(SHAPE, size, is_adapter=False) == 6 * weights * 3 + attention
    assert products_of_step(SHAPE, size, is_adapter=True) == 4 * weights * 3 + attention


def test_batch_has_groups_with_common_prompts_and_unequal_rewards() -> None:
    batch = random_batch(SHAPE, tasks=2, repeats=2, prompt=5, completion=3)
    first, second = batch.groups[0].episodes
    assert first.samples[0].token_ids_T[:5] == second.samples[0].token_ids_T[:5]
    assert (first.reward, second.reward) == (0.0, 1.0)
    assert sum(first.samples[0].loss_mask_T) == 3


def test_scores_differ_only_beyond_two_standard_errors() -> None:
    assert compare([0.9], [0.1, 0.2]).startswith("too few")
    assert compare([0.8, 0.9, 0.7], [0.75, 0.85, 0.8]).startswith("within")
    assert compare([0.8, 0.81, 0.82], [0.1, 0.11, 0.12]).startswith("NOT within")
