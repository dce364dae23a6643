"""Built-in graders: what a careful person would call right is right, and nothing else."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.environments.graders.replies import GRADERS, known_reply, last_number

RIGHT = [
    ("exact", " PZA\n", "PZA"),
    ("exact", "7", 7),
    ("number", "The total is $1,234.50.", 1234.5),
    ("number", "3 + 4 = 7", "7"),
    ("number", "it is -3", "-3.0"),
    ("number", "so 18 in all.", "16 - 3 - 4 = 9\n9 * 2 = 18\n#### 18"),
    ("number", "about 2e-4", 0.0002),
    ("number", "they are 1,2,3", 3),
    ("number", "2, as of version 1.2.3", 2),
    ("regex", "yes", "yes|y"),
    ("json", '{"b": [1, 2], "a": null}', '{"a": null, "b": [1, 2]}'),
    ("json", '```json\n{"a": 1}\n```', {"a": 1}),
    ("json", '{"a": [1.0]}', {"a": [1]}),
    ("maths", r"$\frac{1}{2}$", "0.5"),
    ("maths", "$x^2 + 2x + 1$", "$(x+1)^2$"),
]
WRONG = [
    ("exact", "pza", "PZA"),
    ("number", "7 apples and 3 pears", "7"),
    ("number", "no idea", "7"),
    ("number", "71", "7"),
    ("regex", "yes please", "yes|y"),
    ("json", '{"a": true}', {"a": 1}),
    ("json", "a: 1", {"a": 1}),
    ("json", '{"a": 1, "b": 2}', {"a": 1}),
    ("json", "[" * 100_000, {"a": 1}),
    ("maths", "$x^2 + 1$", "$(x+1)^2$"),
]


@pytest.mark.parametrize(("name", "reply", "expected"), RIGHT)
def test_right_replies_are_right(name: str, reply: str, expected: object) -> None:
    assert GRADERS[name](reply, expected)


@pytest.mark.parametrize(("name", "reply", "expected"), WRONG)
def test_wrong_replies_are_wrong(name: str, reply: str, expected: object) -> None:
    assert not GRADERS[name](reply, expected)


@pytest.mark.parametrize("name", GRADERS)
def test_no_answer_is_not_right(name: str) -> None:
    assert not GRADERS[name]("", "7")


@pytest.mark.parametrize(("name", "expected"), [("number", "seven"), ("regex", "("), ("json", "{"), ("maths", "")])
def test_an_expected_value_that_cannot_be_used_is_told(name: str, expected: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        GRADERS[name]("7", expected)


@given(st.floats(allow_nan=False, allow_infinity=False, width=32), st.text(alphabet="abc ,.:$=\n", max_size=20))
def test_a_number_is_read_wherever_it_ends_a_reply(number: float, words: str) -> None:
    found = last_number(f"{words} {number!r}")
    assert found is not None and math.isclose(float(found), number, rel_tol=1e-9)


@given(st.integers(-(10**15), 10**15))
def test_thousands_may_be_separated(number: int) -> None:
    assert last_number(f"= {number:,}.") == number


@pytest.mark.parametrize("unit", ["1.", "1", "1,", "1,111", "1.1.", "-", ".", "1e"])
@pytest.mark.timeout(400)
def test_a_long_reply_takes_linear_time(unit: str) -> None:
    last_number(unit * 300_000)


@pytest.mark.parametrize(
    ("name", "expected", "reply"),
    [
        ("json", {"a": 1}, '{"a": 1}'),
        ("json", "[1]", "[1]"),
        ("number", 7, "7"),
        ("regex", "a+", None),
        ("exact", None, None),
    ],
)
def test_a_reply_that_is_right_is_known_but_for_patterns(name: str, expected: object, reply: str | None) -> None:
    assert known_reply(name, expected) == reply
