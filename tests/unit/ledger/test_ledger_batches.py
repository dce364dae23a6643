"""Batches, metrics and jobs: each episode is trained at most once, and every other one has a counted reason."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from swarm.errors import Conflict
from swarm.ledger import BatchState, Ledger
from swarm.schemas import EngineState, EpisodeState
from swarm.types import EpisodeType


def states_of(script: Any, *episode_ids: str) -> list[tuple[EpisodeState, str | None]]:
    rows = [script.wait(script.ledger.episode(episode_id)) for episode_id in episode_ids]
    return [(row.state, row.batch_id) for row in rows]


def test_finished_batch_trains_its_members_and_records_the_step(script: Any, ledger: Ledger) -> None:
    script.complete("e1", "e2", "e3")
    script.wait(ledger.seal_batch("b1", 1, ["e1", "e2"], [("e3", "group_too_small")]))
    script.wait(ledger.finish_batch(script.report("b1", 1, {"e1": 0.5, "e2": -0.5})))
    assert states_of(script, "e1", "e2", "e3") == [
        (EpisodeState.TRAINED, "b1"), (EpisodeState.TRAINED, "b1"), (EpisodeState.DROPPED, None),
    ]  # fmt: skip
    assert script.wait(ledger.episode("e2")).advantage == -0.5
    (point,) = script.wait(ledger.metrics())
    assert (point.step, point.weight_version, point.metrics) == (1, 1, {"loss": 0.5})
    (batch,) = script.wait(ledger.batches())
    assert (batch.batch_id, batch.state, batch.weight_version) == ("b1", BatchState.TRAINED, 1)
    assert script.wait(ledger.failures()) == {"group_too_small": 1}


def test_failed_batch_gives_its_members_back_once_each(script: Any, ledger: Ledger) -> None:
    script.complete("e1")
    script.wait(ledger.seal_batch("b1", 1, ["e1"], []))
    script.wait(ledger.fail_batch("b1", "worker died"))
    assert states_of(script, "e1") == [(EpisodeState.COMPLETED, None)]
    script.wait(ledger.seal_batch("b2", 1, ["e1"], []))
    script.wait(ledger.finish_batch(script.report("b2", 1)))
    assert states_of(script, "e1") == [(EpisodeState.TRAINED, "b2")]
    assert [(row.batch_id, row.state, row.reason) for row in script.wait(ledger.batches())] == [
        ("b2", BatchState.TRAINED, None), ("b1", BatchState.FAILED, "worker died"),
    ]  # fmt: skip


@pytest.mark.parametrize("case", ["running", "eval", "sealed", "trained", "dropped", "unknown", "twice"])
def test_episode_that_does_not_wait_for_a_batch_cannot_join_one(script: Any, ledger: Ledger, case: str) -> None:
    script.complete("good")
    members = ["good", "bad"]
    if case == "running":
        script.begin("bad")
    elif case == "eval":
        script.begin("bad", EpisodeType.EVAL)
        script.end("bad")
    elif case == "twice":
        members = ["good", "good"]
    elif case != "unknown":
        script.complete("bad")
        sealed, dropped = ([], [("bad", "x")]) if case == "dropped" else (["bad"], [])
        script.wait(ledger.seal_batch("b0", 1, sealed, dropped))
        if case == "trained":
            script.wait(ledger.finish_batch(script.report("b0", 1)))
    with pytest.raises(Conflict, match="cannot join"):
        script.wait(ledger.seal_batch("b1", 2, members, []))
    assert states_of(script, "good") == [(EpisodeState.COMPLETED, None)]
    assert "b1" not in [row.batch_id for row in script.wait(ledger.batches())]


def test_batch_is_finished_or_failed_only_once(script: Any, ledger: Ledger) -> None:
    script.complete("e1")
    script.wait(ledger.seal_batch("b1", 1, ["e1"], []))
    script.wait(ledger.finish_batch(script.report("b1", 1)))
    with pytest.raises(Conflict):
        script.wait(ledger.finish_batch(script.report("b1", 1)))
    with pytest.raises(Conflict):
        script.wait(ledger.fail_batch("b1", "late"))
    assert states_of(script, "e1") == [(EpisodeState.TRAINED, "b1")]


def test_metrics_are_paged_by_step(script: Any, ledger: Ledger) -> None:
    for step in range(1, 6):
        script.wait(ledger.seal_batch(f"b{step}", step, [], []))
        script.wait(ledger.finish_batch(script.report(f"b{step}", step)))
    assert [point.step for point in script.wait(ledger.metrics(after_step=2, limit=2))] == [3, 4]


def test_rewind_removes_later_steps_from_the_history_but_trains_nothing_again(script: Any, ledger: Ledger) -> None:
    script.complete("e1", "e2")
    for step, episode_id in ((1, "e1"), (2, "e2")):
        script.wait(ledger.seal_batch(f"b{step}", step, [episode_id], []))
        script.wait(ledger.finish_batch(script.report(f"b{step}", step)))
    script.wait(ledger.rewind(1, "resumed at step 1"))
    assert [point.step for point in script.wait(ledger.metrics())] == [1]
    assert states_of(script, "e2") == [(EpisodeState.TRAINED, "b2")]
    script.wait(ledger.seal_batch("b2-again", 2, [], []))
    script.wait(ledger.finish_batch(script.report("b2-again", 2)))
    assert [point.step for point in script.wait(ledger.metrics())] == [1, 2]


def test_recover_closes_what_was_open_and_returns_what_goes_on(script: Any, ledger: Ledger, path: Path) -> None:
    script.complete("trained", "sealed", "waiting")
    ledger.add_turn(script.turn("waiting"))
    script.begin("running")
    script.begin("judged", EpisodeType.EVAL)
    script.end("judged")
    script.wait(ledger.seal_batch("b1", 1, ["trained"], []))
    script.wait(ledger.finish_batch(script.report("b1", 1)))
    script.wait(ledger.seal_batch("b2", 2, ["sealed"], []))
    ledger.close()

    reopened = Ledger.open(path)
    try:
        work = script.wait(reopened.recover())
        again = script.wait(reopened.recover())
        running = script.wait(reopened.episode("running"))
    finally:
        reopened.close()
    assert work.job is not None
    assert work.job.job == {"lr": 1e-3}
    assert (work.step, work.weight_version) == (1, 1)
    assert (work.expired, work.returned) == (("running",), ("b2",))
    assert [episode.row.episode_id for episode in work.completed] == ["sealed", "waiting"]
    assert work.completed[1].turns == (script.turn("waiting"),)
    assert (running.state, running.outcome) == (EpisodeState.EXPIRED, "server_restarted")
    assert (again.expired, again.returned, again.completed) == ((), (), work.completed)


def test_recover_of_an_empty_ledger_finds_nothing(ledger: Ledger) -> None:
    work = asyncio.run(ledger.recover())
    assert (work.job, work.step, work.completed) == (None, 0, ())


def test_new_job_starts_from_nothing_and_closes_the_books_of_the_old_one(script: Any, ledger: Ledger) -> None:
    script.complete("waiting", "sealed")
    script.begin("running")
    script.wait(ledger.seal_batch("b1", 1, ["sealed"], []))
    script.wait(ledger.seal_batch("b2", 2, [], []))
    script.wait(ledger.finish_batch(script.report("b2", 2)))
    job = script.wait(ledger.record_job({"lr": 1e-2}, {"lr": 1e-2}))
    assert script.wait(ledger.latest_job()) == job
    work = script.wait(ledger.recover())
    assert (work.step, work.completed, work.expired) == (0, (), ())
    assert script.wait(ledger.metrics()) == []
    assert script.wait(ledger.failures()) == {}
    assert states_of(script, "waiting", "sealed", "running") == [
        (EpisodeState.DROPPED, None), (EpisodeState.DROPPED, None), (EpisodeState.EXPIRED, None),
    ]  # fmt: skip
    assert script.wait(ledger.episode("waiting")).outcome == "job_replaced"
    with pytest.raises(Conflict):
        script.wait(ledger.seal_batch("b3", 1, ["waiting"], []))


def test_failures_are_counted_by_reason(script: Any, ledger: Ledger) -> None:
    for number, reason in enumerate(["idle_timeout", "idle_timeout", "client_abort"]):
        script.begin(f"e{number}")
        script.wait(ledger.close_episode(f"e{number}", EpisodeState.ABORTED, reason, ended_at=1.0))
    assert script.wait(ledger.failures()) == {"idle_timeout": 2, "client_abort": 1}


def test_states_and_events_are_kept_in_order(ledger: Ledger) -> None:
    async def record() -> tuple[list[Any], list[Any]]:
        for state in (EngineState.BOOTING, EngineState.FAILED):
            await ledger.record_state(state, "no memory" if state is EngineState.FAILED else None)
        for number in range(3):
            await ledger.record_event("control", {"call": number})
        return await ledger.states(), await ledger.events(after_id=1, limit=1)

    states, events = asyncio.run(record())
    assert [(row.state, row.reason) for row in states] == [("BOOTING", None), ("FAILED", "no memory")]
    assert [(row.event_id, row.kind, row.detail) for row in events] == [(2, "control", {"call": 1})]
