"""Studies that a careful planner carries out, told by its recorded answers: what it asks, sees, tries and drops.

A folder holds `story.toml` (the question in flags, and what becomes of each arm), and `replies/` (one file per answer,
as llm_replies/server.py reads them). The same answers are given by a language model over HTTP, and by a coding agent
over MCP alone.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_replies.server import CALL, ReplyServer
from mcp import Client, StdioServerParameters
from mcp.types import TextContent

HERE = Path(__file__).parent
LIMIT_S = 1800.0
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True)
class Story:
    """One story. `kept` is the only arm that may be kept; `rejected` never ran, `crashed` failed in training,
    `withdrawn` was taken back after a review, and `gamed` has a reward that rises while the grade does not."""

    name: str
    topic: str
    flags: Mapping[str, Any]
    kept: tuple[str, ...]
    rejected: tuple[str, ...]
    crashed: tuple[str, ...]
    gamed: tuple[str, ...]
    repaired: tuple[str, ...]
    withdrawn: tuple[str, ...] = ()

    @property
    def replies(self) -> Path:
        return HERE / self.name / "replies"

    def options(self, folder: Path) -> dict[str, Any]:
        """The options of `researcher start`, with the paths of the story's own files."""
        own = {name: str(HERE / self.name / value) for name, value in self.flags.items() if name == "program"}
        if self.flags.get("env") == "turn.jsonl":
            own["env"] = str(write_turned_words(folder / "turn.jsonl"))
        return {**self.flags, **own}


def load_story(name: str) -> Story:
    values = tomllib.loads((HERE / name / "story.toml").read_text())
    lists = {key: tuple(value) for key, value in values.items() if isinstance(value, list)}
    return Story(name=name, **{**values, **lists})


def write_turned_words(path: Path) -> Path:
    """Write a task in a wording that the bundled model does not know."""
    chance = random.Random(5)
    words = dict.fromkeys("".join(chance.choices(LETTERS, k=chance.randint(3, 5))) for _ in range(1300))
    lines = [{"prompt": f"Please turn the word {w} around, letter by letter.", "answer": w[::-1]} for w in words]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def play_by_model(story: Story, home: Path) -> None:
    """Carry out a story with `--planner llm`; every answer comes from its files, over HTTP."""
    words = [word for name, value in story.options(home.parent).items() for word in _as_words(name, value)]
    with ReplyServer(story.replies) as server:
        env = {**os.environ, "OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "sk-of-the-story", "NO_COLOR": "1"}
        command = [sys.executable, "-m", "researcher.cli", "start", "--planner", "llm", "--model", "careful"]
        command += ["--topic", story.topic, "--home", str(home), "--llm-patience", "0.1", *words]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def play_by_agent(story: Story, home: Path) -> None:
    """Carry out a story with `--planner external` over MCP alone: look, answer, until the report is there."""
    asyncio.run(_play_by_agent(story, home))


async def _play_by_agent(story: Story, home: Path) -> None:
    words = ["-m", "researcher.cli", "mcp", "--home", str(home)]
    env = {name: value for name, value in os.environ.items() if name != "OPENAI_API_KEY"}
    options = {key: value for key, value in story.options(home.parent).items() if key != "reviewer"}
    asked: Counter[str] = Counter()
    with ReplyServer(story.replies) as replies:
        async with Client(StdioServerParameters(command=sys.executable, args=words, env=env)) as client:
            await _call(client, "start", topic=story.topic, planner="external", **_as_arguments(options))
            deadline = time.monotonic() + LIMIT_S
            while time.monotonic() < deadline:
                found = json.loads(await _call(client, "question", wait_s=20))
                if found["question"] is None:
                    if found["status"] != "running":
                        break
                    continue
                kind = replies.kind_of(found["node"], found["prompt"])
                await _answer(client, replies, kind, asked, found["question"])
            assert found["status"] == "finished", found
            assert json.loads(await _call(client, "report"))["verdicts"]


async def _answer(client: Client, replies: ReplyServer, kind: str, asked: Counter[str], question: int) -> None:
    """Look as the recorded planner looked, and give its answer."""
    while True:
        asked[kind] += 1
        text = replies.read(kind, asked[kind])
        calls = CALL.findall(text)
        if not calls:
            await _call(client, "answer", answer=text, question=question)
            return
        for tool, arguments in calls:
            await _call(client, "look", tool=tool, arguments=json.loads(arguments))


async def _call(client: Client, name: str, **arguments: Any) -> str:
    result = await client.call_tool(name, arguments)
    [content] = result.content
    assert isinstance(content, TextContent) and not result.is_error, result.content
    return content.text


def _as_words(name: str, value: Any) -> Iterator[str]:
    for each in value if isinstance(value, list) else [value]:
        yield from (f"--{name.replace('_', '-')}", str(each))


def _as_arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    lists = ("program", "fix")
    return {name: [value] if name in lists and isinstance(value, str) else value for name, value in options.items()}
