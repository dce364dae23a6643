"""`swarm skills`: copies for coding agents, which a later version brings up to date and never against a person."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from swarm.cli import app
from swarm.skills import Skill, State, install_skill, list_skills
from swarm.skills.folders import RECORD

NAMES = [skill.name for skill in list_skills()]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with an empty project in it, which is the working directory."""
    (tmp_path / "project").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("CLAUDE_CONFIG_DIR", raising=False)
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path


def skills(*words: str) -> Any:
    return CliRunner().invoke(app, ["skills", *words])


def states(done: Any) -> set[str]:
    return {each["state"] for each in json.loads(done.stdout)}


@pytest.fixture
def versions(tmp_path: Path) -> tuple[Skill, Skill]:
    """The same skill in two versions: the later one changes a page, and has another one in place of the third."""
    made: list[Skill] = []
    for version, files in (("1", ["SKILL.md", "references/old.md"]), ("2", ["SKILL.md", "references/new.md"])):
        folder = tmp_path / f"shipped-{version}"
        for name in files:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(f"version {version} of {name}\n")
        made.append(Skill("demo", "", folder, tuple(files)))
    return made[0], made[1]


@pytest.mark.parametrize(
    ("words", "folder"),
    [
        (["--claude"], "project/.claude/skills"),
        (["--codex", "--user"], ".agents/skills"),
        (["--dir", "anywhere"], "project/anywhere"),
    ],
)
def test_skills_go_where_an_agent_looks_for_them(place: Path, words: list[str], folder: str) -> None:
    done = skills("install", *words, "--json")
    assert done.exit_code == 0 and done.stderr == ""
    assert states(done) == {"installed"}
    for skill in list_skills():
        for name in skill.files:
            assert (place / folder / skill.name / name).read_bytes() == (skill.folder / name).read_bytes()
    assert states(skills("install", *words, "--json")) == {"unchanged"}


def test_the_directory_of_claude_code_may_be_elsewhere(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(place / "configuration"))
    assert skills("install", "run-study", "--claude", "--user").exit_code == 0
    assert (place / "configuration" / "skills" / "run-study" / "SKILL.md").exists()


def test_named_skills_alone_are_installed_in_each_place(place: Path) -> None:
    done = skills("install", "run-study", "--claude", "--codex")
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        "installed  .claude/skills/run-study",
        "installed  .agents/skills/run-study",
    ]
    assert sorted(path.name for path in Path(".claude/skills").iterdir()) == ["run-study"]


def test_a_file_that_a_person_changed_is_kept_unless_forced(place: Path) -> None:
    skills("install", "--claude")
    changed = Path(".claude/skills/run-study/SKILL.md")
    changed.write_text("mine\n")
    done = skills("install", "--claude", "--json")
    assert done.exit_code == 1
    by_name = {each["name"]: (each["state"], each["changed"]) for each in json.loads(done.stdout)}
    assert by_name.pop("run-study") == ("kept", ["SKILL.md"])
    assert all(state == "unchanged" for state, _ in by_name.values())
    assert changed.read_text() == "mine\n"
    assert "since you changed SKILL.md; --force replaces that" in done.stderr and done.stderr.count("\n") == 1
    forced = skills("install", "--claude", "--force", "--json")
    assert forced.exit_code == 0 and "updated" in states(forced)
    assert changed.read_text() != "mine\n"


def test_a_later_version_replaces_what_the_earlier_one_wrote(versions: tuple[Skill, Skill], place: Path) -> None:
    first, second = versions
    assert install_skill(first, place / "skills").state is State.INSTALLED
    (place / "skills" / "demo" / "notes.md").write_text("the person's own\n")
    assert install_skill(second, place / "skills").state is State.UPDATED
    folder = place / "skills" / "demo"
    assert (folder / "SKILL.md").read_text() == "version 2 of SKILL.md\n"
    assert sorted(path.name for path in folder.rglob("*.md")) == ["SKILL.md", "new.md", "notes.md"]


def test_a_skill_is_replaced_as_a_whole_or_not_at_all(versions: tuple[Skill, Skill], place: Path) -> None:
    first, second = versions
    install_skill(first, place)
    (place / "demo" / "references" / "old.md").write_text("mine\n")
    assert install_skill(second, place).changed == ("references/old.md",)
    assert (place / "demo" / "SKILL.md").read_text() == "version 1 of SKILL.md\n"
    assert not (place / "demo" / "references" / "new.md").exists()


def test_an_installation_that_was_cut_off_is_completed(versions: tuple[Skill, Skill], place: Path) -> None:
    first, second = versions
    install_skill(first, place)
    (place / "demo" / "SKILL.md").write_text((second.folder / "SKILL.md").read_text())
    assert install_skill(second, place).state is State.UPDATED
    assert install_skill(second, place).state is State.UNCHANGED


def test_a_link_of_a_person_is_not_written_through(versions: tuple[Skill, Skill], place: Path) -> None:
    (place / "own").mkdir()
    (place / "own" / "SKILL.md").write_text("mine\n")
    os.symlink(place / "own", place / "demo")
    assert install_skill(versions[0], place).state is State.KEPT
    assert install_skill(versions[0], place, force=True).state is State.UPDATED
    assert (place / "own" / "SKILL.md").read_text() == "mine\n" and not (place / "demo").is_symlink()


@pytest.mark.parametrize("record", ["", "[]", '{"files": {"../../outside.md": "0"}}'])
def test_a_damaged_record_costs_no_file(versions: tuple[Skill, Skill], place: Path, record: str) -> None:
    install_skill(versions[0], place / "a" / "b")
    (place / "a" / "outside.md").write_text("not ours\n")
    (place / "a" / "b" / "demo" / RECORD).write_text(record)
    install_skill(versions[1], place / "a" / "b", force=True)
    assert (place / "a" / "outside.md").exists()


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["install"], 2, "no target: give --claude, --codex or --dir DIRECTORY"),
        (["install", "--dir", "x", "--user"], 2, "leave --user out"),
        (["install", "nosuch", "--claude"], 3, "there is no skill 'nosuch': name one of explore-results"),
        (["install", "--dir", "file"], 2, "cannot be written"),
        (["show", "nosuch"], 3, "there is no skill 'nosuch'"),
        (["show", "run-study", "nosuch.md"], 3, "has no file 'nosuch.md': name one of SKILL.md"),
        (["show", "run-study", "../make-environment/SKILL.md"], 3, "has no file"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_an_exit_code(
    place: Path, words: list[str], code: int, message: str
) -> None:
    Path("file").write_text("")
    done = skills(*words)
    assert (done.exit_code, done.stdout) == (code, "")
    assert message in done.stderr and done.stderr.count("\n") == 1


def test_skills_are_listed_and_shown_without_being_installed() -> None:
    assert [each["name"] for each in json.loads(skills("list", "--json").stdout)] == NAMES
    assert skills("list").stdout.count("\n") == len(NAMES)
    shown = skills("show", "run-study")
    assert shown.stdout == list_skills()[NAMES.index("run-study")].read()
    assert "references/topics.md" in shown.stderr
    page = skills("show", "run-study", "references/topics.md", "--json")
    assert json.loads(page.stdout)["text"].startswith("# What a study can ask")
