"""Preflight: what a careless client does is named, and what a careful one does is not."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import pytest
from batch_support import make_episode

from swarm.batch import Diagnostics
from swarm.batch.diagnostics import MAX_CLIENTS
from swarm.types import FinishedEpisode, Group, TrainBatch

REPEAT = 4


def episode(task_id: str, reward: float, number: int) -> FinishedEpisode:
    return make_episode(f"ep-{number}", task_id, reward=reward, client="c")


def run(diagnostics: Diagnostics, task_ids: list[str], *, constant: bool = False) -> None:
    for number, task_id in enumerate(task_ids):
        diagnostics.begun("c", task_id)
        diagnostics.ended("c", episode(task_id, 1.0 if constant else float(number % 3), number), REPEAT)


def codes(diagnostics: Diagnostics) -> list[str]:
    return [warning.code for warning in diagnostics.warnings()]


@pytest.mark.parametrize(
    "tasks",
    [
        [number // REPEAT for number in range(400)],
        [number % 16 for number in range(16 * REPEAT)],
        [task for task in range(200) for _ in range(REPEAT - (task % 3 == 0))],
    ],
    ids=["repeats in a row", "all tasks once for each repeat", "a few tasks cut short"],
)
def test_a_careful_client_is_not_warned_about(tasks: list[int]) -> None:
    diagnostics = Diagnostics()
    run(diagnostics, [f"t{task}" for task in tasks])
    assert codes(diagnostics) == []


@pytest.mark.parametrize("task_id", ["", "  ", "None", "null"])
def test_blank_task_ids_are_named(task_id: str) -> None:
    diagnostics = Diagnostics(clock=lambda: 7.0)
    run(diagnostics, [task_id, "t1"])
    (warning,) = diagnostics.warnings()
    assert (warning.code, warning.client_id, warning.last_at) == ("empty_task_id", "c", 7.0)


def test_one_id_for_many_tasks_is_named_and_a_second_epoch_is_not() -> None:
    diagnostics = Diagnostics()
    run(diagnostics, ["t"] * 2 * REPEAT)
    assert codes(diagnostics) == []
    members = tuple(episode("t", 1.0, number) for number in range(2 * REPEAT))
    diagnostics.batch_closed(TrainBatch("b", 1, (Group("t", members),)))
    run(diagnostics, ["t"] * 2 * REPEAT)
    assert codes(diagnostics) == []
    run(diagnostics, ["t"])
    assert codes(diagnostics) == ["repeated_task_id"]


def test_a_task_may_come_again_in_the_next_batch_if_it_was_dropped_or_had_a_part_of_its_episodes_there() -> None:
    diagnostics = Diagnostics()
    for number in range(50):
        run(diagnostics, ["too easy"] * REPEAT + [f"t{number}"] * (REPEAT // 2))
        diagnostics.batch_closed(TrainBatch("b", number, ()))
        run(diagnostics, [f"t{number}"] * (REPEAT // 2))
    assert codes(diagnostics) == []


def test_a_reward_that_never_changes_is_named_until_it_does() -> None:
    diagnostics = Diagnostics()
    run(diagnostics, [f"t{number // REPEAT}" for number in range(40)], constant=True)
    assert codes(diagnostics) == ["constant_reward"]
    run(diagnostics, ["u"])
    assert codes(diagnostics) == []


def test_a_client_that_repeats_its_tasks_too_seldom_is_named() -> None:
    diagnostics = Diagnostics()
    run(diagnostics, [f"t{number // 2}" for number in range(128)])
    assert codes(diagnostics) == []
    run(diagnostics, [f"t{number // 2}" for number in range(128, 140)])
    assert codes(diagnostics) == ["num_repeat_mismatch"]
    assert "last one with 2" in diagnostics.warnings()[0].message


def test_turn_rewards_are_a_reward_that_changes() -> None:
    diagnostics = Diagnostics()
    for number in range(40):
        ended = replace(episode(f"t{number // REPEAT}", 1.0, number), turn_rewards=(0.5,))
        diagnostics.ended("c", ended, REPEAT)
    assert codes(diagnostics) == []


def test_episodes_without_a_call_of_the_model_are_named_by_that_alone_until_there_is_a_call() -> None:
    diagnostics = Diagnostics()
    uncalled = [replace(episode(f"t{number // REPEAT}", 0.0, number), samples=()) for number in range(40)]
    for ended in uncalled[:2]:
        diagnostics.ended("c", ended, REPEAT)
    assert codes(diagnostics) == []
    for ended in uncalled[2:]:
        diagnostics.ended("c", ended, REPEAT)
    (warning,) = diagnostics.warnings()
    assert (warning.code, warning.count) == ("no_model_call", 38)
    assert "the last 40 episodes ended without an answered call of the model" in warning.message

    diagnostics.ended("c", episode("t10", 0.0, 40), REPEAT)
    assert codes(diagnostics) == []


def test_episodes_that_are_never_ended_are_named_and_a_crash_now_and_then_is_not() -> None:
    diagnostics = Diagnostics()
    for number in range(20):
        diagnostics.begun("c", None)
        diagnostics.lost("c", "lease_expired" if number % 6 == 5 else "client_abort")
    assert codes(diagnostics) == []
    for _ in range(3):
        diagnostics.begun("c", None)
        diagnostics.lost("c", "lease_expired")
    assert codes(diagnostics) == ["episodes_never_ended"]


def test_memory_is_bounded_whatever_clients_send() -> None:
    diagnostics = Diagnostics()
    for number in range(MAX_CLIENTS + 50):
        diagnostics.begun(f"c{number}", "none")
    assert len(diagnostics.warnings()) == MAX_CLIENTS
    tracemalloc.start()
    try:
        for number in range(3_000):
            task_id = f"{number:0500}"
            diagnostics.ended("c", episode(task_id, 1.0, number), num_repeat=10_000)
        assert tracemalloc.get_traced_memory()[0] < 200_000
    finally:
        tracemalloc.stop()
