"""How answers are found in a language model's text, and what is refused."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from researcher.claims import ClaimKind
from researcher.planner.language_model.answers import (
    DecideAnswer,
    PlanAnswer,
    Unusable,
    parse_answer,
    parse_claims,
    parse_program,
)

STOP = '{"action": "stop", "reason": "done"}'


@pytest.mark.parametrize(
    "text",
    [
        STOP,
        f"Here it is:\n```json\n{STOP}\n```\nI hope this helps.",
        f"```\n{STOP}\n```",
        f'<think>{{\'action\': \'refine\'}} or {{"action": "refine", "reason": "x"}}</think>\n{STOP}',
        f'The form is {{"action": "refine", "reason": "x"}}, so: {STOP} (final)',
        f"a {{ stray brace, then {STOP}",
    ],
)
def test_the_last_object_of_an_answer_counts_whatever_is_around_it(text):
    answer = parse_answer(text, DecideAnswer)
    assert (answer.action, answer.reason) == ("stop", "done")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no JSON object"),
        ("stop", "no JSON object"),
        ('{"action": "stop"', "no JSON object"),
        ('["stop"]', "no JSON object"),
        ('{"action": "pause", "reason": "x"}', "action: Input should be 'refine', 'confirm' or 'stop'"),
        ('{"action": "stop"}', "reason: Field required"),
        ('{"action": "stop", "reason": "   "}', "reason: String should have at least 1 character"),
        ('{"action": "stop", "reason": "x", "confidence": 1}', "confidence: there is no such field"),
        (
            '{"action": "stop", "reason": "x", "disqualified": [{"arm": "a", "reason": "x", "since": 1}]}',
            "disqualified.0.since: there is no such field",
        ),
    ],
)
def test_what_is_wrong_with_an_answer_is_named(text, message):
    with pytest.raises(Unusable, match=message):
        parse_answer(text, DecideAnswer)


@pytest.mark.parametrize("name", ["", "../x", "a|b", "<b>", "a\nb", "x" * 61, "-rf", "lr=1;rm"])
def test_names_of_arms_are_plain(name):
    with pytest.raises(Unusable, match=r"arms\.0\.name"):
        parse_answer(json.dumps({"rationale": "r", "arms": [{"name": name, "purpose": "r"}], "seeds": 3}), PlanAnswer)


def test_arms_and_hypotheses_are_bounded():
    arm = {"name": "a", "settings": {}, "purpose": "r"}
    for count in (0, 13):
        with pytest.raises(Unusable, match="arms"):
            parse_answer(json.dumps({"rationale": "r", "arms": [arm] * count, "seeds": 3}), PlanAnswer)


@given(st.text(max_size=200))
def test_any_text_is_parsed_or_refused(text):
    for parse in (lambda: parse_answer(text, DecideAnswer), lambda: parse_program(text), lambda: parse_claims(text)):
        try:
            parse()
        except Unusable:
            continue


def test_the_last_program_counts():
    text = "First:\n```python\nx = 1\n```\nBetter:\n```python\nx = 2\n```\n"
    assert parse_program(text) == "x = 2\n"


@pytest.mark.parametrize("text", ["", "x = 1", "```python\n\n```", "<think>```python\nx = 1\n```</think>"])
def test_an_answer_without_a_program_is_refused(text):
    with pytest.raises(Unusable, match="no fenced block"):
        parse_program(text)


def test_claims_are_read_without_thinking_and_bounded():
    claims = [{"claim": "better", "arm": "a", "other": "b", "number": 0.25}, {"claim": "opinion", "text": "Who knows."}]
    better, opinion = parse_claims(f"<think>hm</think>\n{json.dumps({'claims': claims})}")
    assert (better.kind, better.arm, better.other, better.number) == (ClaimKind.BETTER, "a", "b", 0.25)
    assert (opinion.kind, opinion.text) == (ClaimKind.OPINION, "Who knows.")
    for refused in ([], claims * 13, [{"claim": "victory", "arm": "a"}], [{"claim": "mean", "number": math.inf}]):
        with pytest.raises(Unusable):
            parse_claims(json.dumps({"claims": refused}))
    with pytest.raises(Unusable, match="no JSON object"):
        parse_claims("lr=0.1 is better.")
