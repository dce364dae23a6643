"""docs/research.md says what can be asked: its tables are those of the code, and its words are read so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from researcher.question.factors import ALGORITHMS, SPECS, FactorSpec, why_no_factor
from researcher.question.flags import make_factor
from researcher.question.reader import read_topic
from swarm import TrainJob

PAGE = (
    (Path(__file__).parents[3] / "docs" / "research.md").read_text(encoding="utf-8").partition("\n## The factors\n")[2]
)
ROWS = {
    cells[0].strip("`"): cells[1:]
    for line in PAGE.splitlines()
    if line.startswith("| `") and len(cells := [cell.strip() for cell in line.strip("|").split("|")]) == 4
}


def test_every_setting_of_a_job_is_a_factor_or_has_a_reason() -> None:
    reasons = {name: why_no_factor(name) for name in TrainJob.model_fields}

    assert {name for name, reason in reasons.items() if reason is None} == set(SPECS)


def test_page_lists_every_factor_and_why_the_others_are_none() -> None:
    assert list(ROWS) == list(SPECS)
    assert all(f"`{name}`" in PAGE for name in ALGORITHMS)
    assert all(f"`{name}`" in PAGE for name in TrainJob.model_fields if why_no_factor(name))


@pytest.mark.parametrize("spec", SPECS.values(), ids=lambda spec: spec.name)
def test_row_of_a_factor_is_what_is_read(spec: FactorSpec) -> None:
    words, levels, needs = ROWS[spec.name]

    factor = make_factor(spec, spec.usual)
    assert re.findall(r"`([^`]+)`", levels) == [level.name.removeprefix(f"{spec.name}=") for level in factor.levels]
    assert re.findall(r"`([^`]+)`", needs) == list(spec.needs)
    for phrase in [spec.name, *re.findall(r"“([^”]+)”", words)]:
        read = read_topic(f"Does {phrase} matter on sorting?")
        assert read.names == {spec.name}, phrase
        assert read.unread == () or not spec.usual, phrase
