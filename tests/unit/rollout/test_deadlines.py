"""When a silent episode is given up: lease, idle timeout, hard deadline, what renews which, and what watching costs."""

from __future__ import annotations

import asyncio
import time

import pytest
from rollout_support import sampled_turn

from swarm.ledger import EpisodeRow, RecordedEpisode
from swarm.rollout.running import (
    REMEMBERED_EPISODES,
    SLACK,
    DeadlineQueue,
    DeadlineTimer,
    RunningEpisode,
    RunningEpisodes,
)
from swarm.types import EpisodeType


def row_of(
    name: str = "ep", *, idle_timeout_s: float = 240, lease_s: float | None = None, timeout_s: float = 1800
) -> EpisodeRow:
    now = time.time()
    return EpisodeRow(
        name, EpisodeType.TRAIN, "laptop", f"digest of {name}", now, idle_timeout_s, now + timeout_s, lease_s=lease_s
    )


def expiry_s(episode: RunningEpisode, now: float) -> tuple[float, str]:
    due, reason = episode.expiry(now)
    return pytest.approx(due - now, abs=0.5), reason


def test_the_nearest_of_the_three_limits_ends_an_episode() -> None:
    now = time.monotonic()
    assert expiry_s(RunningEpisode.of(row_of(lease_s=30), None), now) == (30, "lease_expired")
    assert expiry_s(RunningEpisode.of(row_of(lease_s=30, idle_timeout_s=20), None), now) == (20, "idle_timeout")
    assert expiry_s(RunningEpisode.of(row_of(lease_s=30, idle_timeout_s=20, timeout_s=10), None), now) == (
        10,
        "deadline",
    )
    assert expiry_s(RunningEpisode.of(row_of(), None), now) == (240, "idle_timeout")


def test_a_call_in_flight_is_a_sign_of_life_but_for_the_deadline() -> None:
    episode = RunningEpisode.of(row_of(lease_s=30, timeout_s=60), None)
    episode.calls_in_flight = 1
    later = time.monotonic() + 50
    assert expiry_s(episode, later) == (10, "deadline")
    assert episode.view().idle_s == 0


def test_a_restored_episode_has_its_turns_a_fresh_lease_and_the_old_deadline() -> None:
    row = row_of(lease_s=30, timeout_s=-5)
    turns = (sampled_turn("ep", 0), sampled_turn("ep", 2))
    episode = RunningEpisode.restored(RecordedEpisode(row, turns), None)
    assert episode.tree.turns == turns
    assert expiry_s(episode, time.monotonic()) == (-5, "deadline")
    assert episode.last_seen_at == pytest.approx(time.time(), abs=0.5)


def watched(*episodes: RunningEpisode) -> tuple[DeadlineQueue, RunningEpisodes]:
    running = RunningEpisodes()
    queue = DeadlineQueue(running.by_id)
    for episode in episodes:
        running.add(episode)
        queue.watch(episode, episode.expiry(time.monotonic())[0])
    return queue, running


def test_only_overdue_episodes_come_up_and_renewed_ones_are_watched_on() -> None:
    silent, renewed = (
        RunningEpisode.of(row_of("silent", lease_s=30), None),
        RunningEpisode.of(row_of("renewed", lease_s=30), None),
    )
    queue, _ = watched(silent, renewed)
    now = time.monotonic()
    assert queue.overdue(now + 20) == []
    renewed.renewed += 20
    assert queue.overdue(now + 31) == [(silent, "lease_expired")]
    assert queue.overdue(now + 31) == []
    assert queue.next_due == pytest.approx(now + 50, abs=0.5)
    assert queue.overdue(now + 51) == [(renewed, "lease_expired")]


def test_an_ended_episode_never_comes_up_and_does_not_stay_in_the_heap() -> None:
    queue, running = watched()
    for number in range(5 * SLACK):
        episode = RunningEpisode.of(row_of(f"ep{number}"), None)
        running.add(episode)
        queue.watch(episode, time.monotonic() + 240)
        running.remove(episode, "ended")
    assert len(queue._heap) <= 2 * SLACK
    assert queue.overdue(time.monotonic() + 1000) == []
    assert queue.next_due is None


def test_ten_thousand_renewed_episodes_cost_one_look_each_per_lease() -> None:
    episodes = [RunningEpisode.of(row_of(f"ep{number}", lease_s=30), None) for number in range(10_000)]
    queue, _ = watched(*episodes)
    now = time.monotonic()
    looks = 0
    began = time.perf_counter()
    for second in range(1, 61):
        if second % 10 == 0:
            for episode in episodes:
                episode.renewed = now + second
        before = queue.next_due
        assert queue.overdue(now + second) == []
        looks += queue.next_due != before
    assert looks <= 6
    assert time.perf_counter() - began < 2


def test_closed_episodes_are_remembered_by_id_and_key_within_bounds() -> None:
    running = RunningEpisodes()
    for number in range(REMEMBERED_EPISODES + 1):
        episode = RunningEpisode.of(row_of(f"ep{number}"), None)
        running.add(episode)
        running.remove(episode, "idle_timeout")
    assert running.ended("ep1") == running.ended("digest of ep1") == "idle_timeout"
    assert running.ended("ep0") is None
    assert len(running) == 0


def test_the_longest_silent_come_first() -> None:
    episodes = [RunningEpisode.of(row_of(f"ep{number}"), None) for number in range(20)]
    _, running = watched(*episodes)
    for number, episode in enumerate(episodes):
        episode.seen -= (number * 7) % 20
    silent = [time.monotonic() - episode.seen for episode in running.longest_silent(5)]
    assert silent == pytest.approx([19, 18, 17, 16, 15], abs=0.5)


def test_the_timer_rings_when_due_or_as_soon_as_something_is_due_earlier() -> None:
    async def measure(earlier_by: float) -> float:
        timer = DeadlineTimer()
        began = time.monotonic()
        sleeping = asyncio.create_task(timer.sleep_until(began + 0.5))
        await asyncio.sleep(0.05)
        timer.ring_by(began + 0.5 - earlier_by)
        await asyncio.wait_for(sleeping, 5)
        return time.monotonic() - began

    assert asyncio.run(measure(earlier_by=-1)) == pytest.approx(0.5, abs=0.2)
    assert asyncio.run(measure(earlier_by=0.3)) < 0.3
