"""Computing common prefixes once changes neither loss nor gradient, and is given up where it would."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from late import Late
from loss_matrix import EVERY_COMBINATION, job_with_loss
from tests_support import examples
from tiny_models import MakeModel, random_model
from token_trees import BatchShape, batch_shapes, distinct_prefixes, make_batch, make_rows

from swarm.job import TrainJob
from swarm.trainer.schedule import draw_minibatches
from swarm.trainer.token_rows import Row, build_rows

torch, plain, description = Late("torch"), Late("plain_gradients"), Late("swarm.trainer.description")
learning, losses, microbatches, optimizing, updating = (
    Late(f"swarm.backends.local.learning.{name}")
    for name in ("learner", "losses", "microbatches", "optimizer", "updater")
)
sharing, trees = (Late(f"swarm.backends.local.learning.sharing.{name}") for name in ("prefix_sharing", "attention"))
adapters = Late("swarm.backends.local.model.adapter")

VOCABULARY = 61
COMBINATIONS = [pair for pair in EVERY_COMBINATION if pair[0] != "kl_cov"]
"""All but the loss that penalises one token alone, of the largest covariance: among equals, rounding decides.
Before a step's first update, dro has a gradient of rounding where the advantages are 0."""
SHAPE = BatchShape(seed=3, vocabulary=VOCABULARY, kinds=5, tools=24, prompt=6, repeats=(4, 3), turns=3, grammars=False)
FAMILIES: dict[str, tuple[str, dict[str, Any], str | None]] = {
    "llama": ("Llama", {}, None),
    "gpt2": ("GPT2", {"vocab_size": VOCABULARY}, None),
    "mistral": ("Mistral", {"sliding_window": None}, None),
    "mistral-window": ("Mistral", {"sliding_window": 4}, "layers"),
    "gemma2-window": ("Gemma2", {"sliding_window": 4, "head_dim": 8}, "layers"),
}
"""A model of each family, and why it does not share."""


