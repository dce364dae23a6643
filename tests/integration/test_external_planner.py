"""A coding agent plans a study: with the MCP SDK's own client, and with commands."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from mcp import Client, StdioServerParameters
from mcp.types import TextContent
from process_support import is_running
from typer.testing import CliRunner, Result

from experiments_db import QuestionStatus, StudyStatus, open_store
from researcher.cli import app

TOPIC = "Does a learning rate of 1e-2 train word reversal better than 1e-3?"
SMALL = {"engine": "fake", "seeds": 1, "steps": 1, "eval_episodes": 4, "parallel": 1}
FRAME = {
    "question": "Does lr=0.01 train reverse better than lr=0.001?",
    "family": "reverse", "kind": "compare", "ask": "better", "vary": ["lr=1e-3,1e-2"], "baseline": ["lr=0.001"],
}  # fmt: skip
PLAN = {
    "rationale": "The two rates of the topic.",
    "arms": [{"name": "lr=0.01", "settings": {"lr": 0.01}, "purpose": "Ten times the usual rate."}],
    "seeds": 1,
}
PROGRAM = "```python\nfrom swarm.program import answer_in_turn as agent\n```"
ANSWERS = {
    "frame": json.dumps(FRAME),
    "plan": json.dumps(PLAN),
    "write_program": PROGRAM,
    "repair_program": PROGRAM,
    "interpret": json.dumps({"claims": [{"claim": "opinion", "text": "Too few episodes to say anything."}]}),
    "decide": json.dumps({"action": "stop", "reason": "The question is answered as well as one seed can."}),
}
LIMIT_S = 300.0


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A home of studies; processes that work on them are ended after the test."""
    yield tmp_path / "runs"
    for process in psutil.process_iter(["cmdline"]):
        if str(tmp_path) in (process.info["cmdline"] or []) and is_running(process):
            process.send_signal(signal.SIGTERM)
            psutil.wait_procs([process], timeout=60)


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "OPENAI_API_KEY"} | {"NO_COLOR": "1"}


def command(home: Path, *words: str, text: str | None = None) -> Result:
    """Run a command in the process of the test."""
    env = {"OPENAI_API_KEY": None, "NO_COLOR": "1"}
    return CliRunner().invoke(app, [*words, "--home", str(home)], input=text, env=env)


def connect(home: Path) -> Client:
    words = ["-m", "researcher.cli", "mcp", "--home", str(home)]
    return Client(StdioServerParameters(command=sys.executable, args=words, env=environment()))


async def text(client: Client, name: str, arguments: dict[str, Any], *, is_error: bool = False) -> str:
    result = await client.call_tool(name, arguments)
    [content] = result.content
    assert isinstance(content, TextContent)
    assert result.is_error is is_error, content.text
    return content.text


async def call(client: Client, name: str, **arguments: Any) -> Any:
    return json.loads(await text(client, name, arguments))


async def refusal(client: Client, name: str, **arguments: Any) -> str:
    return await text(client, name, arguments, is_error=True)


async def next_question(client: Client) -> Any:
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        found = await call(client, "question", wait_s=20)
        if found["question"] is not None or found["status"] != "running":
            return found
    raise AssertionError("no question")


