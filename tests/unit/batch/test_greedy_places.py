"""Under remax each group that is trained has one greedy episode, whoever fails, comes back or waits."""

from __future__ import annotations

from dataclasses import replace

from batch_support import make_episode, make_pool, reasons
from hypothesis import given
from hypothesis import strategies as st

from swarm.batch import BatchPool, DropReason, Place, assemble
from swarm.types import FinishedEpisode

JOB = {"algorithm": "remax", "batch_size": 2, "num_repeat": 3}


def finished(name: str, task: str, *, is_greedy: bool, reward: float = 1.0) -> FinishedEpisode:
    return replace(make_episode(name, task, reward=reward), is_greedy=is_greedy)


def test_the_first_place_of_a_group_is_greedy_and_is_given_again_when_it_is_lost() -> None:
    pool = make_pool(**JOB)
    places = [pool.begin("default", "a") for _ in range(2)]
    assert [place.is_greedy for place in places] == [True, False]
    pool.lose(places[0])
    assert [pool.begin("default", "a").is_greedy for _ in range(2)] == [True, False]
    assert pool.begin("default", "b").is_greedy
    assert not make_pool(batch_size=2, num_repeat=3).begin("default", "a").is_greedy, "under another algorithm"


def test_a_group_without_its_greedy_episode_is_dropped_by_name() -> None:
    pool = make_pool(**JOB)
    greedy, *others = [pool.begin("default", "a") for _ in range(3)]
    pool.lose(greedy, is_final=True)
    for number, place in enumerate(others):
        pool.add(finished(f"a-{number}", "a", is_greedy=False, reward=number), place)
    assert pool.progress().tasks == 0
    for number, place in enumerate([pool.begin("default", "b") for _ in range(3)]):
        pool.add(finished(f"b-{number}", "b", is_greedy=place.is_greedy), place)
    closed = pool.close_batch("batch", 1)
    assert reasons(closed) == {"a-0": DropReason.NO_BASELINE, "a-1": DropReason.NO_BASELINE}
    [group] = closed.batch.groups
    assert group.greedy is not None and group.greedy.episode_id == "b-0"
    assert [episode.episode_id for episode in group.episodes] == ["b-1", "b-2"]
    assert assemble("batch", 1, [closed.batch.members]) == closed.batch


def test_a_greedy_episode_alone_is_no_group() -> None:
    pool = make_pool(**JOB, min_group=1)
    place = pool.begin("default", "a")
    pool.add(finished("a-0", "a", is_greedy=True), place)
    for _ in range(2):
        pool.lose(pool.begin("default", "a"), is_final=True)
    assert reasons(pool.close_batch("batch", 1)) == {"a-0": DropReason.NO_BASELINE}


class Players:
    """Clients that begin, end and lose episodes of three tasks, and servers that restart, as the numbers say."""

    def __init__(self) -> None:
        self.pool: BatchPool = make_pool(**JOB)
        self.running: dict[str, tuple[str, Place]] = {}
        self.ended: dict[str, FinishedEpisode] = {}
        self.begun = self.step = 0

    def play(self, move: int, which: int) -> None:
        if move <= 2:
            self.begin(f"task-{which % 3}")
        elif move <= 4 and self.running:
            self.end(sorted(self.running)[which % len(self.running)])
        elif move == 5 and self.running:
            _, place = self.running.pop(sorted(self.running)[which % len(self.running)])
            self.pool.lose(place, is_final=which % 4 == 0)
        elif move == 6:
            self.restart()
        if self.pool.is_ready(()):
            self.close_batch()

    def begin(self, task: str) -> None:
        if self.pool.may_begin("default", task):
            self.begun += 1
            self.running[f"e{self.begun:04}"] = task, self.pool.begin("default", task)

    def end(self, name: str) -> None:
        task, place = self.running.pop(name)
        self.ended[name] = finished(name, task, is_greedy=place.is_greedy, reward=self.begun % 2)
        self.pool.add(self.ended[name], place)

    def restart(self) -> None:
        self.pool = make_pool(**JOB)
        self.pool.restore(self.ended.values())
        self.running = {
            name: (task, self.pool.begin("default", task, is_greedy=place.is_greedy))
            for name, (task, place) in self.running.items()
        }

    def close_batch(self) -> None:
        self.step += 1
        closed = self.pool.close_batch(f"batch-{self.step}", self.step)
        for group in closed.batch.groups:
            assert group.greedy is not None and not any(episode.is_greedy for episode in group.episodes)
            assert 2 <= len(group.members) <= JOB["num_repeat"]
        assert len(closed.batch.groups) == JOB["batch_size"]
        for name in [each.episode_id for each in (*closed.batch.members, *closed.dropped)]:
            del self.ended[name]
        assert len(self.pool) == len(self.ended)


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 11)), max_size=100))
def test_whatever_happens_each_trained_group_has_one_greedy_episode_and_clients_that_go_on_complete_a_batch(
    moves: list[tuple[int, int]],
) -> None:
    players = Players()
    for move, which in moves:
        players.play(move, which)
    before, number = players.step, 0
    while players.step == before:
        number += 1
        assert number < 200, players.pool.progress()
        players.begin(f"fresh-{number // 3}" if number > 30 else f"task-{number % 3}")
        for name in list(players.running):
            players.end(name)
        if players.pool.is_ready(()):
            players.close_batch()