class Gradients:
    """Loss and gradient of every minibatch of one epoch, with the weights as they are.

    Weights `start` are those that the step began with: the losses which know a proximal policy compare with them.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        start: torch.nn.Module,
        job: TrainJob,
        rows: Sequence[Row],
        reference: torch.nn.Module | None,
        *,
        share: bool,
    ) -> None:
        # Trees whatever they gain.
        shared = sharing.PrefixSharing(module, smallest_gain=0.0) if share else None
        meter = description.Meter()
        if shared is not None:
            shared.report_to(meter)
        updater = make_updater(module, job, reference, shared)
        correction = losses.RolloutCorrection(rows, job) if job.has_proximal_policy else None
        step = updating.StepInput(rows, plain.compute_advantages(rows, job, None), 0.0, None, correction)
        minibatches = list(draw_minibatches(len(rows), job, 1))
        if correction is not None and len(minibatches) > 1:
            make_updater(start, job, reference, shared).record_proximal(step, correction)
        self.losses: list[float] = []
        gradients: list[torch.Tensor] = []
        for chosen in minibatches:
            module.zero_grad()
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                measured = updater.accumulate(step, chosen, on_policy=True)
            assert measured is not None
            self.losses.append(measured.read().get("actor/pg_loss", 0.0))
            gradients.append(plain.flat_gradient(module))
        self.gradient = torch.cat(gradients)
        self.sharing = meter.read()


def make_updater(module: torch.nn.Module, job: TrainJob, reference: torch.nn.Module | None, shared: Any) -> Any:
    return updating.MiniBatchUpdater(
        updating.TokenScorer(module, recompute=bool(job.enable_gradient_checkpointing)),
        None if reference is None else updating.TokenScorer(reference),
        optimizing.PolicyOptimizer(module, job),
        job,
        torch.device("cpu"),
        shared,
    )


def assert_equal(shared: Gradients, apart: Gradients) -> None:
    # Rounding moves a loss in proportion to its gradient; a sum over tokens may cancel out to far less than that.
    scale = max(1.0, apart.gradient.norm().item())
    assert shared.losses == pytest.approx(apart.losses, rel=1e-5, abs=1e-5 * scale)
    if not apart.gradient.any():
        assert not shared.gradient.any()
        return
    error = plain.relative_error(shared.gradient, apart.gradient)
    assert error < 1e-5, f"relative gradient error {error:.2e}"


@st.composite
def jobs(draw: st.DrawFn) -> TrainJob:
    policy_loss, aggregation = draw(st.sampled_from(COMBINATIONS))
    asked: dict[str, Any] = {
        "loss_agg_mode": aggregation,
        **draw(st.sampled_from([{}, {"use_kl_loss": True, "kl_loss_coef": 0.1}])),
        "entropy_coeff": draw(st.sampled_from([0.0, 0.03])),
        "mini_batch_num": draw(st.sampled_from([1, 1, 2])),
        "ppo_max_token_len": draw(st.sampled_from([64, 128, 16_384])),
        "enable_gradient_checkpointing": draw(st.booleans()),
    }
    if policy_loss != "bypass_mode":
        asked["rollout_is"] = draw(st.sampled_from(["off", "token", "sequence"]))
    return job_with_loss(policy_loss, batch_size=3, num_repeat=4, **asked).resolve()


@given(
    shape=batch_shapes(VOCABULARY),
    job=jobs(),
    updated=st.booleans(),
    least_keys=st.sampled_from([1, 32, 256]),
)
@settings(max_examples=examples(120), deadline=None)
def test_loss_and_gradient_are_those_of_samples_computed_apart(
    sampler: torch.nn.Module, shape: BatchShape, job: TrainJob, updated: bool, least_keys: int
) -> None:
    rows = make_rows(shape, sampler)
    policy, reference = plain.nudged(sampler), sampler if job.use_kl_loss else None
    start = plain.nudged(policy) if updated or job.policy_loss == "dro" else policy
    apart = Gradients(policy, start, job, rows, reference, share=False)
    with pytest.MonkeyPatch.context() as patch:
        # The trees are small: what is read in place in large ones must be tried here too.
        patch.setattr(trees, "LEAST_KEYS", least_keys)
        shared = Gradients(policy, start, job, rows, reference, share=True)
    assert_equal(shared, apart)
    assert shared.sharing.get("sharing/fallbacks", 0) == 0
    assert shared.sharing.get("sharing/tokens", 0) <= shared.sharing.get("sharing/tokens_unshared", 0)


@given(shape=batch_shapes(VOCABULARY))
@settings(max_examples=examples(25), deadline=None)
def test_a_tree_gives_the_scores_of_samples_computed_apart(sampler: torch.nn.Module, shape: BatchShape) -> None:
    rows = make_rows(shape, sampler)
    advantages_EL = torch.zeros(len(rows), max(row.tokens for row in rows))
    every, device = range(len(rows)), torch.device("cpu")
    apart, together = (
        microbatches.collate(rows, every, advantages_EL, device, shared=shared) for shared in (False, True)
    )
    assert together.input_ids_ST.shape == (1, distinct_prefixes(rows))
    scorer = updating.TokenScorer(sampler)
    with torch.no_grad():
        expected, found = scorer(apart, with_squares=True), scorer(together, with_squares=True)
    assert torch.allclose(found.logprobs_N, expected.logprobs_N, atol=1e-5)
    assert torch.allclose(found.entropies_N, expected.entropies_N, atol=1e-5)
    assert found.squared_N is not None and expected.squared_N is not None
    assert torch.allclose(found.squared_N, expected.squared_N, atol=1e-5)


def trained(module: torch.nn.Module, job: TrainJob, steps: int = 2) -> tuple[torch.Tensor, dict[str, float]]:
    """The weights after some steps, and the metrics of the last."""
    learner, metrics = learning.Learner(module, job), dict[str, float]()
    for step in range(1, steps + 1):
        batch, _ = make_batch(replace(SHAPE, seed=SHAPE.seed + step))
        metrics = learner.step(replace(batch, step=step)).metrics
    return torch.cat([weight.detach().flatten() for weight in module.parameters()]), metrics


def test_a_job_shares_prefixes_unless_it_says_no_and_reports_the_tokens(make_model: MakeModel) -> None:
    kl = TrainJob(lr=1e-3, use_kl_loss=True)
    weights, metrics = trained(make_model(), kl)
    rows = build_rows(make_batch(replace(SHAPE, seed=SHAPE.seed + 2))[0])
    assert metrics["sharing/tokens"] == distinct_prefixes(rows)
    assert metrics["sharing/tokens_unshared"] == sum(sample.inputs for row in rows for sample in row.samples)
    assert metrics["sharing/fallbacks"] == 0
    unshared, apart = trained(make_model(), kl.model_copy(update={"share_prefixes": "off"}))
    assert not [name for name in apart if name.startswith("sharing/")]
    assert plain.relative_error(weights, unshared) < 1e-4


@pytest.mark.parametrize("lora_rank", [0, 4])
def test_layers_computed_again_over_a_tree_give_the_same_weights_to_the_bit(
    make_model: MakeModel, lora_rank: int
) -> None:
    found: list[torch.Tensor] = []
    for again in (False, True):
        job = TrainJob(lr=1e-2, lora_rank=lora_rank, enable_gradient_checkpointing=again, use_kl_loss=True)
        module = make_model()
        if lora_rank:
            adapters.add_adapter(module, job)
        weights, metrics = trained(module, job)
        assert metrics["sharing/fallbacks"] == 0
        found.append(weights)
    assert torch.equal(*found)


def test_a_model_in_bfloat16_shares_prefixes(make_model: MakeModel) -> None:
    weights, metrics = trained(make_model(dtype="bfloat16"), TrainJob(lr=1e-3))
    assert metrics["sharing/tokens"] < metrics["sharing/tokens_unshared"] and metrics["sharing/fallbacks"] == 0
    assert torch.isfinite(weights).all()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_that_cannot_share_is_trained_as_ever_and_the_reason_is_counted(
    make_model: MakeModel, family: str
) -> None:
    kind, sizes, reason = FAMILIES[family]
    weights, metrics = trained(random_model(kind, **sizes), TrainJob(lr=1e-3))
    unshared, _ = trained(random_model(kind, **sizes), TrainJob(lr=1e-3, share_prefixes="off"))
    if reason is None:
        assert metrics["sharing/fallbacks"] == 0
        assert metrics["sharing/tokens"] < metrics["sharing/tokens_unshared"]
        assert plain.relative_error(weights, unshared) < 1e-4
    else:
        assert metrics["sharing/fallbacks"] == metrics[f"sharing/fallbacks/{reason}"] == 1
        assert metrics["sharing/tokens"] == metrics["sharing/tokens_unshared"]
        assert torch.equal(weights, unshared)


def test_attention_that_is_not_torch_s_own_is_left_alone(make_model: MakeModel) -> None:
    module = make_model()
    module.config._attn_implementation = "eager"  # type: ignore[union-attr]
    _, metrics = trained(module, TrainJob())
    assert metrics["sharing/fallbacks/attention"] == metrics["sharing/fallbacks"] == 1
    assert module.config._attn_implementation == "eager"  # type: ignore[union-attr]


LAST_RIGHT = 16


def numbering_its_tokens(module: torch.nn.Module) -> torch.nn.Module:
    """The model with position handling of its own: from the 17th on, a token's place in its line matters besides the
    position that the model is given. In a tree that place is another."""

    def shift(_layer: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        hidden_STH = args[0]
        beyond_T = (torch.arange(hidden_STH.shape[1]) - LAST_RIGHT).clamp(min=0)
        return (hidden_STH + 0.05 * beyond_T[None, :, None], *args[1:])

    module.base_model.layers[0].register_forward_pre_hook(shift)  # type: ignore[union-attr, index]
    return module


@pytest.mark.parametrize("max_tokens", [64, 16_384])
def test_a_tree_that_gives_other_logprobs_is_not_trained_and_the_reason_is_counted(
    make_model: MakeModel, max_tokens: int
) -> None:
    job = TrainJob(lr=1e-3, ppo_max_token_len=max_tokens)
    weights, metrics = trained(numbering_its_tokens(make_model()), job)
    assert metrics["sharing/fallbacks"] == metrics["sharing/fallbacks/attention"] >= 1
    assert metrics["sharing/tokens"] == metrics["sharing/tokens_unshared"]
    unshared, _ = trained(numbering_its_tokens(make_model()), job.model_copy(update={"share_prefixes": "off"}))
    assert torch.equal(weights, unshared)
