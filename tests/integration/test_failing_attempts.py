"""Programs that fail most attempts before their first step, told from servers and environments that break them."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from tests_support import begin, end

from swarm import SwarmClient, TrainJob

JOB = TrainJob(engine="fake", batch_size=2, num_repeat=2, total_steps=5)


@pytest.mark.parametrize(
    ("failed", "done", "reason", "is_ended"),
    [
        (4, 3, "client_error:ValueError", True),
        (4, 0, "client_error:ProgramFailure", True),
        # Too few to tell.
        (3, 0, "client_error:ValueError", False),
        (9, 3, "client_error:EnvironmentFailure", False),
        (9, 3, "client_error:ConnectError", False),
        (9, 3, "client_died", False),
    ],
)
def test_run_ends_once_its_program_has_failed_a_batch_of_attempts_and_most_of_them(
    start_server: Any, failed: int, done: int, reason: str, is_ended: bool
) -> None:
    from researcher.servers.jobs import diagnose_attempts

    url = start_server(JOB).url
    with httpx.Client(base_url=url, timeout=60) as http, SwarmClient(url) as client:
        client.auto_sync_train_config_and_start_engine(JOB)
        for number in range(failed):
            client.abort_episode(begin(http, task_id=f"task-{number}")["episode_id"], reason)
        for number in range(done):
            end(http, begin(http, task_id=f"done-{number // 2}"), task_id=f"done-{number // 2}", reward=0.0, call=True)

        found = diagnose_attempts(client, client.status(), JOB.model_dump())

        assert (found is not None) is is_ended
        if found is not None:
            assert f"{failed} of {failed + done} attempts" in found.sentence and found.kind == "program"
