"""Preflight: what a careless client does is named, and what a careful one does is not."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import pytest

from swarm.batch import Preflight
from swarm.batch.preflight import MAX_CLIENTS
from swarm.types import FinishedEpisode, Group, TrainBatch

REPEAT = 4


def episode(task_id: str, reward: float, number: int, client: str = "c") -> FinishedEpisode:
    return FinishedEpisode(f"ep-{client}-{number}", task_id, client, reward, None, (), 0.0)


def run(preflight: Preflight, task_ids: list[str], *, client: str = "c", constant: bool = False) -> None:
    for number, task_id in enumerate(task_ids):
        preflight.begun(client, task_id)
        reward = 1.0 if constant else float(number % 3)
        preflight.ended(client, episode(task_id, reward, number, client), REPEAT)


def codes(preflight: Preflight) -> list[str]:
    return [warning.code for warning in preflight.warnings()]


def test_a_careful_client_is_not_warned_about() -> None:
    preflight = Preflight()
    run(preflight, [f"t{number // REPEAT}" for number in range(400)])
    assert codes(preflight) == []


def test_a_client_that_walks_through_its_tasks_once_per_repeat_is_not_warned_about() -> None:
    preflight = Preflight()
    run(preflight, [f"t{number % 16}" for number in range(16 * REPEAT)])
    assert codes(preflight) == []


@pytest.mark.parametrize("task_id", ["", "  ", "None", "null"])
def test_blank_task_ids_are_named(task_id: str) -> None:
    preflight = Preflight(clock=lambda: 7.0)
    run(preflight, [task_id, "t1"])
    (warning,) = preflight.warnings()
    assert (warning.code, warning.client_id, warning.last_at) == ("empty_task_id", "c", 7.0)


def test_one_id_for_many_tasks_is_named_and_a_second_epoch_is_not() -> None:
    preflight = Preflight()
    run(preflight, ["t"] * 2 * REPEAT)
    assert codes(preflight) == []
    members = tuple(episode("t", 1.0, number) for number in range(2 * REPEAT))
    preflight.sealed(TrainBatch("b", 1, (Group("t", members),)))
    run(preflight, ["t"] * 2 * REPEAT)
    assert codes(preflight) == []
    run(preflight, ["t"])
    assert codes(preflight) == ["repeated_task_id"]


def test_a_task_that_is_dropped_from_every_batch_may_come_again_all_the_same() -> None:
    preflight = Preflight()
    for step in range(6):
        run(preflight, ["too easy"] * REPEAT)
        preflight.sealed(TrainBatch("b", step, ()))
    assert codes(preflight) == []


def test_a_task_whose_episodes_fall_into_two_batches_is_complete_all_the_same() -> None:
    preflight = Preflight()
    for number in range(50):
        run(preflight, [f"t{number}"] * (REPEAT // 2))
        preflight.sealed(TrainBatch("b", number, ()))
        run(preflight, [f"t{number}"] * (REPEAT // 2))
    assert codes(preflight) == []


def test_a_reward_that_never_changes_is_named_until_it_does() -> None:
    preflight = Preflight()
    run(preflight, [f"t{number // REPEAT}" for number in range(40)], constant=True)
    assert codes(preflight) == ["constant_reward"]
    run(preflight, ["u"])
    assert codes(preflight) == []


def test_a_client_that_repeats_its_tasks_too_seldom_is_named() -> None:
    preflight = Preflight()
    run(preflight, [f"t{number // 2}" for number in range(128)])
    assert codes(preflight) == []
    run(preflight, [f"t{number // 2}" for number in range(128, 140)])
    assert codes(preflight) == ["num_repeat_mismatch"]
    assert "last one with 2" in preflight.warnings()[0].message


def test_a_few_tasks_cut_short_are_not_named() -> None:
    preflight = Preflight()
    for task in range(200):
        run(preflight, [f"t{task}"] * (REPEAT - (task % 3 == 0)))
    assert codes(preflight) == []


def test_turn_rewards_are_a_reward_that_changes() -> None:
    preflight = Preflight()
    for number in range(40):
        ended = replace(episode(f"t{number // REPEAT}", 1.0, number), turn_rewards=(0.5,))
        preflight.ended("c", ended, REPEAT)
    assert codes(preflight) == []


def test_a_crash_now_and_then_is_not_named() -> None:
    preflight = Preflight()
    for number in range(20):
        preflight.begun("c", None)
        if number % 6 == 5:
            preflight.lost("c", "lease_expired")
    assert codes(preflight) == []


def test_episodes_that_are_never_ended_are_named() -> None:
    preflight = Preflight()
    for _ in range(3):
        preflight.begun("c", None)
        preflight.lost("c", "client_abort")
    assert codes(preflight) == []
    for _ in range(3):
        preflight.begun("c", None)
        preflight.lost("c", "lease_expired")
    assert codes(preflight) == ["episodes_never_ended"]


def test_memory_is_bounded_whatever_clients_send() -> None:
    preflight = Preflight()
    for number in range(MAX_CLIENTS + 50):
        preflight.begun(f"c{number}", "none")
    assert len(preflight.warnings()) == MAX_CLIENTS
    tracemalloc.start()
    try:
        for number in range(3_000):
            task_id = f"{number:0500}"
            preflight.ended("c", episode(task_id, 1.0, number), num_repeat=10_000)
        assert tracemalloc.get_traced_memory()[0] < 200_000
    finally:
        tracemalloc.stop()
