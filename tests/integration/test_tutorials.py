"""Every block of every tutorial, run in an empty folder in the order of its page, as a reader runs it.

By default the trainings are small and on the engine without a model. Marked slow, they have the sizes of the page, and
what is printed must have the lines that the page shows, apart from numbers.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml
from skill_blocks import blocks_of, free_ports, walk

from swarm.job import build_job

FOLDER = Path(__file__).parents[2] / "docs" / "tutorials"
PAGES = sorted(page for page in FOLDER.glob("*.md") if page.name != "index.md")
FAKE_STUDY = "--engine fake --seeds 1 --steps 1 --eval-episodes 4"
SMALL: dict[str, dict[str, str]] = {
    "environment.md": {
        "swarm env check parcels --train-model micro": "swarm env check parcels",
        "total_steps: 20": "total_steps: 2\nengine: fake",
        "--eval-every 10": "--eval-every 1 --eval-episodes 10",
        "--seeds 3 --steps 4 --eval-episodes 100": FAKE_STUDY,
    },
    "study.md": {"--seeds 3 --steps 15 --eval-episodes 100": FAKE_STUDY},
    "several-models.md": {
        "total_steps=20": 'total_steps=2, engine="fake"',
        "swarm eval": "swarm eval --episodes 4",
    },
    "cocktail.md": {
        "total_steps: 30": "total_steps: 2\nengine: fake",
        "total_steps=40": "total_steps=4",
        "for source in reverse sort copy; do swarm eval": "for source in copy; do swarm eval --episodes 4",
    },
    "black-box.md": {
        "batch_size=8, num_repeat=8, total_steps=15": 'batch_size=2, num_repeat=2, total_steps=2, engine="fake"',
        "batch_size=8, num_repeat=8, total_steps=5": 'batch_size=2, num_repeat=2, total_steps=1, engine="fake"',
        "swarm eval": "swarm eval --episodes 4",
    },
    "coding-agent.md": {"--seeds 3 --steps 10 --eval-episodes 100": FAKE_STUDY, '"seeds": 3': '"seeds": 1'},
    "verl.md": {"total_steps: 10": "total_steps: 2", "swarm train": "swarm train --eval-episodes 10"},
}
"""What is made smaller in each page."""
WALKED_QUICKLY = {"black-box.md"}


def ports(page: Path) -> dict[str, str]:
    """Give a page that uses ports free ones."""
    run = "".join(block.text for block in blocks_of(page) if block.reason is None and block.language != "text")
    return {
        written: str(port) for written, port in zip(("10086", "10087"), free_ports(2), strict=True) if written in run
    }


def shape(line: str) -> str:
    """A line without what differs from run to run: numbers, the names of studies, and the folder."""
    line = re.sub(r"\S*/runs/", "runs/", line)
    line = re.sub(r"\b(st|run|ex)-\w+", r"\1", line)
    return " ".join(re.sub(r"[-+]?\d[\d.,:]*", "N", line).split())


def test_every_tutorial_is_walked() -> None:
    assert {page.name for page in PAGES} == SMALL.keys()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_blocks_that_need_a_cluster_are_valid_jobs_and_name_options_that_there_are(page: Path) -> None:
    for block in blocks_of(page):
        if block.reason is None:
            continue
        if block.language == "yaml":
            assert build_job(yaml.safe_load(block.text)).engine == "verl"
        elif block.language == "json":
            assert json.loads(block.text)
        else:
            assert all(shlex.split(line, comments=True) for line in block.text.splitlines())


@pytest.mark.parametrize(
    "page",
    [page if page.name in WALKED_QUICKLY else pytest.param(page, marks=pytest.mark.slow) for page in PAGES],
    ids=lambda page: page.stem,
)
def test_the_blocks_of_a_tutorial_run_from_an_empty_folder(page: Path, tmp_path: Path) -> None:
    walk(page, tmp_path, tmp_path, SMALL[page.name] | ports(page))


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_tutorial_prints_what_it_shows(page: Path, tmp_path: Path) -> None:
    printed = {shape(line) for line in walk(page, tmp_path, tmp_path, ports(page)).splitlines()}
    outputs = [block.text for block in blocks_of(page) if block.language == "text"]
    shown = [line for text in outputs for line in text.splitlines() if line.strip() != "..."]
    assert [line for line in shown if shape(line) not in printed] == []
