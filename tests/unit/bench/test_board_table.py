"""The record of versions and the page that is written from it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from bench.board.checkout import Tree
from bench.board.figures import FIGURES, Probe
from bench.board.table import BEGIN, END, main, render_change, render_tables
from bench.board.verdict import Change, Verdict
from bench.board.versions import StoredResultInvalid, build_document, read_documents, store_document
from bench.results import Conditions

OLD = Tree(Path("old"), "1.0", "a" * 12)
SAME = Change(100.0, 101.0, 9, Verdict.WITHIN_NOISE, -0.01, -0.034, 0.012)
WORSE = Change(123.4, 100.0, 9, Verdict.WORSE, 0.21, 0.184, 0.239)


def build(commit: str, day: int, cpu: str = "Some CPU @ 3 GHz", **changes: Change) -> dict[str, Any]:
    conditions = Conditions(f"2026-01-{day:02}T12:00:00+00:00", "0", None, cpu, 2, 0.5, 540.0)
    skipped = {Probe.CONTROL_PLANE: "why"} if "server_cpu" not in changes else {}
    return build_document(Tree(Path("new"), "2.0", commit), OLD, conditions, changes, skipped)


def call(*arguments: str) -> Result:
    app = typer.Typer()
    app.command()(main)
    return CliRunner().invoke(app, arguments)


@pytest.fixture
def page(tmp_path: Path) -> Path:
    path = tmp_path / "page.md"
    path.write_text(f"# Before\n\n{BEGIN}\nOutdated.\n{END}\n\nAfter.\n")
    return path


def test_what_is_stored_is_read_again_newest_first(tmp_path: Path) -> None:
    documents = [build("b" * 12, 1, sampler_cpu=SAME), build("c" * 12, 2, sampler_cpu=WORSE)]
    paths = [store_document(tmp_path / "results", document) for document in documents]
    assert read_documents(tmp_path / "results") == list(reversed(documents))
    assert paths[0].name == "2.0-bbbbbbbbbbbb-some-cpu-3-ghz-2.json"


def test_a_version_measured_again_on_such_a_machine_has_one_file_and_another_machine_its_own(tmp_path: Path) -> None:
    for document in (build("b" * 12, 1), build("b" * 12, 2), build("b" * 12, 2, cpu="Other")):
        store_document(tmp_path, document)
    assert [(each["cpu"], each["date"][:10]) for each in read_documents(tmp_path)] == [
        ("Other", "2026-01-02"),
        ("Some CPU @ 3 GHz", "2026-01-02"),
    ]


def test_a_changed_working_tree_is_stored_but_is_no_version(tmp_path: Path) -> None:
    assert store_document(tmp_path, build("b" * 12 + "-dirty", 1)).exists()
    assert read_documents(tmp_path) == []


def test_no_directory_holds_no_results(tmp_path: Path) -> None:
    assert read_documents(tmp_path / "none") == []


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"schema": 1}', '{"schema": 1, "commit": 3}'])
def test_a_file_that_is_no_result_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "wrong.json").write_text(text)
    with pytest.raises(StoredResultInvalid, match=r"wrong\.json holds no results"):
        read_documents(tmp_path)


def test_a_cell_has_the_value_and_the_interval_of_its_change() -> None:
    stored = build("b" * 12, 1, sampler_cpu=WORSE, learner_cpu=SAME)["figures"]
    assert render_change(stored["sampler_cpu"]) == "**123 (+18% to +24%) worse**"
    assert render_change(stored["learner_cpu"]) == "100 (-3% to +1%)"
    few = build("b" * 12, 1, sampler_cpu=Change(1.5, 1.4, 2, Verdict.TOO_FEW_ROUNDS))["figures"]["sampler_cpu"]
    assert render_change(few) == "1.5 (too few rounds)"
    assert render_change(None) == "not measured"


def test_a_table_has_a_row_for_each_version_on_a_machine() -> None:
    documents = [build("d" * 12, 3, sampler_cpu=SAME), build("c" * 12, 2, cpu="Other"), build("b" * 12, 1)]
    text = render_tables(documents)
    assert [line for line in text.splitlines() if line.startswith("## ")] == [
        "## Other, 2 cores",
        "## Some CPU @ 3 GHz, 2 cores",
    ]
    assert re.findall(r"^\| 2\.0 `(.)", text, re.M) == ["c", "d", "b"]
    assert all(f"| `{name}` |" in text for name in FIGURES)
    rows = [line for line in text.splitlines() if line.startswith("| 2.0")]
    assert {row.count("|") for row in rows} == {5 + len(FIGURES)}


def test_the_marked_part_of_the_page_is_written_and_checked(tmp_path: Path, page: Path) -> None:
    store_document(tmp_path / "results", build("b" * 12, 1, sampler_cpu=SAME))
    options = ("--results", str(tmp_path / "results"), "--page", str(page))
    before = page.read_text()
    checked = call(*options, "--check")
    assert checked.exit_code == 1 and "run python -m bench table" in checked.stderr and page.read_text() == before
    assert call(*options).exit_code == 0
    assert call(*options, "--check").exit_code == 0
    text = page.read_text()
    assert text.startswith("# Before\n") and text.endswith("\nAfter.\n")
    assert "100 (-3% to +1%)" in text and "Outdated" not in text


def test_a_page_without_marks_or_a_broken_result_is_exit_code_2(tmp_path: Path, page: Path) -> None:
    (tmp_path / "wrong.json").write_text("{")
    broken = call("--results", str(tmp_path), "--page", str(page))
    assert broken.exit_code == 2 and "wrong.json" in broken.stderr
    page.write_text("nothing")
    unmarked = call("--results", str(tmp_path / "none"), "--page", str(page))
    assert unmarked.exit_code == 2 and "lacks the lines" in unmarked.stderr
    assert call("--results", str(tmp_path / "none"), "--page", str(tmp_path / "none.md")).exit_code == 2


def test_the_page_says_what_the_stored_results_say() -> None:
    checked = call("--check")
    assert checked.exit_code == 0, checked.stderr
