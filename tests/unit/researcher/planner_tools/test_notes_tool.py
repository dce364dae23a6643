"""Notes of a person: found by their words with file and line, never from outside of the folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from researcher.cli import app
from researcher.errors import TopicInvalid
from researcher.loop.settings_check import check_study
from researcher.planner.tools import notes as notes_module
from researcher.planner.tools.base import Toolbox, ToolRefused
from researcher.planner.tools.notes import notes_tool
from researcher.study.settings import StudySettings


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "notes"
    (folder / "deep").mkdir(parents=True)
    (folder / "groups.md").write_text("# Groups\n\nLarger groups lower the variance.\n\n# Rates\n\nWarm up slowly.\n")
    (folder / "deep" / "kl.txt").write_text("A penalty on divergence keeps the policy near its reference.\n")
    (folder / "table.csv").write_text("variance,divergence\n")
    return folder


def search(folder: Path, query: str, **more: int) -> str:
    return Toolbox([notes_tool(folder)]).call("notes", {"query": query, **more})


def test_a_passage_is_found_by_its_words_with_file_and_line(folder: Path) -> None:
    assert "groups.md:1\n# Groups" in search(folder, "variance of groups")
    found = search(folder, "warm up")
    assert "groups.md:5\n# Rates" in found and "variance" not in found
    assert "deep/kl.txt:1" in search(folder, "divergence") and "BEGIN DATA" in search(folder, "divergence")


def test_words_that_are_nowhere_find_nothing(folder: Path, tmp_path: Path) -> None:
    assert search(folder, "zebra") == "no passage of the notes has one of these words"
    (tmp_path / "empty").mkdir()
    assert "no passage" in search(tmp_path / "empty", "zebra")


def test_nothing_outside_of_the_folder_is_read(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.md").write_text("the canary sings\n")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "other.md").write_text("the canary sings\n")
    (folder / "link.md").symlink_to(tmp_path / "secret.md")
    (folder / "linked").symlink_to(tmp_path / "elsewhere")
    (folder / "up.md").symlink_to("../secret.md")
    assert "no passage" in search(folder, "canary")
    for query in ("../secret.md", str(tmp_path / "secret.md")):
        assert "canary" not in search(folder, query)
    with pytest.raises(ToolRefused, match="there is no such field"):
        Toolbox([notes_tool(folder)]).call("notes", {"query": "canary", "folder": ".."})


def test_files_beyond_the_limits_are_left_out_and_counted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notes_module, "MAX_FILE_BYTES", 65)
    assert "too large or too many: 1" in search(folder, "variance")


def test_a_long_file_is_split_into_passages(folder: Path) -> None:
    lines = [f"line {number} about entropy number{number} " + "x" * 200 for number in range(100)]
    (folder / "long.md").write_text("\n".join(lines))
    found = search(folder, "number77", count=1)
    assert "long.md:76" in found and len(found) < 1_500


@pytest.mark.parametrize(
    ("planner", "name", "problem"),
    [("rules", "notes", "--notes is for a planner that reads"), ("llm", "nowhere", "is no folder")],
)
def test_notes_without_a_reader_or_a_folder_are_refused(folder: Path, planner: str, name: str, problem: str) -> None:
    settings = StudySettings.model_validate(
        {"planner": planner, "model": "m", "notes": str(folder.parent / name), "engine": "fake"}
    )
    with pytest.raises(TopicInvalid, match=problem):
        check_study("does lr matter for reversal?", settings)


def test_the_folder_of_a_command_is_stored_in_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["--planner", "llm", "--model", "m", "--engine", "fake", "--notes", "nowhere"]
    done = CliRunner().invoke(app, ["start", "--topic", "lr 1e-3 or 3e-3 on reversal", *words, "--home", str(tmp_path)])
    assert done.exit_code == 2
    assert f"--notes: {tmp_path / 'nowhere'} is no folder" in done.stderr
