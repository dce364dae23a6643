"""Counts: what a status page asks for agrees with the episodes, and costs the same however many there are."""

from __future__ import annotations

import random
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from swarm.ledger import EpisodeRow, Ledger, queries
from swarm.ledger.database import open_for_reading
from swarm.ledger.tables import checksum
from swarm.schemas import EpisodeState
from swarm.types import EpisodeType

SOURCES = ("math", "code")
FAILED = ("aborted", "expired", "dropped")


def test_counts_agree_with_the_episodes_after_any_mixture_of_fates(script: Any, ledger: Ledger, path: Path) -> None:
    chance = random.Random(5)
    for step in range(1, 5):
        waiting = [name for number in range(12) if (name := live(script, chance, f"{step}-{number}"))]
        members, rest = waiting[:4], waiting[4:]
        script.wait(ledger.close_batch(f"b{step}", step, [members], [(name, "stale") for name in rest[:2]]))
        if step == 3:
            script.wait(ledger.fail_batch("b3", "no memory"))
        else:
            script.wait(ledger.finish_batch(script.report(f"b{step}", step)))
        assert script.wait(ledger.episode_counts()) == recount(path)
    failures: Counter[str] = Counter()
    for (state, outcome), n in recount(path).items():
        failures.update({outcome: n} if state in FAILED else {})
    assert script.wait(ledger.failures()) == failures
    script.wait(ledger.record_job({"lr": 1e-2}, {}))
    assert script.wait(ledger.episode_counts()) == {}
    assert script.wait(ledger.failures()) == {}
    with closing(sqlite3.connect(path)) as connection:
        counted = connection.execute("SELECT state, outcome, n FROM episode_counts WHERE job_id = 1").fetchall()
    closed = {key: n for key, n in recount(path).items() if key[0] != "completed"}
    assert {(state, outcome): n for state, outcome, n in counted} == closed


def live(script: Any, chance: random.Random, episode_id: str) -> str | None:
    """Begin an episode and let it take one of the ways; its id if it waits for a batch in the end."""
    fate = chance.choice(["completed", "completed", "completed", "eval", "aborted", "expired", "running"])
    script.begin(episode_id, EpisodeType.EVAL if fate == "eval" else EpisodeType.TRAIN)
    if fate in ("completed", "eval"):
        script.end(episode_id)
    elif fate != "running":
        reason = chance.choice(["idle_timeout", "deadline"])
        script.wait(script.ledger.close_episode(episode_id, EpisodeState(fate), reason, ended_at=1.0))
    return episode_id if fate == "completed" else None


def recount(path: Path) -> dict[tuple[str, str], int]:
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT state, coalesce(outcome, '') FROM episodes WHERE job_id = 1").fetchall()
    return dict(Counter(rows))


def test_trained_groups_are_counted_by_source(script: Any, ledger: Ledger) -> None:
    for number, (source, task) in enumerate([("math", "a"), ("math", "a"), ("math", "b"), ("code", "a")]):
        row = EpisodeRow(f"e{number}", EpisodeType.TRAIN, "c", "0" * 64, 1.0, 240.0, 2e9, data_source=source)
        script.wait(ledger.begin_episode(row))
        script.end(f"e{number}", task_id=task)
    script.wait(ledger.close_batch("b1", 1, [["e0", "e1"], ["e3"]], []))
    assert script.wait(ledger.trained_groups_by_source()) == {}
    script.wait(ledger.finish_batch(script.report("b1", 1)))
    assert script.wait(ledger.trained_groups_by_source()) == {"code": 1, "math": 1}
    script.train(2, ["e2"])
    assert script.wait(ledger.trained_groups_by_source()) == {"code": 1, "math": 2}


QUESTIONS: dict[str, Callable[[sqlite3.Connection], Any]] = {
    "failures": queries.failures,
    "counts": queries.episode_counts,
    "trained groups": queries.trained_groups_by_source,
    "newest batches": partial(queries.batches, limit=2),
    "trained batches": partial(queries.trained_batches, after_step=3, limit=10),
    "running": partial(queries.episodes, state=EpisodeState.RUNNING, limit=10),
    "nobody's": partial(queries.episodes, client_id="nobody", limit=10),
    "newest page": partial(queries.episodes, limit=10),
    "one task": partial(queries.episodes, task_id="task-3", limit=10),
    "waiting": partial(queries.episodes_with_turns, condition="state = 'completed'", order="number"),
}


