"""Blocks of code in README.md and docs/: programs are run in small, and commands have the options that they name."""

from __future__ import annotations

import json
import os
import re
import shlex
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import typer
import yaml
from skill_blocks import commands_of, unknown_options

import researcher.cli
from swarm import SwarmClient, Task, TrainJob
from swarm.job import build_job
from swarm.skills.folders import SHIPPED

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
ALL_PAGES = [*PAGES, *sorted((ROOT / "docs" / "tutorials").glob("*.md")), *sorted(SHIPPED.rglob("*.md"))]


@dataclass(frozen=True)
class Block:
    """`name` is its page and its first line."""

    page: str
    text: str

    @property
    def name(self) -> str:
        return f"{self.page}: {self.text.splitlines()[0].strip()[:60].strip()}"


@pytest.fixture(scope="module", autouse=True)
def late_imports() -> None:
    global add_study, create_database, Simulation, FILE_LOGGED, open_store, check_study, read_settings
    global complete_from_topic, NEWS, SCHEMA, News, describe
    from explorer_samples import add_study, create_database
    from simulated_study import Simulation

    from experiments_db import FILE_LOGGED, open_store
    from researcher.loop.settings_check import check_study
    from researcher.study.settings import read_settings
    from researcher.study.topics import complete_from_topic
    from researcher.webhook import NEWS, SCHEMA, News, describe


def blocks() -> dict[str, Block]:
    found = [Block(page.name, text) for page in PAGES for text in code_of(page.read_text())]
    by_name = {block.name: block for block in found}
    assert len(by_name) == len(found), "two blocks of a page begin alike: their names must differ"
    return by_name


def code_of(text: str) -> list[str]:
    fenced = re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    rest = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    indented = re.findall(r"(?:\A|\n\n)((?: {4}.*\n|\n(?= {4}))+)", rest)
    return [*fenced, *("".join(line[4:] or "\n" for line in block.splitlines(True)) for block in indented)]


def test_the_fields_of_a_webhook_on_the_page_are_those_of_a_post() -> None:
    shown = json.loads(blocks()[WEBHOOK].text)
    assert shown["event"] in NEWS.values() and shown["schema"] == SCHEMA
    with TemporaryDirectory() as folder:
        study = Simulation().carry_out(Path(folder))
        with closing(study.store):
            told = describe(study.store, study.study_id, News("finished", "The study is finished.", 0.0))
    assert shown.keys() == told.keys()
    assert {name: type(value) for name, value in told.items() if value is not None}.items() <= {
        name: type(value) for name, value in shown.items()
    }.items()


QUESTIONS = 'README.md: .venv/bin/researcher start --topic "Does group size matter f'
JOBS: dict[str, dict[str, object]] = {
    "scale.md: engine: verl": {"engine": "verl"},
    "models.md: model: /models/qwen": {"sampler": "vllm"},
    "models.md: lora_rank: 8                              # 0, the default,": {"lora_rank": 8},
}
WEBHOOK = "operations.md: {"
SNIPPET = "README.md: import random"
SQL = "research.md: select x.name, avg(v.mean), count(*)"
TEAM = "training.md: from swarm import SwarmClient, SwarmTeam, Task, WorkflowOutp"
LOOP = "own-agent.md: from my_agent import my_agent"
QUICK_AGENTS = ["own-agent.md: from openai import OpenAI", "own-agent.md: import httpx"]
SLOW_AGENTS = ["own-agent.md: from langchain_openai import ChatOpenAI", "own-agent.md: from pydantic_ai import Agent"]
RECORDED = "operations.md: from pathlib import Path"


@pytest.mark.parametrize(
    "page", [page for page in ALL_PAGES if commands_of(page)], ids=lambda page: "-".join(page.parts[-2:])
)
def test_commands_that_a_page_names_are_there_with_their_options(page: Path) -> None:
    assert {command: unknown for command in commands_of(page) if (unknown := unknown_options(command))} == {}


@pytest.mark.parametrize(("name", "settings"), JOBS.items())
def test_settings_are_those_there_are(name: str, settings: dict[str, object]) -> None:
    assert settings.items() <= build_job(yaml.safe_load(blocks()[name].text)).model_dump().items()


