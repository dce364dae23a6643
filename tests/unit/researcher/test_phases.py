"""What a process does with a run under way, against the one table of what may become of a run."""

from itertools import pairwise

from experiments_db import RUN_MOVES, RunStatus
from researcher.loop.deps import Phase


def test_every_phase_is_left_by_a_legal_move_of_the_status_or_by_none() -> None:
    for phase, following in pairwise(Phase):
        for status in phase.statuses:
            assert ({status} | RUN_MOVES[status]) & following.statuses, f"{status} in {phase} has no way to {following}"


def test_every_status_of_a_run_under_way_belongs_to_a_phase() -> None:
    under_way = {status for status in RunStatus if not status.is_over} - {RunStatus.PLANNED}
    assert set().union(*(phase.statuses for phase in Phase)) == under_way
