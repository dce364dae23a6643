"""Turns sampled under a grammar are trained in the distribution they were drawn from, or not at all."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from dataclasses import replace

import pytest
from changed_batches import with_samples
from constrained_rollouts import (
    COMPACT,
    END,
    OTHER_END,
    PERSON,
    TOKENIZER,
    TOOL_CALL,
    VOCABULARY,
    Stage,
    bundled_model,
    make_batch,
    schema,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from late import Late
from tests_support import examples
from tiny_models import random_model

from swarm.errors import EngineFailure
from swarm.job import TrainJob
from swarm.trainer.token_rows import build_rows
from swarm.types import Grammar, GrammarKind, Sample, SamplingParams, TrainBatch

torch, plain = Late("torch"), Late("plain_gradients")
learning, microbatches, updating = (
    Late(f"swarm.backends.local.learning.{name}") for name in ("learner", "microbatches", "updater")
)

WORDS = ("ab", "abcab", "b c", "cc", "ca")
WORDS_ONLY = Grammar(GrammarKind.REGEX, "|".join(WORDS))


@pytest.fixture(scope="module")
def stage() -> Stage:
    return Stage(bundled_model())


@pytest.fixture(scope="module")
def stages(stage: Stage) -> list[Stage]:
    """The bundled model, and two whose logits are random."""
    return [
        stage,
        *(Stage(random_model(vocab_size=VOCABULARY, max_position_embeddings=2048, seed=seed)) for seed in range(2)),
    ]


def gap(module: torch.nn.Module, stage: Stage, batch: TrainBatch) -> float:
    """The largest distance between recorded logprobs and the trainer's, in units of logits.

    A temperature below 1 enlarges the rounding of the logits that it divides.
    """
    followed = stage.grammars.follow(batch)
    rows = build_rows(followed.batch, followed.masks)
    micro = microbatches.collate(rows, range(len(rows)), torch.zeros(len(rows), 9999), torch.device("cpu"))
    with torch.no_grad():
        scores = updating.TokenScorer(module)(micro)
    assert torch.isfinite(scores.entropies_N).all()
    distances_RL = (micro.spread(scores.logprobs_N) - micro.rollout_logprobs_RL).abs()
    return (distances_RL * micro.spread(micro.temperatures_N).clamp(max=1.0)).max().item()


grammars = st.sampled_from(
    [
        None,
        TOOL_CALL,
        PERSON,
        COMPACT,
        WORDS_ONLY,
        Grammar(GrammarKind.REGEX, r"(a|b(c:){1,3}){0,4}( \{|a)"),
        schema({"enum": ["yes", "no", 7, -120]}),
    ]
)


@st.composite
def requests(draw: st.DrawFn) -> SamplingParams:
    return SamplingParams(
        max_tokens=draw(st.sampled_from([3, 40])),
        temperature=draw(st.sampled_from([0.0, 0.4, 1.0, 1.7])),
        seed=draw(st.integers(0, 2**32)),
        stop_token_ids=draw(st.sampled_from([(), (OTHER_END,)])),
        grammar=draw(grammars),
    )


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(st.lists(requests(), min_size=3, max_size=3), min_size=1, max_size=3), st.integers(0, 2))
def test_the_trainer_gives_each_token_the_logprob_that_the_engine_recorded(
    stages: list[Stage], rounds: list[list[SamplingParams]], number: int
) -> None:
    played = stages[number]
    batch = make_batch(played.play(rounds))
    largest = gap(played.module, played, batch)
    assert largest < 1e-5, f"largest logprob gap {largest:.2e}"


def test_without_the_masks_the_logprobs_would_be_far_off(stage: Stage) -> None:
    batch = make_batch(stage.play([[SamplingParams(40, seed=seed, grammar=PERSON) for seed in range(4)]]))
    free = with_samples(batch, lambda sample: replace(sample, constrained_turns=()))
    assert gap(stage.module, stage, free) > 1


def text_of(token_ids: Sequence[int]) -> str:
    return TOKENIZER.decode(list(token_ids), skip_special_tokens=False)


@functools.cache
def begins_a_word(before: str) -> list[int]:
    """Tokens after which the text still begins one of `WORDS`; the end where it is one."""
    fitting = [
        token
        for token in range(TOKENIZER.get_vocab_size())
        if (piece := text_of([token])) and any(word.startswith(before + piece) for word in WORDS)
    ]
    return [*fitting, END] if before in WORDS else fitting


def allowed(sample: Sample, position: int) -> list[int] | None:
    """What `WORDS_ONLY` allows, by comparing strings."""
    turn = sample.turn_indices_T[position]
    if turn not in [each.index for each in sample.constrained_turns]:
        return None
    return begins_a_word(text_of(sample.token_ids_T[sample.turn_indices_T.index(turn) : position]))


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_the_gradient_equals_a_plain_implementation_over_the_allowed_tokens(
    stages: list[Stage], temperature: float
) -> None:
    stage = stages[1]
    params = [
        SamplingParams(9, temperature, seed=seed, grammar=None if seed % 4 == 3 else WORDS_ONLY) for seed in range(16)
    ]
    episodes = stage.play([params[:8], params[8:]])
    batch = make_batch(episodes)
    # Off the sampling policy, so that ratios differ from 1 and some are clipped.
    module, reference = plain.nudged(stage.module), plain.nudged(plain.nudged(stage.module))
    job = TrainJob(temperature=temperature, use_kl_loss=True, kl_loss_coef=0.1, entropy_coeff=0.03)
    _, gradient = plain.learner_gradient(module, job, batch, reference, grammars=stage.grammars)
    _, expected = plain.plain_gradient(
        module,
        lambda: torch.cat(
            plain.plain_terms(module, batch, temperature, plain.group_advantages, reference, allowed)
        ).mean(),
    )
    error = plain.relative_error(gradient, expected)
    assert torch.isfinite(gradient).all()
    assert error < 1e-5, f"relative gradient error {error:.2e}"


def test_importance_weights_are_one_on_constrained_tokens_of_the_present_weights(stage: Stage) -> None:
    params = [SamplingParams(40, seed=seed, grammar=[PERSON, TOOL_CALL, None][seed % 3]) for seed in range(8)]
    batch = make_batch(stage.play([params]))
    job = TrainJob(rollout_is="token", mini_batch_num=2, max_staleness=1, lr=1e-6)
    report = learning.Learner(bundled_model(), job, stage.grammars).step(batch, weight_version=0)
    assert report.metrics["training/rollout_logprob_gap_max"] < 1e-5
    assert report.metrics["rollout_corr/rollout_is_min"] == pytest.approx(1, abs=1e-4)
    assert report.metrics["rollout_corr/rollout_is_max"] == pytest.approx(1, abs=1e-4)


def under(batch: TrainBatch, grammar: Grammar, *episodes: str) -> TrainBatch:
    """Says of the turns of these episodes that they were sampled under another grammar than they were."""

    def change(sample: Sample) -> Sample:
        if sample.episode_id not in episodes:
            return sample
        return replace(
            sample, constrained_turns=tuple(replace(turn, grammar=grammar) for turn in sample.constrained_turns)
        )

    return with_samples(batch, change)


@pytest.mark.parametrize(
    ("grammar", "reason"), [(WORDS_ONLY, "does not allow its token 0"), (Grammar(GrammarKind.REGEX, "("), "enforced")]
)
def test_a_turn_whose_grammar_cannot_be_followed_is_left_out_and_counted(
    stage: Stage, caplog: pytest.LogCaptureFixture, grammar: Grammar, reason: str
) -> None:
    free = [SamplingParams(12, seed=seed) for seed in range(4)]
    bound = [SamplingParams(12, seed=seed, grammar=PERSON) for seed in range(4)]
    episodes = stage.play([free, bound])
    batch = under(make_batch(episodes), grammar, "episode-1")
    with caplog.at_level(logging.WARNING):
        report = learning.Learner(bundled_model(), TrainJob(), stage.grammars).step(batch, weight_version=0)
    left_out = len(episodes[1][1].output_ids_T)
    assert report.metrics["grammar/turns"] == 3
    assert report.metrics["grammar/turns_left_out"] == 1
    assert report.metrics["grammar/tokens_left_out"] == left_out
    assert report.metrics["rollout/trained_tokens"] == sum(e.trained_tokens for e in batch.episodes) - left_out
    assert report.metrics["training/rollout_logprob_gap_max"] < 1e-5
    assert "turn 1 of episode episode-1 is not trained" in caplog.text
    assert reason in caplog.text
    without = make_batch([turns[: 1 if number == 1 else 2] for number, turns in enumerate(episodes)])
    again = learning.Learner(bundled_model(), TrainJob(), stage.grammars).step(without, weight_version=0)
    assert report.metrics["actor/grad_norm"] == pytest.approx(again.metrics["actor/grad_norm"], rel=1e-5)


def test_what_has_nothing_else_to_train_is_left_out_with_the_turn(stage: Stage) -> None:
    batch = make_batch(stage.play([[SamplingParams(12, seed=seed, grammar=PERSON) for seed in range(8)]]))
    batch = under(batch, WORDS_ONLY, *(f"episode-{number}" for number in (1, 4, 5, 6, 7)))
    report = learning.Learner(bundled_model(), TrainJob(), stage.grammars).step(batch, weight_version=0)
    assert (report.metrics["rollout/episodes"], report.metrics["rollout/groups"]) == (3, 1)
    assert set(report.advantages) == {"episode-0", "episode-2", "episode-3"}
    batch = under(batch, WORDS_ONLY, "episode-0", "episode-2", "episode-3")
    report = learning.Learner(bundled_model(), TrainJob(), stage.grammars).step(batch, weight_version=0)
    assert (report.metrics["rollout/episodes"], report.metrics["grammar/turns_left_out"]) == (0, 8)


def test_a_learner_that_cannot_follow_grammars_refuses_constrained_turns(stage: Stage) -> None:
    batch = make_batch(stage.play([[SamplingParams(12, seed=seed, grammar=PERSON) for seed in range(4)]]))
    with pytest.raises(EngineFailure, match="turn 0 of episode episode-0 was sampled under a grammar"):
        learning.Learner(bundled_model(), TrainJob()).step(batch)
