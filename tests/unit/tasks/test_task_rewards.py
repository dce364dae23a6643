"""Every family pays 1.0 for a right attempt, 0.0 for any other, and nothing twice."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.errors import BadRequest, NotFound
from swarm.tasks import TASK_FAMILIES, calculate, task_family
from swarm.types import Task


def say(content):
    return {"role": "assistant", "content": content}


def call(expression, name="calculator"):
    function = {"name": name, "arguments": json.dumps({"expression": expression})}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "call_7", "type": "function", "function": function}],
    }


def make_task(family, **facts):
    return Task(main_query="q", task_id=f"{family}/x", metadata={"family": family, **facts})


@pytest.mark.parametrize(
    ("family", "query", "answer"),
    [
        ("reverse", "Reverse: ", lambda word: word[::-1]),
        ("copy", "Repeat: ", lambda word: word),
        ("sort", "Sort: ", lambda word: "".join(sorted(word))),
    ],
)
def test_word_families_pay_for_the_exact_answer(family, query, answer):
    for task in task_family(family).tasks("test", 50):
        word = task.main_query.removeprefix(query)
        for reply, reward in ((answer(word), 1.0), (f" {answer(word)}\n", 1.0), (answer(word) + "A", 0.0), ("", 0.0)):
            exchange = task_family(family).open(task)
            assert exchange.reply(say(reply)) is None
            assert exchange.reward == reward


def test_add_and_count_pay_for_the_right_number():
    for task in task_family("add").tasks("test", 30):
        x, y = map(int, task.main_query.removeprefix("What is ").removesuffix("?").split("+"))
        exchange = task_family("add").open(task)
        exchange.reply(say(str(x + y)))
        assert exchange.reward == 1.0
    for task in task_family("count").tasks("test", 30):
        letter, word = task.main_query.removeprefix("How many ").removesuffix("?").split(" in ")
        exchange = task_family("count").open(task)
        exchange.reply(say(str(word.count(letter))))
        assert exchange.reward == 1.0


def test_calc_answers_tool_calls_and_pays_for_the_final_answer():
    exchange = task_family("calc").open(make_task("calc", expression="12*34", answer="408"))
    assert exchange.reply(call("12*34")) == ({"role": "tool", "tool_call_id": "call_7", "content": "408"},)
    assert exchange.reward == 0.0
    assert exchange.reply(say("408")) is None
    assert exchange.reward == 1.0


def test_calc_ends_unpaid_when_the_turns_are_used_up_by_tool_calls():
    exchange = task_family("calc").open(make_task("calc", expression="12*34", answer="408"))
    replies = [exchange.reply(call("12*34")) for _ in range(3)]
    assert replies[1] is not None
    assert replies[2] is None
    assert exchange.reward == 0.0


@pytest.mark.parametrize(
    "message",
    [
        call("__import__('os')"),
        call("12**34"),
        call("9999999*2"),
        call("12*34", name="shell"),
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "calculator", "arguments": "{"}}]},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "calculator", "arguments": "7"}}]},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "a"}]},
    ],
)
def test_calc_answers_error_to_what_it_cannot_work_out(message):
    exchange = task_family("calc").open(make_task("calc", expression="12*34", answer="408"))
    assert exchange.reply(message)[0]["content"] == "error"


@given(x=st.integers(0, 999_999), y=st.integers(0, 999_999), operator=st.sampled_from("+-*"))
def test_calculator_agrees_with_integer_arithmetic(x, y, operator):
    expected = {"+": x + y, "-": x - y, "*": x * y}[operator]
    assert calculate(f"{x}{operator}{y}") == calculate(f" {x} {operator} {y} ") == str(expected)


@pytest.mark.parametrize("secret", range(1, 13))
def test_guess_is_always_won_by_halving(secret):
    exchange = task_family("guess").open(make_task("guess", secret=secret))
    lowest, highest = 1, 12
    while not exchange.is_over:
        guess = (lowest + highest) // 2
        hints = exchange.reply(say(str(guess)))
        if hints is not None:
            lowest, highest = (guess + 1, highest) if hints[0]["content"] == "higher" else (lowest, guess - 1)
    assert exchange.reward == 1.0


@pytest.mark.parametrize(("replies", "turns"), [(["3", "3", "3", "3"], 4), (["what?"], 1), ([""], 1), (["²"], 1)])
def test_guess_is_lost_by_four_misses_or_by_a_reply_that_is_no_number(replies, turns):
    exchange = task_family("guess").open(make_task("guess", secret=5))
    for reply in replies:
        exchange.reply(say(reply))
    assert exchange.is_over
    assert (exchange.reward, exchange.turns) == (0.0, turns)


def test_chain_pays_only_for_the_last_total():
    for last, reward in (("16", 1.0), ("15", 0.0)):
        exchange = task_family("chain").open(make_task("chain", terms=[3, 4, 8, 1]))
        assert exchange.reply(say("wrong")) == ({"role": "user", "content": "Add 8."},)
        assert exchange.reply(say("15")) == ({"role": "user", "content": "Add 1."},)
        assert exchange.reply(say(last)) is None
        assert exchange.reward == reward


@pytest.mark.parametrize("family", TASK_FAMILIES.values(), ids=TASK_FAMILIES.keys())
@pytest.mark.parametrize("content", ["", None, "nonsense", ["parts"]])
def test_nonsense_earns_nothing_and_always_ends(family, content):
    exchange = family.open(family.tasks("train", 1)[0])
    for _ in range(family.max_turns):
        if not exchange.is_over:
            exchange.reply(say(content))
    assert exchange.is_over
    assert exchange.reward == 0.0


def test_an_ended_attempt_takes_no_further_reply():
    exchange = task_family("reverse").open(make_task("reverse", answer="CBA"))
    exchange.reply(say("X"))
    with pytest.raises(BadRequest, match="over"):
        exchange.reply(say("CBA"))
    assert exchange.reward == 0.0


def test_tasks_of_another_family_and_unknown_families_are_refused():
    with pytest.raises(BadRequest, match="not of family 'reverse'"):
        task_family("reverse").open(task_family("sort").tasks("train", 1)[0])
    with pytest.raises(NotFound, match="reverse, copy, sort, add, count, calc, guess, chain"):
        task_family("juggle")
