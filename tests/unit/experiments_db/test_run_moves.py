"""The life of a run: whatever is asked of it, by however many processes, only legal moves are stored."""

from itertools import count

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from experiments_db import RUN_MOVES, Experiment, IllegalMove, RunStatus, open_store

seeds = count(1000)


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(asked=st.lists(st.tuples(st.sampled_from(RunStatus), st.booleans()), max_size=12))
def test_only_legal_moves_are_stored_whoever_asks(
    store, experiment: Experiment, location: str, asked: list[tuple[RunStatus, bool]]
) -> None:
    seed = next(seeds)
    run = store.claim_run(experiment.id, seed, f"moves-{seed}")
    walked = [run.status]
    with open_store(location) as other:
        for status, is_other in asked:
            before = store.get_run(run.id)
            mover = other if is_other else store
            if status == before.status or status in RUN_MOVES[before.status]:
                after = mover.update_run(run.id, status=status, exit_reason=f"asked to be {status}")
                assert after.status == status
                if status != before.status:
                    walked.append(status)
            else:
                with pytest.raises(IllegalMove, match=f"is {before.status} and cannot become {status}"):
                    mover.update_run(run.id, status=status, exit_reason="never stored")
                after = store.get_run(run.id)
                assert after == before
            assert store.get_run(run.id) == other.get_run(run.id) == after
            assert (after.finished_at is not None) == after.status.is_over
            assert before.started_at in (None, after.started_at)
    assert (RunStatus.RUNNING in walked) == (store.get_run(run.id).started_at is not None)
    assert sum(status.is_over for status in walked) <= 1


def test_every_status_can_be_reached_and_every_run_can_end() -> None:
    reached, open_ends = {RunStatus.PLANNED}, {status for status in RunStatus if not status.is_over}
    for _ in RunStatus:
        reached |= {later for status in reached for later in RUN_MOVES[status]}
        open_ends = {status for status in open_ends if RUN_MOVES[status] <= open_ends}
    assert reached == set(RunStatus)
    assert not open_ends
