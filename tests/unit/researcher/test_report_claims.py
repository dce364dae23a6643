"""Which numbers of a text count as known, to the digits it gives."""

from __future__ import annotations

import pytest

from researcher.report.claims import check_claims

KNOWN = (0.8533, -0.1217, 0.0004, 0.001, 3.0, 30.0, 200.0)


@pytest.mark.parametrize(
    "text",
    [
        "It reaches 0.853.",
        "It reaches 0.85, nearly 0.9.",
        "It reaches 85.3% or 85 %.",
        "It loses 0.122 (-0.12).",
        "lr=0.001 and lr = 1e-3 are the same.",
        "p is 0.0004, or 4e-4.",
        "All 3 seeds of 30 steps, 200 episodes.",
        "Names such as seed-3x, nano2 or v1.2.3 are no numbers.",
        "1e99999 is no number, nor is anything at all.",
    ],
)
def test_known_numbers_pass(text):
    assert [sentence.unknown for sentence in check_claims(text, KNOWN)] == [()]


@pytest.mark.parametrize(
    ("text", "unknown"),
    [
        ("It reaches 0.86.", ("0.86",)),
        ("It reaches 0.8534.", ("0.8534",)),
        ("It reaches 86%.", ("86%",)),
        ("4 seeds of 30 steps.", ("4",)),
        ("lr=0.002 wins with 0.999.", ("0.002", "0.999")),
        ("It needs 1,000 steps.", ("1,000",)),
        ("It reaches 1e99 and 1e-99 of 0.85.", ("1e99", "1e-99")),
        ("9" * 400 + " is large.", ("9" * 400,)),
    ],
)
def test_unknown_numbers_are_named(text, unknown):
    [sentence] = check_claims(text, KNOWN)
    assert sentence.unknown == unknown


def test_only_the_sentence_with_the_unknown_number_is_marked():
    first, second, third = check_claims("It reaches 0.853. It would reach 0.99. That is all.", KNOWN)
    assert (first.unknown, second.unknown, third.unknown) == ((), ("0.99",), ())
    assert second.text == "It would reach 0.99."


def test_without_facts_no_number_is_known():
    assert check_claims("It reaches 0.", (float("nan"),))[0].unknown == ("0",)
