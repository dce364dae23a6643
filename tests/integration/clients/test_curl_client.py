"""curl against a running server: what a person types, in the environment that an episode hands out."""

from __future__ import annotations

import json
import os
import subprocess

import pytest
from integration.clients.stage import Observed, Stage

pytestmark = pytest.mark.timeout(400)

LIMIT_S = 20


def curl(episode: Observed, command: str) -> str:
    """The output of a shell command that calls curl."""
    environment = {"PATH": os.environ["PATH"], **episode.credentials.env()}
    done = subprocess.run(
        ["bash", "-ec", command], env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_stream_of_chunks(nano: Stage) -> None:
    with nano.episode() as episode:
        lines = curl(
            episode,
            """curl -sSN --fail-with-body "$OPENAI_BASE_URL/chat/completions" \
                -H "Authorization: Bearer $OPENAI_API_KEY" -H "Content-Type: application/json" \
                -d '{"model": "default", "stream": true, "return_token_ids": true,
                     "messages": [{"role": "user", "content": "Reverse: ABC"}]}'""",
        ).split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
    ids = [token for chunk in chunks for choice in chunk["choices"] for token in choice["token_ids"]]
    assert ids == episode.turns[0].output_ids
