"""A whole session of each coding agent from npm against a server: it reads a file, edits it, and reads it again."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from integration.clients.stage import Stage, open_stage

from swarm.job import TrainJob

EXAMPLE = Path(__file__).parents[2] / "examples" / "coding_agents"
PROGRAMS = Path(__file__).parent / "node_modules" / ".bin"
IS_INSTALLED = shutil.which("node") is not None and PROGRAMS.is_dir()
CONTEXT_LENGTH = 400_000
"""Prompts of coding agents have 60,000 tokens of the bundled model, which has few words."""

pytestmark = [
    pytest.mark.agents,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not IS_INSTALLED, reason="NOT TESTED: coding agents need node and npm; run `make agents`"),
]

PROMPT = "Correct the spelling in greeting.txt."
ANSWER = "The greeting is correct now."
# What an agent asks of others than the server ends at a closed port, and opencode waits for no second try of npm.
NOWHERE = "http://127.0.0.1:9"
OFFLINE = {
    "HTTPS_PROXY": NOWHERE,
    "HTTP_PROXY": NOWHERE,
    "NO_PROXY": "127.0.0.1,localhost",
    "npm_config_fetch_retries": "0",
}


@dataclass(frozen=True)
class Session:
    """The tool calls of a session by name and arguments, and the names in `x-ignored-fields` of its requests."""

    calls: tuple[tuple[str, Mapping[str, Any]], ...]
    ignored: frozenset[str] = frozenset()


def sessions(path: Path) -> dict[str, Session]:
    """By agent. Codex also calls a tool of a namespace, for an agent that is not there."""
    file, change = str(path), {"old": "wrold", "new": "world"}
    read = ("exec_command", {"cmd": "cat greeting.txt"})
    edit = ("exec_command", {"cmd": "sed -i s/{old}/{new}/ greeting.txt".format(**change)})
    strings = {"old_string": change["old"], "new_string": change["new"]}
    return {
        "codex": Session(
            (read, edit, read, ("multi_agent_v1.close_agent", {"target": "nobody"})),
            frozenset({"client_metadata", "tools.multi_agent_v1.description", "tools.web_search"}),
        ),
        "claude": Session(
            (("Read", {"file_path": file}), ("Edit", {"file_path": file, **strings}), ("Read", {"file_path": file})),
            frozenset({"system.0", "thinking"}),
        ),
        "opencode": Session(
            (
                ("read", {"filePath": file}),
                ("edit", {"filePath": file, "oldString": change["old"], "newString": change["new"]}),
                ("read", {"filePath": file}),
            )
        ),
        "qwen": Session(
            (
                ("read_file", {"file_path": file}),
                ("edit", {"file_path": file, **strings}),
                ("read_file", {"file_path": file}),
            )
        ),
    }


@pytest.fixture(scope="module")
def example() -> Iterator[ModuleType]:
    """The client of the example, which imports its neighbour by name."""
    spec = importlib.util.spec_from_file_location("coding_agents_client", EXAMPLE / "client.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLE))
        patch.delitem(sys.modules, "agents", raising=False)
        spec.loader.exec_module(module)
        yield module


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    job = TrainJob(engine="fake", batch_size=1000, num_repeat=2, max_response_length=512, episode_timeout_s=1200)
    with open_stage(tmp_path_factory.mktemp("agents"), job, context_length=CONTEXT_LENGTH) as stage:
        yield stage


@pytest.mark.parametrize("name", ["codex", "claude", "opencode", "qwen"])
def test_a_session_is_one_line_of_turns_that_are_trained_once(
    stage: Stage, example: ModuleType, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}")
    folder, home = tmp_path / "folder", tmp_path / "home"
    folder.mkdir()
    home.mkdir()
    file = folder / "greeting.txt"
    file.write_text("Hello wrold\n")
    session = sessions(file)[name]
    stage.say(*(written(*call) for call in session.calls), ANSWER)

    def agent(*given: Any) -> Any:
        invocation = example.AGENTS[name](*given)
        return type(invocation)(invocation.command, {**invocation.env, **OFFLINE})

    with stage.episode(ignored=session.ignored) as episode:
        told = example.run_agent(agent, PROMPT, episode.credentials, folder, home)
    assert ANSWER in told
    assert file.read_text() == "Hello world\n"
    assert [called(reply) for reply in episode.replies] == [*([call] for call in session.calls), []]
    assert episode.parents == [None, *range(len(session.calls))]


def written(name: str, arguments: Mapping[str, Any]) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def called(reply: Mapping[str, Any]) -> list[tuple[str, Any]]:
    functions = [call["function"] for call in reply.get("tool_calls") or ()]
    return [(function["name"], json.loads(function["arguments"])) for function in functions]
