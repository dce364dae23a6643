"""How much of the graded replies the model wrote: what honest agents do with an answer, and what a cheat does."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.rollout.model_share import MAX_REPLIES, MAX_WRITTEN, share_written

ESSAY = (
    "First I add twelve and thirty, which is 42. Then I look at the units again, and they are metres, so it is 42 m."
)
words = st.lists(st.text("abcdefghij", min_size=1, max_size=6), min_size=1, max_size=40)


@pytest.mark.parametrize(
    ("reply", "written"),
    [
        ("42", ["I think it is 42."]),
        ("42", ["17", "the answer: 42"]),
        ("42", ["it is 42km"]),
        ("42.0", ["42"]),
        ("1000", ["1,000 apples"]),
        ("  Hello WORLD \n", ["hello, world"]),
        ('{"answer": 42}', ["42"]),
        ('```json\n{"answer": "a long and winding road", "unit": "m"}\n```', ["a long and winding road, in m"]),
        ("<answer>42</answer>", ["so 42"]),
        (r"\boxed{42}", ["42"]),
        ("café", ['{"word": "caf\\u00e9"}']),
        ("Hello there", ["<b>Hello</b> there"]),
        ("4 2", ["４ ２"]),
        ("三十", ["答案是三十。"]),
        ("(()())", ["try (()()) first"]),
        ("red\nblue", ["blue it is", "red it is"]),
        (ESSAY, [ESSAY]),
    ],
)
def test_what_an_agent_takes_out_strips_or_wraps_is_the_models(reply: str, written: list[str]) -> None:
    assert share_written([reply], written) == 1.0


@pytest.mark.parametrize(
    ("reply", "written"),
    [
        ("42", ["17"]),
        ("42", []),
        ("4", ["42"]),
        ("42", ["4 and then 2"]),
        ("The answer is 42", ["The answer is 17"]),
        ("<answer>42</answer>", ["<answer>17</answer>"]),
        ('{"answer": 42}', ['{"answer": 17}']),
        ("olleh", ["hello"]),
        ("world hello", ["hello world"]),
        ("(()())", ["()"]),
        ("三十一", ["三十"]),
    ],
)
def test_an_answer_of_the_agents_own_is_not(reply: str, written: list[str]) -> None:
    assert share_written([reply], written) == 0.0


def test_an_agent_that_adds_a_little_to_a_long_text_gets_most() -> None:
    share = share_written([f"Note: {ESSAY}"], [ESSAY])
    assert share is not None and 0.9 < share < 1


def test_replies_without_text_have_no_share() -> None:
    assert share_written([], ["42"]) is None
    assert share_written(["", " \n"], ["42"]) is None
    assert share_written(["", "42"], ["42"]) == 1.0


@given(words, words, st.data())
def test_a_passage_of_the_model_is_its_own_whatever_stands_around_it(
    before: list[str], after: list[str], data: st.DataObject
) -> None:
    text = [*before, *after]
    start = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.integers(start + 1, len(text)))
    assert share_written([" ".join(text[start:end])], ["x " + "\n".join(text)]) == 1.0


@given(words, words)
def test_words_that_the_model_never_wrote_have_no_share(own: list[str], foreign: list[str]) -> None:
    replies = [" ".join(word.translate(str.maketrans("abcdefghij", "klmnopqrst")) for word in foreign)]
    assert share_written(replies, [" ".join(own)]) == 0.0


@given(st.lists(st.text(max_size=60), max_size=5), st.lists(st.text(max_size=60), max_size=5))
def test_a_share_is_between_0_and_1_and_does_not_depend_on_the_order(replies: list[str], written: list[str]) -> None:
    share = share_written(replies, written)
    assert share is None or 0 <= share <= 1
    assert share == share_written(replies[::-1], written[::-1])


@given(st.lists(st.text(max_size=80), min_size=1, max_size=4))
def test_replies_passed_on_unchanged_are_wholly_the_models(replies: list[str]) -> None:
    assert share_written(replies, replies) in {None, 1.0}


def test_what_is_beyond_the_bound_is_not_the_models_and_takes_no_time() -> None:
    began = time.process_time()
    share = share_written(["word " * MAX_REPLIES, "[" * 100_000], ["word " * MAX_WRITTEN, "<a" * MAX_WRITTEN])
    assert share is not None and share < 0.5
    assert time.process_time() - began < 20
    assert share_written([json.dumps([[["42"]]])], ["42"]) == 1.0