def test_the_questions_of_the_readme_are_understood_without_a_language_model() -> None:
    lines = blocks()[QUESTIONS].text.splitlines()[:2]
    start: Any = typer.main.get_command(researcher.cli.app).commands["start"]  # pyright: ignore[reportAttributeAccessIssue]
    for line in lines:
        given = start.make_context("start", shlex.split(line)[2:]).params
        settings = read_settings({"planner": "rules", "seeds": given["seeds"]})
        check_study(given["topic"], complete_from_topic(given["topic"], settings))


def run_snippet(url: str, directory: Path, *changes: tuple[str, str]) -> list[float]:
    """The rewards that the README's program prints, step by step."""
    program = blocks()[SNIPPET].text
    for old, new in (("http://127.0.0.1:10086", url), *changes):
        assert old in program
        program = program.replace(old, new)
    (directory / "train.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=directory, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return [float(reward) for reward in re.findall(r"^step .\d  reward (\d\.\d+)  #*$", done.stdout, re.MULTILINE)]


def test_the_program_of_the_readme_trains(start_server: Any, tmp_path: Path) -> None:
    sizes = (("batch_size=16", "batch_size=4"), ("num_repeat=8", "num_repeat=4"), ("total_steps=30", "total_steps=2"))
    url = start_server().url
    assert len(run_snippet(url, tmp_path, *sizes, ("range(1000)", "range(200)"))) == 2
    with SwarmClient(url) as client:
        assert (client.status().state, client.status().weight_version) == ("COMPLETE", 2)


def test_the_program_that_records_itself_is_on_record(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", blocks()[RECORDED].text], cwd=tmp_path, capture_output=True, text=True, timeout=120,
        check=False, env={**os.environ, "SWARM_RESEARCH_DB": "research.db"},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    with open_store(tmp_path / "research.db", read_only=True) as store:
        (found,) = store.list_trainings()
        assert (found.status, found.step) == ("COMPLETE", 20)
        assert len(store.list_server_events(found.id, kind=FILE_LOGGED)) == 1


@pytest.mark.parametrize(
    "agent", [*QUICK_AGENTS, *(pytest.param(each, marks=pytest.mark.slow) for each in SLOW_AGENTS)]
)
def test_each_agent_of_the_page_on_own_agents_trains(start_server: Any, tmp_path: Path, agent: str) -> None:
    url = start_server().url
    (tmp_path / "my_agent.py").write_text(blocks()[agent].text)
    loop = blocks()[LOOP].text
    for old, new in (
        ("http://127.0.0.1:10086", url),
        ("batch_size=8, num_repeat=8, total_steps=20", 'engine="fake", batch_size=2, num_repeat=2, total_steps=2'),
    ):
        assert old in loop
        loop = loop.replace(old, new)
    (tmp_path / "loop.py").write_text(loop)
    done = subprocess.run(
        [sys.executable, "loop.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert len(done.stdout.split()) == 2


def test_the_query_for_checking_a_report_by_hand_runs(tmp_path: Path) -> None:
    studies: list[str] = []
    path = create_database(tmp_path, lambda store, home: studies.append(add_study(store, home)))
    with closing(sqlite3.connect(path)) as database:
        rows = database.execute(blocks()[SQL].text.replace("STUDY", studies[0])).fetchall()
    assert rows and all(count > 0 for _, _, count in rows)


def test_the_team_of_the_page_on_training_ends_its_episodes(start_server: Any) -> None:
    job = TrainJob(engine="fake", batch_size=1, num_repeat=2)
    urls = [start_server(job).url for _ in range(2)]
    for url in urls:
        with SwarmClient(url) as client:
            client.auto_sync_train_config_and_start_engine(job)
    names: dict[str, Any] = {"url_1": urls[0], "url_2": urls[1], "task": Task("q")}
    program = blocks()[TEAM].text

    exec(compile(program, "training.md", "exec"), names)
    for client in names["team"].clients.values():
        client.close()
    for url in urls:
        with SwarmClient(url) as client:
            [episode] = client.episodes()
            assert episode.state == "completed"
