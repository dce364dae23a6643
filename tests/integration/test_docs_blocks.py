"""Every block of code in README.md and docs/: it is run as it stands, in small, or listed here with why it is not.

The blocks of docs/tutorials are run by test_tutorials.py.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import typer
import yaml

import researcher.cli
import swarm.cli
from swarm import SwarmClient, Task, TrainJob
from swarm.job import build_job

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
APPS = {"swarm": swarm.cli.app, "researcher": researcher.cli.app}


@dataclass(frozen=True)
class Block:
    """`name` is its page and its first line; `section` is the last heading of the second level above it."""

    page: str
    section: str
    text: str

    @property
    def name(self) -> str:
        return f"{self.page}: {self.text.splitlines()[0].strip()[:60].strip()}"


@pytest.fixture(scope="module", autouse=True)
def late_imports() -> None:
    global add_study, create_database, Simulation, FILE_LOGGED, open_store, check_study, read_settings
    global complete_from_topic, NEWS, SCHEMA, News, describe
    from explorer_study import add_study, create_database
    from simulated_study import Simulation

    from experiments_db import FILE_LOGGED, open_store
    from researcher.loop.settings_check import check_study
    from researcher.study.settings import read_settings
    from researcher.study.topic import complete_from_topic
    from researcher.webhook import NEWS, SCHEMA, News, describe


def blocks() -> dict[str, Block]:
    found = [
        Block(page.name, section.partition("\n")[0], text)
        for page in PAGES
        for section in re.split(r"^## ", page.read_text(), flags=re.MULTILINE)
        for text in code_of(section)
    ]
    by_name = {block.name: block for block in found}
    assert len(by_name) == len(found), "two blocks of a page begin alike: their names must differ"
    return by_name


def code_of(text: str) -> list[str]:
    fenced = re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    rest = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    indented = re.findall(r"(?:\A|\n\n)((?: {4}.*\n|\n(?= {4}))+)", rest)
    return [*fenced, *("".join(line[4:] or "\n" for line in block.splitlines(True)) for block in indented)]


PICTURE, FORMULA = "a drawing", "a formula"
NOT_RUN = {
    "quickstart.md: held-out score before: 0.235 (95 % from 0.182 to 0.298, n=20": "an output",
    "own-agent.md: 0.36 0.69 0.61 0.78 0.84 0.89 0.89 0.94 0.98 0.95 0.94 0.92": "an output",
    "algorithms.md: log π(a) = z_a − log Σ_{b in C_t} exp(z_b)": FORMULA,
    "algorithms.md: R_t = reward + turn_rewards[t] + turn_rewards[t+1] + ...": FORMULA,
    "architecture.md: SwarmClient --HTTP--> gateway --ModelRequest--> rollout --Tu": PICTURE,
    "architecture.md: OFFLINE -> BOOTING -> ROLLING -> DRAINING -> TRAINING -> ROL": PICTURE,
    "architecture.md: ui -> experiments_db          researcher -> swarm (public na": "the contract of lint-imports",
    "architecture.md: client                    coordinator A": PICTURE,
    "scale.md: clients --HTTP--> swarm server --HTTP, behind a key--> vLLM": PICTURE,
    'scale.md: pip install "swarm-researcher[server,verl]"          # train': "installs gigabytes of packages",
    "scale.md: .venv/bin/python -m bench NAME... [--seconds S] [--json]": "measures for minutes; "
    "tests/integration/test_bench.py runs one briefly",
    "gpu.md: .venv/bin/python -m bench gpu [--device cuda|cpu] [--minutes": "measures for minutes; "
    "tests/integration/test_bench_gpu.py runs it on the CPU",
    "scale.md: make bench [AGAINST=REF] [ROUNDS=8]": "measures for minutes; "
    "tests/integration/test_processor_time.py takes the steps",
}
OF_OTHER_TESTS = {
    ("training.md", "Environments"): "tests/integration/test_env_cli.py",
    ("training.md", "Programs"): "tests/integration/test_train_cli.py",
}
HTTP_PAGE = "http-api.md"
"""tests/integration/test_http_docs.py makes the calls of this page."""


def commands_exist(block: Block) -> None:
    """Every command of a usage block is there, with every option that it names; `a | b` are several commands."""
    for line in block.text.splitlines():
        words = shlex.split(line, comments=True)
        while words and re.fullmatch(r"\w+=\S*", words[0]):
            words = words[1:]
        if words[0] == "make":
            assert words[1] in targets()
            continue
        program, verbs = Path(words[0]).name, [words[1]]
        for before, word in pairwise(words[1:]):
            verbs += [word] if before == "|" else []
        commands: Any = typer.main.get_command(APPS[program])
        # A group that is a command as well may stand without one of its commands.
        if (group := commands.commands[words[1]]) and {*words[2:3]} & {*getattr(group, "commands", ())}:
            commands, verbs = group, [words[2]]
        named = set(re.findall(r"(?<![\w-])--[a-z-]+", line.partition(" #")[0]))
        for verb in verbs:
            known = {option for parameter in commands.commands[verb].params for option in parameter.opts}
            assert named <= known, (line, named - known)


def targets() -> set[str]:
    return set(re.findall(r"^(\w[\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def targets_exist(block: Block) -> None:
    assert set(re.findall(r"^make (\S+)", block.text, re.MULTILINE)) <= targets()


def is_a_job(block: Block) -> None:
    assert build_job(yaml.safe_load(block.text)).engine == "verl"


def is_a_job_with_vllm(block: Block) -> None:
    assert build_job(yaml.safe_load(block.text)).sampler == "vllm"


def is_an_adapter(block: Block) -> None:
    assert build_job(yaml.safe_load(block.text)).lora_rank == 8


def is_told_to_a_webhook(block: Block) -> None:
    """The fields of the page are those of a POST, of the same types."""
    shown = json.loads(block.text)
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
USAGE: dict[str, Callable[[Block], None]] = {
    "README.md: make study    # set up, then: which learning rate trains wor": targets_exist,
    QUESTIONS: commands_exist,
    "quickstart.md: make setup": commands_exist,
    "own-agent.md: .venv/bin/swarm start --home runs/own-agent": commands_exist,
    "quickstart.md: .venv/bin/researcher ui": commands_exist,
    "operations.md: swarm start [--host H] [--port P] [--home DIR] [--job job.ya": commands_exist,
    "operations.md: swarm backup /backups/tuesday --home runs/swarm": commands_exist,
    "operations.md: swarm stop": commands_exist,
    "operations.md: swarm start --home runs/swarm --new-ledger": commands_exist,
    'operations.md: researcher start --topic "learning rate 1e-3 or 3e-3 for cop': commands_exist,
    'research.md: researcher start --topic "Which learning rate trains word re': commands_exist,
    'research.md: researcher start --topic "Do shorter words help?" --env "rea': commands_exist,
    "research.md: researcher findings [--env NAME] [--model NAME] [--factor NA": commands_exist,
    "operations.md: researcher extend STUDY --iterations 1 --seeds 6 --max-runs": commands_exist,
    "operations.md: {": is_told_to_a_webhook,
    'operations.md: researcher start --topic "..." [--planner rules|llm|hybrid|e': commands_exist,
    "architecture.md: swarm start --host 0.0.0.0 --peer https://planner.example:10": commands_exist,
    "scale.md: engine: verl": is_a_job,
    "models.md: model: /models/qwen": is_a_job_with_vllm,
    "models.md: swarm export [RUN|CHECKPOINT] DIR [--merge-lora] [--step N]": commands_exist,
    "models.md: swarm gc [--home DIR] [--keep-days D] [--dry-run] [--json]": commands_exist,
    "models.md: lora_rank: 8                              # 0, the default,": is_an_adapter,
}
SNIPPET = "README.md: import random"
START = "README.md: .venv/bin/swarm start"
SQL = "research.md: select x.name, avg(v.mean), count(*)"
TEAM = "training.md: from swarm import SwarmClient, SwarmTeam, Task, WorkflowOutp"
LOOP = "own-agent.md: from my_agent import my_agent"
QUICK_AGENTS = ["own-agent.md: from openai import OpenAI", "own-agent.md: import httpx"]
SLOW_AGENTS = ["own-agent.md: from langchain_openai import ChatOpenAI", "own-agent.md: from pydantic_ai import Agent"]
RECORDED = "operations.md: from pathlib import Path"
RUN_BELOW = {SNIPPET, START, SQL, TEAM, LOOP, RECORDED, *QUICK_AGENTS, *SLOW_AGENTS}


def test_every_block_is_run_or_listed_with_a_reason() -> None:
    elsewhere = {name for name, block in blocks().items() if (block.page, block.section) in OF_OTHER_TESTS}
    found = {name for name, block in blocks().items() if block.page != HTTP_PAGE} - elsewhere
    assert found == set(NOT_RUN) | set(USAGE) | RUN_BELOW


@pytest.mark.parametrize("name", USAGE)
def test_usage_and_settings_are_those_there_are(name: str) -> None:
    USAGE[name](blocks()[name])


def test_the_questions_of_the_readme_are_understood_without_a_language_model() -> None:
    lines = blocks()[QUESTIONS].text.splitlines()[:2]
    start: Any = typer.main.get_command(researcher.cli.app).commands["start"]  # pyright: ignore[reportAttributeAccessIssue]
    for line in lines:
        given = start.make_context("start", shlex.split(line)[2:]).params
        settings = read_settings({"planner": "rules", "seeds": given["seeds"]})
        check_study(given["topic"], complete_from_topic(given["topic"], settings))


def test_the_command_that_starts_a_server_starts_one(tmp_path: Path) -> None:
    words = shlex.split(blocks()[START].text)
    command = [sys.executable, "-m", "swarm.cli", *words[1:], "--port", "0", "--home", str(tmp_path), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = json.loads(server.stdout.readline())["url"]
        with SwarmClient(url) as client:
            assert client.status().state == "OFFLINE"
        server.send_signal(signal.SIGTERM)
        server.wait(timeout=60)


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
        ("batch_size=8, num_repeat=8, total_steps=20", "batch_size=2, num_repeat=2, total_steps=2"),
    ):
        assert old in loop
        loop = loop.replace(old, new)
    (tmp_path / "loop.py").write_text(loop)
    done = subprocess.run(
        [sys.executable, "loop.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert len(done.stdout.split()) == 2


@pytest.mark.slow
@pytest.mark.timeout(700)
def test_the_program_of_the_readme_learns_what_the_readme_says(start_server: Any, tmp_path: Path) -> None:
    rewards = run_snippet(start_server().url, tmp_path)
    assert len(rewards) == 30
    assert rewards[0] <= 0.5 and min(rewards[-5:]) >= 0.9


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
