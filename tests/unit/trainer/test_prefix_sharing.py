"""Computing common prefixes once changes neither loss nor gradient, and is given up where it would."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_gradients import EVERY_COMBINATION, flat_gradient, job_with_loss, nudged, relative_error
from tests_support import examples
from token_trees import BatchShape, batch_shapes, make_rows

from swarm.backends.local.learning.correction import RolloutCorrection
from swarm.backends.local.learning.metrics import Meter
from swarm.backends.local.learning.microbatches import collate
from swarm.backends.local.learning.optimizer import PolicyOptimizer
from swarm.backends.local.learning.sharing.prefix_sharing import PrefixSharing
from swarm.backends.local.learning.updater import MiniBatchUpdater, StepInput, TokenScorer
from swarm.job import TrainJob
from swarm.trainer.advantages import compute_advantages
from swarm.trainer.minibatches import draw_minibatches
from swarm.trainer.token_rows import Row

MakeModel = Callable[..., torch.nn.Module]
VOCABULARY = 61
CPU = torch.device("cpu")
SHAPE = BatchShape(
    seed=3, vocabulary=VOCABULARY, kinds=5, tools=24, prompt=6, repeats=(4, 3), turns=3, grammars=True
)  # fmt: skip


def always(module: torch.nn.Module) -> PrefixSharing:
    """Trees whatever they gain."""
    return PrefixSharing(module, smallest_gain=0.0)


class Gradients:
    """Loss and gradient of every minibatch of one epoch, with the weights as they are."""

    def __init__(
        self,
        module: torch.nn.Module,
        job: TrainJob,
        rows: Sequence[Row],
        reference: torch.nn.Module | None,
        sharing: PrefixSharing | None,
    ) -> None:
        updater = MiniBatchUpdater(
            TokenScorer(module, recompute=bool(job.enable_gradient_checkpointing)),
            None if reference is None else TokenScorer(reference),
            PolicyOptimizer(module, job),
            job,
            CPU,
            sharing,
        )
        correction = RolloutCorrection(rows, job) if job.has_proximal_policy else None
        advantages_EL = compute_advantages(rows, job, None)
        step = StepInput(rows, advantages_EL, 0.0, lambda: None, None, correction)
        minibatches = list(draw_minibatches(len(rows), job, 1))
        if correction is not None and len(minibatches) > 1:
            updater.record_proximal(step, correction)
        self.losses: list[float] = []
        gradients: list[torch.Tensor] = []
        for chosen in minibatches:
            module.zero_grad()
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                measured = updater.accumulate(step, chosen, on_policy=True)
            assert measured is not None
            self.losses.append(measured.read().get("actor/pg_loss", 0.0))
            gradients.append(flat_gradient(module))
        self.gradient = torch.cat(gradients)


def assert_equal(shared: Gradients, apart: Gradients) -> None:
    assert shared.losses == pytest.approx(apart.losses, rel=1e-5, abs=1e-6)
    if not apart.gradient.any():
        assert not shared.gradient.any()
        return
    error = relative_error(shared.gradient, apart.gradient)
    assert error < 1e-5, f"relative gradient error {error:.2e}"


@st.composite
def jobs(draw: st.DrawFn) -> TrainJob:
    policy_loss, aggregation = draw(st.sampled_from(EVERY_COMBINATION))
    asked: dict[str, Any] = {
        "loss_agg_mode": aggregation,
        "use_kl_loss": draw(st.booleans()),
        "kl_loss_coef": 0.1,
        "entropy_coeff": draw(st.sampled_from([0.0, 0.03])),
        "mini_batch_num": draw(st.sampled_from([1, 1, 2])),
        "ppo_max_token_len": draw(st.sampled_from([64, 128, 16_384])),
        "enable_gradient_checkpointing": draw(st.booleans()),
    }
    if policy_loss != "bypass_mode":
        asked["rollout_is"] = draw(st.sampled_from(["off", "token", "sequence"]))
    return job_with_loss(policy_loss, batch_size=3, num_repeat=4, **asked).resolve()


@given(shape=batch_shapes(VOCABULARY), job=jobs())
@settings(max_examples=examples(120), deadline=None)
def test_loss_and_gradient_are_those_of_samples_computed_apart(
    sampler: torch.nn.Module, shape: BatchShape, job: TrainJob
) -> None:
    rows = make_rows(shape, sampler)
    policy, reference = nudged(sampler), sampler if job.use_kl_loss else None
    apart = Gradients(policy, job, rows, reference, None)
    sharing, meter = always(policy), Meter()
    sharing.report_to(meter)
    assert_equal(Gradients(policy, job, rows, reference, sharing), apart)
    counts = meter.read()
    assert counts.get("sharing/fallbacks", 0) == 0
    assert counts.get("sharing/tokens", 0) <= counts.get("sharing/tokens_unshared", 0)


@given(shape=batch_shapes(VOCABULARY))
@settings(max_examples=examples(25), deadline=None)
def test_a_tree_gives_the_scores_of_samples_computed_apart(sampler: torch.nn.Module, shape: BatchShape) -> None:
    rows = make_rows(shape, sampler)
    advantages_EL = torch.zeros(len(rows), max(row.tokens for row in rows))
    apart, together = (collate(rows, range(len(rows)), advantages_EL, CPU, shared=shared) for shared in (False, True))
    samples = {tuple(sample.token_ids_T[:-1]) for row in rows for sample in row.samples}
    prefixes = {sample[: length + 1] for sample in samples for length in range(len(sample))}
    assert together.input_ids_ST.shape == (1, len(prefixes))
    scorer = TokenScorer(sampler)
    with torch.no_grad():
        expected, found = scorer(apart, with_squares=True), scorer(together, with_squares=True)
    assert torch.allclose(found.logprobs_N, expected.logprobs_N, atol=1e-5)
    assert torch.allclose(found.entropies_N, expected.entropies_N, atol=1e-5)
    assert found.squared_N is not None and expected.squared_N is not None
    assert torch.allclose(found.squared_N, expected.squared_N, atol=1e-5)
