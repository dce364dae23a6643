"""Batches, metrics and jobs: each episode is trained at most once, and every other one has a counted reason."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from swarm.errors import Conflict, EpisodeEnded
from swarm.ledger import AuditRow, BatchState, Ledger
from swarm.live_settings import JobChange
from swarm.schemas import EngineState, EpisodeState
from swarm.types import EpisodeType


def states_of(script: Any, *episode_ids: str) -> list[tuple[EpisodeState, str | None]]:
    rows = [script.wait(script.ledger.episode(episode_id)) for episode_id in episode_ids]
    return [(row.state, row.batch_id) for row in rows]


def test_finished_batch_trains_its_members_and_records_the_step(script: Any, ledger: Ledger) -> None:
    script.complete("e1", "e2", "e3")
    script.wait(ledger.close_batch("b1", 1, [["e1", "e2"]], [("e3", "group_too_small")]))
    script.wait(ledger.finish_batch(script.report("b1", 1, {"e1": 0.5, "e2": -0.5})))
    assert states_of(script, "e1", "e2", "e3") == [
        (EpisodeState.TRAINED, "b1"), (EpisodeState.TRAINED, "b1"), (EpisodeState.DROPPED, None),
    ]  # fmt: skip
    assert script.wait(ledger.episode("e2")).advantage == -0.5
    (point,) = script.wait(ledger.trained_batches())
    assert (point.step, point.weight_version, point.metrics) == (1, 1, {"loss": 0.5})
    (batch,) = script.wait(ledger.batches())
    assert (batch.batch_id, batch.state, batch.weight_version) == ("b1", BatchState.TRAINED, 1)
    assert script.wait(ledger.failures()) == {"group_too_small": 1}


def test_failed_batch_gives_its_members_back_once_each(script: Any, ledger: Ledger) -> None:
    script.complete("e1")
    script.wait(ledger.close_batch("b1", 1, [["e1"]], []))
    script.wait(ledger.fail_batch("b1", "worker died"))
    assert states_of(script, "e1") == [(EpisodeState.COMPLETED, None)]
    script.wait(ledger.close_batch("b2", 1, [["e1"]], []))
    script.wait(ledger.finish_batch(script.report("b2", 1)))
    assert states_of(script, "e1") == [(EpisodeState.TRAINED, "b2")]
    assert [(row.batch_id, row.state, row.reason) for row in script.wait(ledger.batches())] == [
        ("b2", BatchState.TRAINED, None), ("b1", BatchState.FAILED, "worker died"),
    ]  # fmt: skip


@pytest.mark.parametrize("case", ["running", "eval", "closed", "trained", "dropped", "unknown", "twice"])
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
        closed, dropped = ([], [("bad", "x")]) if case == "dropped" else (["bad"], [])
        script.wait(ledger.close_batch("b0", 1, [closed], dropped))
        if case == "trained":
            script.wait(ledger.finish_batch(script.report("b0", 1)))
    with pytest.raises(Conflict, match="cannot join"):
        script.wait(ledger.close_batch("b1", 2, [members], []))
    assert states_of(script, "good") == [(EpisodeState.COMPLETED, None)]
    assert "b1" not in [row.batch_id for row in script.wait(ledger.batches())]


def test_batch_is_finished_or_failed_only_once(script: Any, ledger: Ledger) -> None:
    script.complete("e1")
    script.train(1, ["e1"])
    with pytest.raises(Conflict):
        script.wait(ledger.finish_batch(script.report("b1", 1)))
    with pytest.raises(Conflict):
        script.wait(ledger.fail_batch("b1", "late"))
    assert states_of(script, "e1") == [(EpisodeState.TRAINED, "b1")]


def test_rewind_removes_later_steps_from_the_history_but_trains_nothing_again(script: Any, ledger: Ledger) -> None:
    script.complete("e1", "e2")
    for step, episode_id in ((1, "e1"), (2, "e2")):
        script.train(step, [episode_id])
    script.wait(ledger.rewind(1, "resumed at step 1"))
    assert [point.step for point in script.wait(ledger.trained_batches())] == [1]
    assert states_of(script, "e2") == [(EpisodeState.TRAINED, "b2")]
    script.wait(ledger.close_batch("b2-again", 2, [], []))
    script.wait(ledger.finish_batch(script.report("b2-again", 2)))
    assert [point.step for point in script.wait(ledger.trained_batches())] == [1, 2]


def test_recover_returns_what_goes_on_running_episodes_among_it(script: Any, ledger: Ledger, path: Path) -> None:
    script.complete("trained", "closed", "waiting")
    script.wait(ledger.add_turns([script.turn("waiting")]))
    script.begin("running")
    script.wait(ledger.add_turns([script.turn("running")]))
    script.begin("judged", EpisodeType.EVAL)
    script.end("judged")
    script.train(1, ["trained"])
    script.wait(ledger.close_batch("b2", 2, [["closed"]], []))
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
    assert work.returned == ("b2",)
    assert [(episode.row.episode_id, episode.turns) for episode in work.running] == [
        ("running", (script.turn("running"),))
    ]
    assert [episode.row.episode_id for episode in work.completed] == ["closed", "waiting"]
    assert work.completed[1].turns == (script.turn("waiting"),)
    assert (running.state, running.outcome) == (EpisodeState.RUNNING, None)
    assert (again.returned, again.completed) == ((), work.completed)
    assert [episode.turns for episode in again.running] == [episode.turns for episode in work.running]
    failures = [each.running[0].row.use.system_failures for each in (work, again)]
    assert failures == [1, 2]


def test_recover_of_an_empty_ledger_finds_nothing(ledger: Ledger) -> None:
    work = asyncio.run(ledger.recover())
    assert (work.job, work.step, work.completed) == (None, 0, ())


def test_new_job_starts_from_nothing_and_closes_the_books_of_the_old_one(script: Any, ledger: Ledger) -> None:
    script.complete("waiting", "closed")
    script.begin("running")
    script.wait(ledger.close_batch("b1", 1, [["closed"]], []))
    script.train(2)
    job = script.wait(ledger.record_job({"lr": 1e-2}, {"lr": 1e-2}))
    assert script.wait(ledger.latest_job()) == job
    work = script.wait(ledger.recover())
    assert (work.step, work.completed, work.running) == (0, (), ())
    assert script.wait(ledger.trained_batches()) == []
    assert script.wait(ledger.failures()) == {}
    assert states_of(script, "waiting", "closed", "running") == [
        (EpisodeState.DROPPED, None), (EpisodeState.DROPPED, None), (EpisodeState.EXPIRED, None),
    ]  # fmt: skip
    assert script.wait(ledger.episode("waiting")).outcome == "job_replaced"
    with pytest.raises(Conflict):
        script.wait(ledger.close_batch("b3", 1, [["waiting"]], []))


def test_states_and_events_are_kept_in_order(ledger: Ledger) -> None:
    async def record() -> tuple[list[Any], list[Any]]:
        for state in (EngineState.BOOTING, EngineState.FAILED):
            await ledger.record_state(state, "no memory" if state is EngineState.FAILED else None)
        for number in range(3):
            await ledger.record_event("control", {"call": number})
        return await ledger.states(), await ledger.events(after_id=1, limit=2)

    states, events = asyncio.run(record())
    assert [(row.state, row.reason) for row in states] == [("BOOTING", None), ("FAILED", "no memory")]
    assert [(row.event_id, row.kind, row.detail) for row in events] == [
        (2, "engine.state", {"state": "FAILED", "reason": "no memory"}),
        (3, "control", {"call": 0}),
    ]
    assert [row.detail for row in asyncio.run(ledger.newest_events(2))] == [{"call": 1}, {"call": 2}]


def test_what_happens_to_batches_jobs_and_rewards_leaves_an_event(script: Any, ledger: Ledger) -> None:
    script.complete("good", "bad", "again")
    script.wait(ledger.record_change(JobChange(1, 2, {"batch_size": 4})))
    script.wait(revise(ledger, "good", 0.5))
    script.wait(ledger.close_batch("b1", 1, [["good"]], [("bad", "stale")]))
    script.wait(ledger.finish_batch(script.report("b1", 1)))
    script.wait(ledger.close_batch("b2", 2, [["again"]], []))
    script.wait(ledger.fail_batch("b2", "no memory"))
    script.wait(ledger.rewind(0, "asked to"))
    assert [(event.kind, event.detail) for event in script.wait(ledger.events())] == [
        ("job.started", {"job_id": 1, "project_name": None, "experiment_name": None}),
        ("job.changed", {"job_id": 1, "revision": 1, "at_step": 2, "settings": {"batch_size": 4}}),
        ("reward.revised", {"episode_id": "good", "from": 1.0, "to": 0.5, "reason": "a second look"}),
        ("batch.closed", {"batch_id": "b1", "step": 1, "episodes": 1, "dropped": {"stale": 1}}),
        ("batch.trained", {"batch_id": "b1", "step": 1, "weight_version": 1, "score": None}),
        ("batch.closed", {"batch_id": "b2", "step": 2, "episodes": 1, "dropped": {}}),
        ("batch.failed", {"batch_id": "b2", "reason": "no memory"}),
        ("weights.rewound", {"step": 0, "reason": "asked to", "batches": 1}),
    ]


async def revise(ledger: Ledger, episode_id: str, reward: float) -> Any:
    return await ledger.revise_reward(
        episode_id,
        reward=reward,
        is_success=None,
        turn_rewards=(0.25,),
        rewards={"right": reward},
        reason="a second look",
    )


def test_reward_is_revised_until_the_batch_is_closed_and_the_former_one_is_kept(script: Any, ledger: Ledger) -> None:
    script.complete("e1")
    revised = script.wait(revise(ledger, "e1", 0.5))
    assert (revised.reward, revised.is_success, revised.turn_rewards) == (0.5, None, (0.25,))
    assert revised.rewards == {"right": 0.5}
    script.wait(revise(ledger, "e1", 0.75))
    kept = [row.detail for row in script.wait(ledger.events()) if row.kind == "reward.revised"]
    assert [(detail["from"], detail["to"], detail["reason"]) for detail in kept] == [
        (1.0, 0.5, "a second look"),
        (0.5, 0.75, "a second look"),
    ]
    script.wait(ledger.close_batch("b1", 1, [["e1"]], []))
    with pytest.raises(EpisodeEnded, match="its batch is closed"):
        script.wait(revise(ledger, "e1", 0.0))
    script.begin("e2")
    with pytest.raises(EpisodeEnded, match="it is running"):
        script.wait(revise(ledger, "e2", 0.0))
    assert script.wait(ledger.episode("e1")).reward == 0.75


def test_trained_batches_are_read_back_in_order_with_every_turn(script: Any, ledger: Ledger) -> None:
    for step in (1, 2, 3):
        script.begin(f"e{step}")
        script.wait(ledger.add_turns([script.turn(f"e{step}")]))
        script.end(f"e{step}")
        script.train(step, [f"e{step}"])
    assert [row.batch_id for row in script.wait(ledger.trained_batches(1))] == ["b2", "b3"]
    assert [row.batch_id for row in script.wait(ledger.trained_batches(1, limit=1))] == ["b2"]
    (member,) = script.wait(ledger.batch_episodes("b2"))
    assert (member.row.episode_id, member.turns) == ("e2", (script.turn("e2"),))
    assert script.wait(ledger.trained_groups_by_source()) == {"default": 3}
    script.wait(ledger.rewind(1, "asked to"))
    assert script.wait(ledger.trained_batches(1)) == []


def test_who_waits_for_events_is_woken_by_the_next_one(script: Any, ledger: Ledger) -> None:
    async def wait_and_record() -> tuple[list[Any], list[Any]]:
        newest = (await ledger.newest_events(1))[-1].event_id
        nothing = await ledger.wait_for_events(newest, 10, 0.05)
        waiting = asyncio.create_task(ledger.wait_for_events(newest, 10, 600))
        await asyncio.sleep(0.05)
        await ledger.record_event("control", {"call": 1})
        return await waiting, nothing

    events, nothing = script.wait(wait_and_record())
    assert nothing == []
    assert [event.detail for event in events] == [{"call": 1}]


def test_audit_entries_are_paged_in_order(script: Any, ledger: Ledger) -> None:
    for number in range(3):
        entry = AuditRow(0, float(number), "commander", "127.0.0.1", "PUT", "/v1/swarm/job", 200, f"req-{number}")
        script.wait(ledger.record_audit(entry))
    page = script.wait(ledger.audit(after_id=1, limit=1))
    assert [(entry.audit_id, entry.request_id, entry.caller) for entry in page] == [(2, "req-1", "commander")]
