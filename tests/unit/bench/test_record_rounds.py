"""A long study through the real loop: what a round costs does not grow with what lies behind it."""

from __future__ import annotations

import statistics
from pathlib import Path

from bench.record.days import Rounds
from bench.record.meter import metered
from bench.record.simulation import LongStudy, Size
from experiments_db import RunStatus, StudyStatus, open_store

SIZE = Size(rounds=4, arms=2, seeds=1, steps=6, steps_per_look=2, servers=1, episodes=4, events=200)
LAST = SIZE.rounds_of_loop - 2


def test_a_round_of_the_loop_costs_the_same_at_the_end_of_a_study(tmp_path: Path) -> None:
    with metered() as meter:
        rounds = Rounds(meter)

        def on_poll(number: int) -> bool:
            rounds.next()
            return number < LAST

        study = LongStudy(tmp_path, SIZE, on_poll, rounds.work)
        study.begin()
        with open_store(study.database, clock=study.clock) as store:
            assert not study.carry_on(store)
            runs = store.list_runs(study_id=study.study_id, statuses=[RunStatus.FINISHED])
            assert len(runs) >= SIZE.runs - 2
            assert len(store.list_events(study.study_id, limit=None)) > 100 * len(runs)
    half = len(rounds.steps) // 2
    early, late = slice(0, half), slice(half, None)
    assert statistics.median(rounds.statements[late]) <= statistics.median(rounds.statements[early])
    assert statistics.median(rounds.steps[late]) <= 1.1 * statistics.median(rounds.steps[early])


def test_a_study_that_was_left_is_finished_by_another_session(tmp_path: Path) -> None:
    study = LongStudy(
        tmp_path, Size(rounds=1, arms=2, seeds=1, steps=40, servers=1, episodes=4), lambda number: number != 2
    )
    study.begin()
    with open_store(study.database, clock=study.clock) as store:
        assert not study.carry_on(store)
    study.on_poll = lambda number: True
    with open_store(study.database, clock=study.clock) as store:
        assert study.carry_on(store)
        assert {run.status for run in store.list_runs(study_id=study.study_id)} == {RunStatus.FINISHED}
        assert store.get_study(study.study_id).status is StudyStatus.FINISHED
