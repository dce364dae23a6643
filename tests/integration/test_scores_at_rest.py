"""A score on the way is of one weight version, or says that it is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from tests_support import run_batch, wait_for_step

from swarm import SwarmClient, TrainJob
from swarm.client import Evaluation
from swarm.environments import load_environment
from swarm.errors import EngineNotReady
from swarm.program import measure
from swarm.program.gates import PeriodicEvaluation, StepScore, score_at_rest

JOB = TrainJob(engine="fake", batch_size=1, num_repeat=2, drain_timeout_s=1)


def measured_while_others_train(client: SwarmClient, times: int) -> Callable[[], Evaluation]:
    """A measurement of four tasks; before the first `times` of them another client has a step trained."""
    left = times

    def once() -> Evaluation:
        nonlocal left
        if left:
            left -= 1
            step = client.status().step
            with httpx.Client(base_url=client.url, timeout=60) as http:
                run_batch(http, tasks=1, repeats=2, name=f"other-{step}")
                wait_for_step(http, step + 1)
        return measure(client, load_environment("reverse"), episodes=4)

    return once


@pytest.mark.parametrize(("disturbed", "step", "versions"), [(0, 0, (0,)), (1, 1, (1,)), (3, None, (3,))])
def test_a_score_is_measured_anew_if_the_weights_changed(
    start_server: Any, disturbed: int, step: int | None, versions: tuple[int, ...]
) -> None:
    with SwarmClient(start_server(JOB).url) as client:
        score = score_at_rest(client, measured_while_others_train(client, disturbed))
    assert (score.step, score.evaluation.weight_versions) == (step, versions)


def test_a_chunk_ends_where_a_score_is_due_and_goes_on_after_it(start_server: Any) -> None:
    scores: list[StepScore] = []
    with SwarmClient(start_server(JOB).url) as client:
        measuring = measured_while_others_train(client, 0)
        gate = PeriodicEvaluation(client, measuring, every=3, batch_size=1, on_score=scores.append).gate
        assert (gate(2), gate(2), scores) == (2, 1, [])
        with httpx.Client(base_url=client.url, timeout=60) as http:
            run_batch(http, tasks=1, repeats=2, name="first")
            # Two of three tasks were lost: two more are let through, and nothing is scored yet.
            assert (gate(2), scores) == (2, [])
            for step in (2, 3):
                run_batch(http, tasks=1, repeats=2, name=f"step-{step}")
                wait_for_step(http, step)
        assert gate(8) == 3
    assert [score.step for score in scores] == [3]


def test_an_engine_that_was_stopped_is_not_waited_for(start_server: Any) -> None:
    with SwarmClient(start_server(JOB).url) as client:
        client.stop_engine()
        with pytest.raises(EngineNotReady, match="start it again"):
            score_at_rest(client, measured_while_others_train(client, 0))
