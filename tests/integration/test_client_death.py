"""A client killed in mid-batch costs its running episodes and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from typing import Any

import httpx
from tests_support import run_batch, wait_for_state, wait_for_step

from swarm.job import TrainJob

DYING_CLIENT = """
    import sys, time
    from swarm import SwarmClient, Task, WorkflowOutput

    client = SwarmClient(sys.argv[1], client_id="dying")
    for number in range(3):
        episode, _ = client.begin_episode()
        client.end_episode(Task("q", f"orphan-{number}"), episode, WorkflowOutput(reward=1.0))
    for _ in range(4):
        client.begin_episode(discard_episode_timeout=1.5)
    print("in the middle", flush=True)
    time.sleep(60)
"""


def test_training_goes_on_after_a_client_was_killed_in_mid_batch(start_server: Any) -> None:
    job = TrainJob(engine="fake", batch_size=2, num_repeat=2, drain_timeout_s=600)
    server = start_server(job)
    with httpx.Client(base_url=server.url, timeout=60) as http:
        wait_for_state(http, "ROLLING")
        with subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(DYING_CLIENT), server.url], stdout=subprocess.PIPE, text=True
        ) as client:
            assert client.stdout is not None
            assert client.stdout.readline() == "in the middle\n"
            os.kill(client.pid, signal.SIGKILL)
        run_batch(http, tasks=2, repeats=2, name="survivor")
        status = wait_for_step(http, 1)
        # Three ended without a model call, four never ended; none of them is a reward.
        assert status["failures"] == {"idle_timeout": 4, "no_tokens": 3}
        run_batch(http, tasks=2, repeats=2, name="next")
        wait_for_step(http, 2)
