"""Numbers, foreign text, tokens, files, differences and downloads as they are shown."""

from __future__ import annotations

import io
import math
import os
import sys
from html.parser import HTMLParser
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
from explorer_samples import HOSTILE
from hypothesis import given, settings
from hypothesis import strategies as st

from ui import formats, study_files, token_view
from ui.tables.filters import UnreadableFilter, parse_filter

FOREIGN = st.text(alphabet=st.characters(codec="utf-8", exclude_categories=["Cs", "Cc", "Zl", "Zp", "Zs"]), min_size=1)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "–"), (0.2, "0 s"), (59, "59 s"), (247, "4 min 7 s"), (11_520, "3 h 12 min"), (187_200, "2 d 4 h")],
)
def test_durations_have_their_two_largest_units(seconds: float | None, text: str) -> None:
    assert formats.duration(seconds) == text


def test_numbers_that_are_not_finite_are_missing() -> None:
    assert formats.score(math.nan) == formats.change(math.inf) == formats.score(None) == "–"
    assert formats.delta(0.0002) == 0 and formats.delta(-0.0007) == "-0.001" and formats.delta(None) is None
    assert formats.score(0.85749) == "0.857" and formats.probability(0.0004) == "< 0.001"


def parse_inline(text: str) -> list[Any]:
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark").parseInline(text)


@given(FOREIGN)
@settings(deadline=None)
def test_foreign_text_survives_markdown_as_it_is(text: str) -> None:
    tokens = parse_inline(formats.plain(text))
    children = tokens[0].children or []
    assert {child.type for child in children} <= {"text", "text_special"}
    assert "".join(child.content for child in children) == text


@given(FOREIGN)
@settings(deadline=None)
def test_foreign_names_are_one_code_span(text: str) -> None:
    tokens = parse_inline(formats.name(text))
    assert [(child.type, child.content) for child in tokens[0].children or []] == [("code_inline", text)]


def test_terminal_colours_and_control_characters_are_dropped() -> None:
    assert formats.printable("\x1b[31mred\x1b[0m\x00 a\r\nb\tc") == "red a\nb\tc"
    # These cannot be sent to a browser, or would turn the text behind them.
    assert formats.printable("a\ud800b\u202ec\u2066") == "a<U+D800>b<U+202E>c<U+2066>"
    formats.plain("\udfff").encode()


class _Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        assert {name for name, _ in attrs} <= {"style", "title"}

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("coloring", list(token_view.Coloring))
@given(tokens=st.lists(FOREIGN, max_size=5))
@settings(deadline=None)
def test_tokens_are_escaped_in_every_colouring(coloring: token_view.Coloring, tokens: list[str]) -> None:
    sample = {
        "tokens": [*tokens, HOSTILE, '"><img src=x>'],
        "token_ids": [1],
        "loss_mask": [True, False],
        "logprobs": [-0.5, None, math.nan],
        "weight_versions": [3, -1, None, 2],
    }
    page = _Text()
    page.feed(token_view.render(sample, coloring))
    assert page.tags == {"div", "span"}
    assert page.text == "".join(sample["tokens"])


def test_a_sample_without_texts_shows_its_ids() -> None:
    assert "[7]" in token_view.render({"token_ids": [7]}, token_view.Coloring.MASK)


def test_tokens_that_are_no_text_are_visible() -> None:
    tokens = ["\x00", "\x1b", "\n", "\u202e", "\ud800", "a" * 100_000]
    shown = token_view.render({"tokens": tokens}, token_view.Coloring.MASK)
    assert all(
        mark in shown for mark in ("&lt;0x00&gt;", "&lt;0x1B&gt;", "⏎", "&lt;U+202E&gt;", "&lt;U+D800&gt;", "aaa…")
    )
    assert len(shown) < 3000


def test_only_trained_tokens_have_the_colour_of_the_advantage() -> None:
    sample = {"tokens": ["a", "b"], "loss_mask": [False, True]}
    colors = {
        value: token_view.render(sample, token_view.Coloring.ADVANTAGE, advantage=value)
        for value in (1.5, -1.5, 0.1, None)
    }
    assert len(set(colors.values())) == 4 and "advantage 1.5" in colors[1.5]
    assert all(shown.count(token_view.CONTEXT) == (2 if value is None else 1) for value, shown in colors.items())


def test_files_are_found_in_the_study_folder_wherever_it_was_moved(tmp_path: Path) -> None:
    log = tmp_path / "studies" / "st-1" / "runs" / "run-1" / "client.log"
    log.parent.mkdir(parents=True)
    log.write_text("one\ntwo\n")
    for stored in (str(log), *(f"{place}/studies/st-1/runs/run-1/client.log" for place in ("runs", "/elsewhere"))):
        assert study_files.locate(tmp_path, "st-1", stored) == log.resolve()


def test_nothing_outside_of_the_study_folder_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "studies" / "st-1"
    folder.mkdir(parents=True)
    secret = tmp_path / "secret"
    secret.write_text("key")
    (folder / "link").symlink_to(secret)
    os.mkfifo(folder / "pipe")
    stored = ["/etc/passwd", str(secret), "st-1/../../secret", f"{folder}/../../secret", f"{folder}/link"]
    stored += [f"{folder}/pipe", f"{folder}/none", str(folder), "st-1//etc/passwd", "st-1/\x00"]
    assert [study_files.locate(tmp_path, "st-1", item) for item in stored] == [None] * len(stored)


def test_the_tail_of_a_log_begins_with_a_whole_line(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"first line\nsecond \xff line\nthird\n")
    assert study_files.tail(log, 20) == ("third\n", True)
    assert study_files.tail(log)[0].startswith("first line\nsecond � line")


def test_only_settings_that_differ_are_listed() -> None:
    from ui import differences

    old = {"lr": 0.001, "seed": 1, "nested": {"a": 1, "b": [1, 2]}, "gone": None}
    new = {"lr": 0.01, "seed": 2, "nested": {"a": 1, "b": [1, 3]}, "new": True}
    table = differences.differing_settings([("Setting", old), ("new", new)])
    assert table.index.to_list() == ["gone", "lr", "nested.b", "new"]
    assert table.loc["lr"].to_list() == ["0.001", "0.01"]
    assert table.loc["gone"].to_list() == ["null", "–"]


def test_the_same_program_has_no_diff() -> None:
    from ui import differences

    assert differences.code_diff("a\nb", "a\nb", old_name="x", new_name="y") == ""
    assert "+c" in differences.code_diff("a\nb", "a\nc", old_name="x", new_name="y")


def test_tables_are_downloaded_whole_and_formulas_defused() -> None:
    import pandas as pd

    from ui.tables import listing

    frame = pd.DataFrame({"arm": ["=1+1", "b"], "factor": [0.5, "high"], "score": [0.25, None]})
    assert pd.read_csv(io.BytesIO(listing.to_csv(frame)))["arm"].to_list() == ["'=1+1", "b"]


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


def test_no_module_of_the_explorer_hides_an_installed_one() -> None:
    folder = Path(study_files.__file__).parent
    names = {path.stem for path in folder.iterdir() if path.suffix == ".py" or path.is_dir()} - {"__init__"}
    assert not names & (set(sys.stdlib_module_names) | set(packages_distributions()))
