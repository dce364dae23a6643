"""Filter expressions of tables."""

from __future__ import annotations

import pytest

from ui.tables.filters import UnreadableFilter, parse_filter

ROW = {
    "status": "complete", "lr": 1e-3, "note": "figure two", "tag": ("paper", "old"), "score": None, "guard.patience": 3,
    "is_on": True, "model": "nano",
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("", True),
        ("lr>=1e-3", True),
        ("lr = 0.001", True),
        ("lr<0.001", False),
        ("status=Complete model!=micro", True),
        ("status=complete model=micro", False),
        ("figure", True),
        ('"figure two"', True),
        ('"two figure"', False),
        ("note~TWO", True),
        ("tag=paper", True),
        ("tag!=paper", False),
        ("tag!=new", True),
        ("score>0", False),
        ("score!=1", True),
        ("patience=3", True),
        ("is_on=true", True),
        ("LR=0.001", True),
    ],
)
def test_a_row_is_kept_if_every_part_of_the_expression_holds(text: str, kept: bool) -> None:
    assert parse_filter(text, ROW).keeps(ROW) is kept


@pytest.mark.parametrize(
    ("text", "named"),
    [("lrr>1", "lr"), ("lr>fast", "number"), ('note="a', '"a'), ("=3", "=3"), ("x.y=1", "x.y"), ("lr>", "lr>")],
)
def test_an_expression_that_cannot_be_read_says_which_part(text: str, named: str) -> None:
    with pytest.raises(UnreadableFilter, match=named):
        parse_filter(text, ROW)


def test_the_columns_of_an_expression_are_known() -> None:
    assert parse_filter("lr>0 word status=a lr<1", ROW).names == ("lr", "status")