def test_a_coding_agent_plans_a_study_from_its_start_to_its_report(home: Path) -> None:
    async def plan() -> None:
        async with connect(home) as client:
            assert "exit code 2" in await refusal(client, "start", topic=TOPIC, planner="external", model="m")
            begun = await call(client, "start", topic=TOPIC, planner="external", **SMALL)
            asked = await next_question(client)
            assert asked["node"] == "frame" and TOPIC in asked["prompt"]
            assert "no JSON object" in await refusal(client, "answer", answer="I do not know.")
            assert "no JSON object" in (await next_question(client))["objection"]
            assert "not over" in await refusal(client, "report")
            assert (await call(client, "answer", answer=ANSWERS["frame"]))["answer"] == "accepted"

            asked = await next_question(client)
            assert "there is no tool" in await refusal(client, "look", tool="nosuch")
            assert {"environment", "metrics", "query"} <= {tool["name"] for tool in await call(client, "tools")}
            assert "reverse" in await text(client, "look", {"tool": "environment"})
            # The process is killed while its question is open; the next one asks the same question.
            os.kill(begun["pid"], signal.SIGKILL)
            psutil.wait_procs([item for item in psutil.process_iter() if item.pid == begun["pid"]], timeout=60)
            silent = await call(client, "question", wait_s=0)
            assert silent["question"] == asked["question"] and asked["node"] == "plan"
            assert (await call(client, "list"))[0]["silence"]
            assert "asks nothing now" in await refusal(client, "look", tool="nosuch")
            await call(client, "resume", study=begun["study"])
            assert (await next_question(client))["question"] == asked["question"]

            while asked["question"] is not None:
                await call(client, "answer", answer=ANSWERS[asked["node"]], question=asked["question"])
                asked = await next_question(client)
            assert asked["status"] == "finished", asked
            summary = await call(client, "report")
            assert summary["study"] == begun["study"] and len(summary["verdicts"]) == 2
            assert "lr=0.01" in await text(client, "report", {"form": "markdown"})

    asyncio.run(plan())
    with open_store(home / "research.db", read_only=True) as store:
        [study] = store.list_studies()
        questions = store.list_questions(study.id)
        assert {item.status for item in questions} == {QuestionStatus.ACCEPTED}
        assert [item.node for item in questions if item.node in ("frame", "plan")] == ["frame", "plan"]
        assert store.list_llm_calls(study.id) == []
        charter = store.find_charter(study.id)
        assert charter is not None and charter.document["planner"] == "external"


def begin(home: Path, *options: str) -> dict[str, Any]:
    sizes = [f"--{name.replace('_', '-')}={value}" for name, value in SMALL.items()]
    words = ["start", "--topic", TOPIC, "--planner", "external", *sizes, *options, "--detach", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "researcher.cli", *words, "--home", str(home)],
        env=environment(), capture_output=True, text=True, timeout=LIMIT_S, check=True,
    )  # fmt: skip
    return json.loads(done.stdout)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_commands_answer_and_a_waiting_study_pauses_at_once(home: Path, tmp_path: Path) -> None:
    begun = begin(home)
    study = begun["study"]
    asked = json.loads(command(home, "questions", study, "--wait", "60", "--json").stdout)
    listed, shown = command(home, "list"), command(home, "status", study, "--json")
    assert "waits" in listed.stdout and json.loads(shown.stdout)["question"]["node"] == "frame"

    refused = command(home, "answer", study, "-", text="nothing")
    other = command(home, "answer", study, "-", "--question", str(asked["question"] + 1), text="{}")
    missing = command(home, "answer", study, str(tmp_path / "nosuch"))
    assert (refused.exit_code, other.exit_code, missing.exit_code) == (2, 1, 2)
    assert "no JSON object" in refused.stderr and refused.stdout == ""

    assert command(home, "answer", study, "-", text=ANSWERS["frame"]).exit_code == 0
    with open_store(home / "research.db", read_only=True) as store:
        wait_until(lambda: any(item.node == "plan" for item in store.list_questions(study)))
        assert command(home, "pause", study).exit_code == 0
        wait_until(lambda: not is_running(begun["pid"]))
        assert store.get_study(study).status is StudyStatus.PAUSED
        waiting = store.find_waiting_question(study)
        assert waiting is not None and waiting.node == "plan"
    late = command(home, "answer", study, "-", "--json", text=ANSWERS["plan"])
    assert json.loads(late.stdout)["status"] == "answered" and "researcher resume" in late.stderr
    again = command(home, "answer", study, "-", text=ANSWERS["plan"])
    assert again.exit_code == 1 and "takes no answer" in again.stderr


def test_a_study_without_an_answer_pauses_at_its_deadline_and_says_why(home: Path) -> None:
    sizes = [f"--{name.replace('_', '-')}={value}" for name, value in SMALL.items()]
    done = command(home, "start", "--topic", TOPIC, "--planner", "external", *sizes, "--answer-deadline", "0.001")

    assert done.exit_code == 10, done.stderr
    with open_store(home / "research.db", read_only=True) as store:
        [study] = store.list_studies()
        assert study.status is StudyStatus.PAUSED and "had no answer" in (study.status_reason or "")
