"""The pretrained model smollm2 behind a server, where this machine has it."""

from __future__ import annotations

from typing import Any

import pytest
from tests_support import ask

from swarm import SwarmClient, TrainJob
from swarm.models.named import find_named

pytestmark = pytest.mark.skipif(find_named("smollm2") is None, reason="smollm2 is not on this machine: run make model")
JOB = TrainJob(model="smollm2", engine="local", batch_size=1, num_repeat=2, total_steps=1, lr=1e-6)


@pytest.mark.timeout(300)
def test_pretrained_model_answers_a_question_of_fact_and_ends_its_reply(start_server: Any) -> None:
    server = start_server(JOB)
    with SwarmClient(server.url) as client:
        _, credentials = client.begin_episode()
        reply = ask(credentials, "What is the capital of France?", temperature=0, max_tokens=40)
    choice = reply.json()["choices"][0]
    assert "Paris" in choice["message"]["content"]
    assert choice["finish_reason"] == "stop"
