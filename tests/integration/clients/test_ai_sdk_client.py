"""A program in JavaScript on Vercel's AI SDK against a running server. It finds the model by its environment alone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from integration.clients.stage import Observed, Stage

from swarm.types import EpisodeType

PROGRAM = Path(__file__).parent / "ai_sdk" / "client.mjs"
IS_INSTALLED = shutil.which("node") is not None and (PROGRAM.parent / "node_modules").is_dir()
LIMIT_S = 30

pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.skipif(not IS_INSTALLED, reason="NOT TESTED: the AI SDK needs node and npm; run `make system ai-sdk`"),
]

CALL_MULTIPLY = '<tool_call>\n{"name": "multiply", "arguments": {"a": 6, "b": 7}}\n</tool_call>'


def run(episode: Observed, scenario: str) -> dict[str, Any]:
    environment = {"PATH": os.environ["PATH"], **episode.credentials.env()}
    done = subprocess.run(
        ["node", str(PROGRAM), scenario], env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr, "the library warned of something"
    return json.loads(done.stdout)


def test_what_is_streamed_is_what_was_sampled(nano: Stage) -> None:
    with nano.episode() as episode:
        told = run(episode, "stream")
    [turn] = episode.turns
    assert "".join(told["pieces"]) == turn.reply["content"]
    assert (told["outputTokens"], told["finish"]) == (len(turn.output_ids), turn.finish_reason)


def test_an_eval_episode_takes_every_setting(nano: Stage) -> None:
    with nano.episode(EpisodeType.EVAL) as episode:
        told = run(episode, "settings")
    assert told == {"text": episode.replies[0]["content"], "warnings": []}


@pytest.mark.parametrize("scenario", ["tools", "streamedTools"])
def test_a_loop_over_tools_is_one_line_of_turns(scripted: Stage, scenario: str) -> None:
    scripted.say(CALL_MULTIPLY, "It is 42.")
    with scripted.episode() as episode:
        told = run(episode, scenario)
    assert told == {"text": "It is 42.", "steps": 2, "results": ["42"]}
    assert episode.parents == [None, 0]


def test_an_object_is_what_the_grammar_allowed(nano: Stage) -> None:
    with nano.episode() as episode:
        told = run(episode, "object")
    assert json.loads(episode.replies[0]["content"]) == told["object"]