@pytest.fixture(scope="module")
def few_and_many(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Ledgers of 100 and of 1,000 episodes."""
    homes = [tmp_path_factory.mktemp(name) / "ledger.db" for name in ("few", "many")]
    for home, batches in zip(homes, (5, 50), strict=True):
        Ledger.open(home).close()
        fill(home, batches)
    return homes


@pytest.mark.parametrize("question", QUESTIONS)
def test_an_answer_costs_no_more_with_many_episodes_on_record(few_and_many: list[Path], question: str) -> None:
    few, many = (steps_of(home, QUESTIONS[question]) for home in few_and_many)
    assert many <= 2 * few + 200


def fill(path: Path, batches: int) -> None:
    """A job that trained half of each of so many batches of 20 episodes; the last batch is of step 5."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("INSERT INTO jobs (job, resolved, created_at) VALUES ('{}', '{}', 1.0)")
        for batch in range(batches):
            step = batch - batches + 6
            connection.execute(
                "INSERT INTO batches (batch_id, job_id, step, state, closed_at, finished_at, weight_version)"
                " VALUES (?, 1, ?, 'trained', 1.0, 2.0, ?)",
                (f"b{batch}", step, step),
            )
        episodes = [
            (f"e{batch}-{number}", number % 2, f"c{number}", f"task-{batch}", f"b{batch}")
            for batch in range(batches)
            for number in range(20)
        ]
        connection.executemany(
            "INSERT INTO episodes (episode_id, job_id, episode_type, state, outcome, client_id, api_key_sha256,"
            " begun_at, idle_timeout_s, deadline_at, data_source, is_greedy, metadata, task_id, batch_id,"
            " checksum) SELECT ?, 1, 'train', iif(?, 'trained', 'dropped'), 'stale', ?, '', 1.0, 240.0, 2e9,"
            " 'default', 0, '{}', ?, ?, ?",
            [(*row, checksum((row[0], row[3], *[None] * 4, "{}", None, None))) for row in episodes],
        )
        connection.executemany(
            "INSERT INTO episode_counts VALUES (1, ?, ?, ?)",
            [("trained", "", batches * 10), ("dropped", "stale", batches * 10)],
        )
        connection.executemany("INSERT INTO trained_groups VALUES (1, ?, ?)", [(name, batches) for name in SOURCES])


def steps_of(path: Path, question: Callable[[sqlite3.Connection], Any]) -> int:
    """How many instructions SQLite's machine takes to answer."""
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    with closing(open_for_reading(path)) as connection:
        connection.set_progress_handler(count, 1)
        question(connection)
    return steps


def test_of_each_task_the_groups_of_batches_and_the_episodes_that_wait_are_held(script: Any, ledger: Ledger) -> None:
    def held() -> list[tuple[str, int, int]]:
        return [(row.task_id, row.groups, row.waiting) for row in script.wait(ledger.task_counts())]

    assert held() == []
    for name in ("a1", "a2", "a3", "a4", "a5", "b1"):
        script.begin(name)
        script.end(name, task_id=name[0])
    script.begin("c1")
    script.begin("d1", EpisodeType.EVAL)
    script.end("d1", task_id="d")
    assert held() == [("a", 0, 5), ("b", 0, 1)]
    script.wait(ledger.close_batch("first", 1, [["a1", "a2"], ["a3", "a4"]], [("b1", "stale")]))
    assert held() == [("a", 2, 1)]
    script.wait(ledger.finish_batch(script.report("first", 1)))
    script.wait(ledger.close_batch("second", 2, [["a5"]], []))
    assert held() == [("a", 3, 0)]
    script.wait(ledger.fail_batch("second", "no memory"))
    assert held() == [("a", 2, 1)]
    # What was trained beyond the weights that are gone back to is to be trained again.
    script.wait(ledger.rewind(0, "checkpoint"))
    assert held() == [("a", 0, 1)]
    script.wait(ledger.record_job({"lr": 1e-2}, {}))
    assert held() == []
