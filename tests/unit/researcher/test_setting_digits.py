"""A setting keeps its digits wherever it is written, and shows none of a computer's own."""

from __future__ import annotations

import pytest

from experiments_db import number_as_text
from researcher.planner.designs import default_job
from researcher.question.reader import read_topic
from researcher.report.render import format_value
from researcher.scope import Scope
from researcher.search.rules import default_space
from ui import formats

WRITTEN = [(0.000166, "0.000166"), (1.2345678e-5, "1.2345678e-05"), (3 * 0.1, "0.3"), (0.003, "0.003"), (1e-6, "1e-06")]


@pytest.mark.parametrize(("value", "text"), WRITTEN)
def test_report_explorer_and_names_of_arms_write_a_setting_the_same_way(value: float, text: str) -> None:
    assert {number_as_text(value), format_value(value), formats.setting(value)} == {text}


def test_two_close_learning_rates_are_two_arms_by_their_names() -> None:
    parsed = read_topic("lr 0.00016612 or 0.00016615 for reverse")
    [factor] = parsed.factors
    assert [level.name for level in factor.levels] == ["lr=0.00016612", "lr=0.00016615"]


def test_multiples_of_a_learning_rate_are_decimal_numbers() -> None:
    job = default_job("reverse", steps=None, base={}) | {"lr": 0.003}
    rates = {level.name: level.settings["lr"] for level in default_space(job, (), (), Scope())[0].levels}
    assert rates == {"lr=0.0003": 0.0003, "lr=0.0009": 0.0009, "lr=0.003": 0.003, "lr=0.009": 0.009, "lr=0.03": 0.03}
