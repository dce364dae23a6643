"""Every block of every skill, run in an empty directory as a coding agent runs it; only sizes and ports are changed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from skill_blocks import blocks_of, free_ports, walk

from swarm.skills.folders import SHIPPED

PAGES = sorted(SHIPPED.rglob("*.md"))
SMALL = {"total_steps: 20": "total_steps: 2"}
SMALL_STUDY = "--engine fake --seeds 1 --steps 1 --eval-episodes 4"
SHORT_STUDY = {
    "--seeds 3 \\\n  --steps 15 --eval-episodes 100 --max-runs 12": SMALL_STUDY,
    "--train-model micro --seeds 3 --steps 10 --eval-episodes 30": SMALL_STUDY,
}
PLANNED_STUDY = {
    "--seeds 3 \\\n  --steps 15 --eval-episodes 100 --max-runs 12": SMALL_STUDY,
    '"seeds": 3': '"seeds": 1',
}
"""Each page with blocks to run, and what is made smaller in it. A page with 10086 gets a port of its own."""
CHANGES: dict[str, dict[str, str]] = {
    "make-environment/SKILL.md": {},
    "make-environment/references/graders.md": {},
    "make-environment/references/sources.md": {},
    "operate-server/SKILL.md": SMALL,
    "operate-server/references/http.md": {},
    "operate-server/references/network.md": {},
    "plan-study/SKILL.md": PLANNED_STUDY,
    "plan-study/references/forms.md": {},
    "plan-study/references/search.md": {},
    "run-study/SKILL.md": SHORT_STUDY,
    "run-study/references/topics.md": {},
    "run-study/references/planners.md": {},
    "write-program/SKILL.md": SMALL,
    "write-program/references/job.md": {},
    "write-program/references/patterns.md": {},
}
WALKED_QUICKLY = {"operate-server/references/http.md"}
ON_A_STUDY = {"explore-results/SKILL.md", "explore-results/references/tables.md"}


def name_of(page: Path) -> str:
    return page.relative_to(SHIPPED).as_posix()


def test_every_page_is_walked() -> None:
    assert {name_of(page) for page in PAGES} == CHANGES.keys() | ON_A_STUDY


def test_few_blocks_are_not_run_and_each_says_why() -> None:
    left_out = [block.reason for page in PAGES for block in blocks_of(page) if block.reason is not None]
    assert len(left_out) <= 3 and all(left_out)


@pytest.mark.timeout(580)
@pytest.mark.parametrize(
    "name", [name if name in WALKED_QUICKLY else pytest.param(name, marks=pytest.mark.slow) for name in CHANGES]
)
def test_the_blocks_of_a_skill_run_from_an_empty_directory(name: str, tmp_path: Path) -> None:
    page = SHIPPED / name
    changes = dict(CHANGES[name])
    for written, port in zip(("10086", "10087"), free_ports(2), strict=True):
        if written in page.read_text():
            changes[written] = str(port)
    walk(page, tmp_path, SHIPPED / name.partition("/")[0], changes)
    outcome = OUTCOMES.get(name)
    if outcome is not None:
        outcome(tmp_path)


def an_environment_was_checked(directory: Path) -> None:
    checks = json.loads((directory / "check.json").read_text())["checks"]
    assert {each["severity"] for each in checks} == {"ok"}
    assert json.loads((directory / "base.json").read_text())["base_score"]["mean"] > 0
    assert json.loads((directory / "play.json").read_text())["grade"]["score"] in (0, 1)


def a_program_was_trained(directory: Path) -> None:
    figures = json.loads((directory / "figures.json").read_text())
    assert (figures["program"], figures["steps"], figures["failed_episodes"]) == ("program", 2, 0)
    assert json.loads((directory / "attempt.json").read_text())["transcript"]


def a_server_went_on_and_ended(directory: Path) -> None:
    assert "has done all its" in (directory / "server.log").read_text()
    assert "no answer from" in (directory / "status.err").read_text()


def two_studies_were_judged(directory: Path) -> None:
    for file in ("answer.json", "shaping.json"):
        study = json.loads((directory / file).read_text())
        assert study["status"] == "finished" and len(study["verdicts"]) == 2
        assert Path(study["report"]).exists()


def a_study_was_planned(directory: Path) -> None:
    study = json.loads((directory / "study.json").read_text())["study"]
    report = directory / json.loads((directory / "report.json").read_text())["report"]
    assert study in str(report) and "lr=0.003" in report.read_text()


OUTCOMES = {
    "plan-study/SKILL.md": a_study_was_planned,
    "make-environment/SKILL.md": an_environment_was_checked,
    "write-program/SKILL.md": a_program_was_trained,
    "operate-server/SKILL.md": a_server_went_on_and_ended,
    "run-study/SKILL.md": two_studies_were_judged,
}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a study of the learning rate."""
    directory = tmp_path_factory.mktemp("study")
    command = [
        sys.executable,
        "-m",
        "researcher.cli",
        "start",
        "--topic",
        "learning rate 0.0003 or 0.003 for word reversal?",
    ]
    sizes = ["--planner", "rules", "--engine", "fake", "--seeds", "2", "--steps", "2", "--eval-episodes", "4"]
    subprocess.run([*command, *sizes], cwd=directory, check=True, capture_output=True, timeout=280)
    return directory


@pytest.mark.slow
@pytest.mark.timeout(580)
@pytest.mark.parametrize("name", sorted(ON_A_STUDY))
def test_the_blocks_on_results_run_where_a_study_is(name: str, study: Path) -> None:
    printed = walk(SHIPPED / name, study, SHIPPED / "explore-results", {})
    assert "lr=0.003" in printed
