"""The topic parser: tasks, factors and values as people write them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from researcher.errors import TopicInvalid
from researcher.planner.factors import FACTORS, FactorSpec
from researcher.planner.reading.refusal import nearest_topic
from researcher.planner.topic import LONGEST_TOPIC, parse_topic

TOPICS = Path(__file__).parents[2] / "topics"


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


@pytest.mark.parametrize("topic", (TOPICS / "ordinary.txt").read_text(encoding="utf-8").splitlines())
def test_ordinary_english_around_a_question_is_never_refused(topic: str) -> None:
    assert parse_topic(topic).not_understood == ()


@pytest.mark.parametrize(
    ("topic", "parts"),
    [
        ("Does shuffling the letters matter on sorting?", ["shuffling"]),
        ("Compare Adam and SGD on reverse", ["Adam", "SGD"]),
        ("Train a 7B model on MATH with PPO", ["7B model", "MATH", "PPO"]),
        ("Is Llama-3.1-8B easier to train than Qwen2.5?", ["Llama-3.1-8B", "Qwen2.5"]),
        ("beam width and temperature on sorting", ["beam width"]),
        ("Does an annealed learning rate help?", ["annealed"]),
        ("Is curriculum learning better than lr 1e-2 on chain?", ["curriculum learning"]),
        ("Does group size matter on sorting with 8 kangaroos?", ["8 kangaroos"]),
        ("learning rate for 5 letter words", ["5 letter"]),
        ("temperature on /nowhere/tasks.jsonl", ["/nowhere/tasks.jsonl"]),
        ("lr on sorting and on copying", ["copying"]),
        ("top_p 0.9 or 1.0 on sorting", ["top_p"]),
        ("KL on HotpotQA", ["HotpotQA"]),
        ("Does group size matter at equal tokens and at equal time?", ["at equal time"]),
        ("Does kangaroo_factor 3 help on sorting?", ["kangaroo_factor 3"]),
    ],
)
def test_parts_that_nothing_stands_for_are_named(topic: str, parts: list[str]) -> None:
    found = [part.text for part in parse_topic(topic).not_understood]

    assert found[: len(parts)] == parts or set(parts) <= set(found)


@pytest.mark.parametrize(
    "topic",
    [
        "Compare GRPO and RLOO on sorting with 8 GPUs and a learning rate of 1e-3 or 1e-2",
        "Does the learning rate matter in 2024 with 8 GPUs and 3 students?",
        "What learning rate, 2 hours, 30 % of the budget, 10 runs at most?",
        "Does group size matter? I have 4 A100s, 7 days and 12 ideas.",
        "Which temperature is best according to section 3.2 of the paper from 2019?",
        "How does lr compare over 5 seeds and 20 steps?",
    ],
)
def test_counts_and_years_and_shares_are_no_levels(topic: str) -> None:
    for factor in parse_topic(topic).factors:
        spec = next(spec for spec in FACTORS if spec.name == factor.name) if factor.name != "algorithm" else None
        allowed = {level.name for level in spec.grid} | {"lr=0.001", "lr=0.01"} if spec else {"grpo", "rloo"}
        assert {level.name for level in factor.levels} <= allowed


NOUNS = st.sampled_from(["GPUs", "students", "kangaroos", "letters", "ideas", "%", "hours", "years", "turns", "A100s"])
NUMBERS = st.one_of(st.integers(2, 5000).map(str), st.floats(0.01, 99).map(lambda value: f"{value:.3g}"))


@given(st.sampled_from([spec for spec in FACTORS if spec.numeric]), NUMBERS, NOUNS, st.booleans())
def test_number_that_stands_at_no_setting_never_becomes_a_level(
    spec: FactorSpec, number: str, noun: str, first: bool
) -> None:
    told = f"we have {number} {noun}"
    question = f"does {spec.name} matter on sorting"

    read = parse_topic(f"{told}, {question}?" if first else f"{question}, as {told}?")

    assert [[level.name for level in factor.levels] for factor in read.factors] == [[level.name for level in spec.grid]]


@given(st.lists(st.sampled_from([spec.name for spec in FACTORS if spec.name != "model"]), min_size=1, max_size=3))
def test_nearest_study_reads_back_as_the_same_study(names: list[str]) -> None:
    said = parse_topic(f"Compare {', '.join(dict.fromkeys(names))} on sorting, 5 seeds")

    again = parse_topic(nearest_topic(said, said.factors, "sort"))

    assert again.not_understood == () and (again.task, again.seeds) == ("sort", 5)
    levels = {factor.name: [level.name for level in factor.levels] for factor in again.factors}
    assert levels == {factor.name: [level.name for level in factor.levels] for factor in said.factors}


@pytest.mark.parametrize(
    ("topic", "goals"),
    [
        ("Which lr is best on sorting?", {"best"}),
        ("What matters more, lr or group size?", {"matters_more"}),
        ("Does the optimal lr depend on the group size?", {"best", "interaction"}),
        ("Does lr interact with temperature?", {"interaction"}),
        ("Find the lr where training diverges", {"diverges"}),
        ("Is gradient clipping needed?", {"needed"}),
        ("Does lr matter?", set()),
    ],
)
def test_what_is_asked_of_the_factors_is_read(topic: str, goals: set[str]) -> None:
    assert set(parse_topic(topic).goals) == goals


@pytest.mark.parametrize(
    ("topic", "compared_at", "amount"),
    [
        ("batch size 8 or 32 at the same number of tokens", "tokens", None),
        ("nano or micro at equal time", "time", None),
        ("batch size at equal steps", "steps", None),
        ("batch size with 200k tokens each", "tokens", 200_000),
        ("batch size, 5 minutes per run", "time", 300),
        ("batch size", None, None),
    ],
)
def test_at_what_arms_are_compared_is_read(topic: str, compared_at: str | None, amount: float | None) -> None:
    read = parse_topic(topic)

    assert (read.compared_at, read.amount, read.not_understood) == (compared_at, amount, ())


def test_reference_and_path_are_environments(tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text("")

    assert parse_topic("lr on reasoning_gym:chain_sum?").environment == "reasoning_gym:chain_sum"
    assert parse_topic(f"lr on {tmp_path}/tasks.jsonl, 3 seeds").environment == f"{tmp_path}/tasks.jsonl"


@pytest.mark.parametrize(
    ("topic", "levels"),
    [
        ("learning_rate=1e-4,1e-3 on sort", ["lr=0.0001", "lr=0.001"]),
        ("lr: {1e-4, 1e-3}", ["lr=0.0001", "lr=0.001"]),
        ("lr 5·10^-4 vs 2x10^-3", ["lr=0.0005", "lr=0.002"]),
        ("10x the learning rate", ["lr=0.001", "lr=0.01"]),
        ("twice the group size", ["num_repeat=8", "num_repeat=16"]),
        ("two epochs", ["ppo_epochs=1", "ppo_epochs=2"]),
        ("20 or 40 steps", ["total_steps=20", "total_steps=40"]),
        ("warmup 0 vs 10 steps", ["lr_warmup_steps=0", "lr_warmup_steps=10"]),
        ("max tokens 16 or 32", ["max_response_length=16", "max_response_length=32"]),
        ("nano or micro", ["nano", "micro"]),
        ("Is PPO clipping needed?", ["clip_ratio=0.2", "clip_ratio=1000"]),
    ],
)
def test_other_spellings_of_values_are_read(topic: str, levels: list[str]) -> None:
    read = parse_topic(topic)

    assert [[level.name for level in factor.levels] for factor in read.factors] == [levels]
    assert read.not_understood == ()
