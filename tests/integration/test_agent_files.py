"""`swarm eval --agent FILE`: an agent of the user's, with its tasks and reward, is scored without an environment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import run_swarm
from integration.test_docs_blocks import blocks

from swarm import SwarmClient, TrainJob

CALL = """
import httpx
from swarm import Task
from beside import WORDS


def my_agent(question, credentials):
    body = {"model": "default", "messages": [{"role": "user", "content": question}], "max_tokens": 4}
    headers = {"Authorization": f"Bearer {credentials.api_key}"}
    return httpx.post(f"{credentials.base_url}/chat/completions", json=body, headers=headers).json()["choices"]


def tasks():
    yield from map(Task, WORDS)


def reward(task, answer):
    return task.main_query == "a" and len(answer) == 1
"""


@pytest.fixture(scope="module")
def served(start_shared_server: Any) -> str:
    url: str = start_shared_server().url
    with SwarmClient(url) as client:
        client.auto_sync_train_config_and_start_engine(TrainJob(engine="fake", batch_size=2, num_repeat=2))
    return url


def write(directory: Path, code: str = CALL) -> str:
    (directory / "beside.py").write_text("WORDS = ['a', 'b', 'c', 'd']\n")
    (directory / "mine.py").write_text(code)
    return str(directory / "mine.py")


def test_an_agent_is_scored_on_its_own_tasks_by_its_own_reward_and_nothing_is_trained(
    served: str, tmp_path: Path
) -> None:
    done = run_swarm("eval", "--agent", write(tmp_path), "--url", served, "--json", "--k", "1,2")
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout)
    assert (figures["task"], figures["split"], figures["episodes"], figures["mean_reward"]) == ("mine", None, 8, 0.25)
    assert [each["mean"] for each in figures["pass_at_k"]] == [0.25, 0.25]
    assert "only 4 held-out tasks" in done.stderr
    with SwarmClient(served) as client:
        assert client.status().weight_version == 0


def test_an_agent_that_raises_scores_nothing_and_its_first_error_is_shown(served: str, tmp_path: Path) -> None:
    code = CALL.replace("    body =", "    if question != 'a':\n        raise ValueError('no such shelf')\n    body =")
    done = run_swarm("eval", "--agent", write(tmp_path, code), "--url", served)
    assert done.exit_code == 0, done.output
    assert "mine: 0.250" in done.stdout and "3 of them broken" in done.stdout
    assert "ValueError: no such shelf" in done.stderr


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("def reward(task, answer)", "def rewards(task, answer)", "the function rewards would never be called"),
        ("def reward(task, answer)", "def price(task, answer)", "lacks reward(task, answer)"),
        ("def my_agent(question, credentials)", "def my_agent(question)", "my_agent(question, credentials) is called"),
        ("yield from map(Task, WORDS)", "return []", "returned no task"),
        ("yield from map(Task, WORDS)", "return WORDS", "returned a str: use swarm.Task"),
        ("yield from map(Task, WORDS)", "return [Task('a'), Task('a')]", "2 times"),
        ("yield from map(Task, WORDS)", "raise SystemExit(3)", "tasks ends the process"),
    ],
)
def test_a_file_that_cannot_be_scored_is_refused_by_name(
    served: str, tmp_path: Path, old: str, new: str, words: str
) -> None:
    done = run_swarm("eval", "--agent", write(tmp_path, CALL.replace(old, new)), "--url", served)
    assert done.exit_code != 0 and words in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_reward_that_is_no_number_is_a_fault_of_the_file(served: str, tmp_path: Path) -> None:
    code = CALL.replace('return task.main_query == "a" and len(answer) == 1', 'return float("nan")')
    done = run_swarm("eval", "--agent", write(tmp_path, code), "--url", served, "--json")
    figures = json.loads(done.stdout)
    assert (figures["mean_reward"], figures["broken"]) == (0.0, 4)
    assert "must be finite" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "either --env ENVIRONMENT or --agent FILE"),
        (["--agent", "mine.py", "--env", "reverse"], "either --env ENVIRONMENT or --agent FILE"),
        (["--agent", "mine.py", "--split", "test"], "--split belongs to --env"),
        (["--agent", "mine.py", "--program", "x.py"], "--program belongs to --env"),
        (["--agent", "missing.py"], "no Python file of this name"),
    ],
)
def test_options_that_an_agent_file_has_no_use_for_are_refused(arguments: list[str], words: str) -> None:
    done = run_swarm("eval", *arguments)
    assert done.exit_code == 2 and words in done.stderr


def test_the_agent_file_of_the_page_is_scored(served: str, tmp_path: Path) -> None:
    (tmp_path / "my_agent.py").write_text(blocks()["own-agent.md: import httpx"].text)
    (tmp_path / "score.py").write_text(blocks()["own-agent.md: from swarm import Task"].text)
    done = run_swarm("eval", "--agent", str(tmp_path / "score.py"), "--url", served, "-n", "4")
    assert done.exit_code == 0 and done.stdout.startswith("score: "), done.output
