"""docs/topics.md says what the planner understands: its table is that of the code, and its examples are read so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from researcher.planner.factors import ALGORITHMS, FACTORS, FactorSpec
from researcher.planner.topic import parse_topic

PAGE = (Path(__file__).parents[3] / "docs" / "topics.md").read_text(encoding="utf-8")
ROWS = {
    cells[0].strip("`"): cells[1:]
    for line in PAGE.splitlines()
    if line.startswith("| `") and len(cells := [cell.strip() for cell in line.strip("|").split("|")]) == 4
}


def test_page_lists_every_setting_and_no_other() -> None:
    assert list(ROWS) == [spec.name for spec in FACTORS]
    assert all(f"`{name}`" in PAGE for name, _ in ALGORITHMS)


@pytest.mark.parametrize("spec", FACTORS, ids=lambda spec: spec.name)
def test_row_of_a_setting_is_what_the_planner_does(spec: FactorSpec) -> None:
    words, levels, compared_at = ROWS[spec.name]

    assert compared_at == spec.compared_at
    assert re.findall(r"`([^`]+)`", levels) == [level.name.removeprefix(f"{spec.name}=") for level in spec.grid]
    names = [] if spec.name == "model" else [spec.name]
    for phrase in [*names, *re.findall(r"“([^”]+)”", words)]:
        read = parse_topic(f"Compare {phrase} on sorting")
        assert [factor.name for factor in read.factors] == [spec.name], phrase
        assert read.not_understood == (), phrase
