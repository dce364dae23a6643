"""The topic parser: tasks, factors and values as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from researcher.errors import TopicInvalid
from researcher.planner.topic import LONGEST_TOPIC, parse_topic


@pytest.mark.parametrize(
    ("topic", "task"),
    [
        ("Which learning rate trains word reversal best, 1e-4, 1e-3 or 1e-2?", "reverse"),
        ("Does group size matter for the guessing game?", "guess"),
        ("tool use: KL or no KL?", "calc"),
        ("reversing words", "reverse"),
        ("Is sorting letters hard?", "sort"),
        ("copying with larger batches", "copy"),
        ("addition with RLOO", "add"),
        ("Does adding a KL penalty help reversal?", "reverse"),
        ("Does adding tools help?", "calc"),
        ("counting letters", "count"),
        ("the chain task with more epochs", "chain"),
        ("keeping a running total", "chain"),
        ("tool calling and temperature", "calc"),
        ("chain of thought in language models", None),
        ("What makes agents learn fast?", None),
    ],
)
def test_task_is_recognized_by_the_names_people_use(topic: str, task: str | None) -> None:
    assert parse_topic(topic).task == task


@pytest.mark.parametrize(
    ("topic", "levels"),
    [
        ("learning rate 1e-4, 1e-3 or 1e-2", ["lr=0.0001", "lr=0.001", "lr=0.01"]),
        ("Compare 3 learning rates: 1e-4, 1e-3 and 1e-2", ["lr=0.0001", "lr=0.001", "lr=0.01"]),
        ("0.001 or 0.01 as learning rate", ["lr=0.001", "lr=0.01"]),
        ("lr 10^-3 vs 10^-2", ["lr=0.001", "lr=0.01"]),
        ("lr of .001 vs. .003", ["lr=0.001", "lr=0.003"]),
        ("Does a learning rate of 3e-3 help?", ["lr=0.001", "lr=0.003"]),
        ("learning rate", ["lr=0.0003", "lr=0.001", "lr=0.003"]),
        ("Does group size matter?", ["num_repeat=2", "num_repeat=4", "num_repeat=8", "num_repeat=16"]),
        ("Are 16 episodes per group better than 4?", ["num_repeat=16", "num_repeat=4"]),
        ("group sizes 2, 4", ["num_repeat=2", "num_repeat=4"]),
        ("KL or no KL?", ["no-kl", "kl"]),
        ("with and without a KL penalty", ["no-kl", "kl"]),
        ("KL coefficient", ["kl_loss_coef=0", "kl_loss_coef=0.01", "kl_loss_coef=0.1"]),
        ("KL coefficient 0, 0.1 or 0.3", ["kl_loss_coef=0", "kl_loss_coef=0.1", "kl_loss_coef=0.3"]),
        ("KL 0.1 or 0.01", ["kl_loss_coef=0.1", "kl_loss_coef=0.01"]),
        ("KL estimator k1 or k3", ["k1", "k3"]),
        ("temperature 0.5 vs 1.0", ["temperature=0.5", "temperature=1"]),
        ("batch size 8 and 32", ["batch_size=8", "batch_size=32"]),
        ("2 minibatches vs 4 minibatches", ["mini_batch_num=2", "mini_batch_num=4"]),
        ("ppo epochs", ["ppo_epochs=1", "ppo_epochs=2", "ppo_epochs=4"]),
        ("clip ratio 0.1 or 0.2", ["clip_ratio=0.1", "clip_ratio=0.2"]),
        ("Does clip-higher help?", ["clip_ratio_high=0.2", "clip_ratio_high=0.28"]),
        ("token-mean or seq-mean-token-mean", ["token-mean", "seq-mean-token-mean"]),
        ("GRPO, Dr.GRPO or RLOO", ["grpo", "dr.grpo", "rloo"]),
        ("dr grpo vs reinforce++ vs reinforce++-baseline", ["dr.grpo", "reinforce++", "reinforce++-baseline"]),
        ("Does RLOO help?", ["grpo", "rloo"]),
        ("GSPO or CISPO", ["gspo", "cispo"]),
        ("which algorithm is best?", ["grpo", "rloo", "reinforce++"]),
        ("std normalization", ["std-norm", "no-std-norm"]),
    ],
)
def test_named_factor_has_exactly_the_levels_of_the_topic(topic: str, levels: list[str]) -> None:
    factors = parse_topic(topic).factors

    assert [[level.name for level in factor.levels] for factor in factors] == [levels]


def test_two_factors_keep_their_own_values() -> None:
    parsed = parse_topic("learning rate 1e-4 or 1e-3 and group size 4 or 8 for sorting")

    assert {factor.name: [level.name for level in factor.levels] for factor in parsed.factors} == {
        "lr": ["lr=0.0001", "lr=0.001"],
        "num_repeat": ["num_repeat=4", "num_repeat=8"],
    }


def test_counts_of_seeds_and_steps_are_no_values() -> None:
    parsed = parse_topic("temperature 0.5 vs 1.0 in the guessing game with 5 seeds and 20 steps")

    assert (parsed.seeds, parsed.steps) == (5, 20)
    assert [level.name for level in parsed.factors[0].levels] == ["temperature=0.5", "temperature=1"]


def test_one_algorithm_beside_another_factor_is_taken_for_granted() -> None:
    parsed = parse_topic("Does group size matter for RLOO on addition?")

    assert [factor.name for factor in parsed.factors] == ["num_repeat"]
    assert parsed.algorithm is not None and parsed.algorithm.name == "rloo"


def test_topic_that_names_nothing_known_has_no_factor_and_no_task() -> None:
    parsed = parse_topic("What makes agents learn fast?")

    assert (parsed.task, parsed.factors, parsed.algorithm) == (None, (), None)


@pytest.mark.parametrize("topic", ["", "  \n ", "x" * (LONGEST_TOPIC + 1)])
def test_topic_without_content_or_end_is_refused(topic: str) -> None:
    with pytest.raises(TopicInvalid):
        parse_topic(topic)


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(topic: str) -> None:
    try:
        parse_topic(topic)
    except TopicInvalid:
        assert not topic.strip()


@given(st.lists(st.integers(1, 9999).map(lambda n: n / 10_000), min_size=2, max_size=6, unique=True))
def test_every_listed_learning_rate_becomes_a_level_in_order(rates: list[float]) -> None:
    listed = ", ".join(map(repr, rates[:-1])) + f" or {rates[-1]!r}"

    levels = parse_topic(f"Which learning rate is best for sorting: {listed}?").factors[0].levels

    assert [level.settings["lr"] for level in levels] == rates
