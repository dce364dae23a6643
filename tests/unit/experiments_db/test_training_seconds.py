"""The seconds of a recorded training: those of its steps, without the time in which its engine was away."""

from __future__ import annotations

import pytest
from store_samples import record_state

from experiments_db import ExperimentStore, ServerEvent, TrainingPoint, sum_step_seconds

NIGHT = 30_000.0


@pytest.mark.parametrize(
    ("states", "ends", "seconds"),
    [
        ((), (), 0.0),
        ((), (15.0, 30.0), 20.0),
        # A server that was stopped for a night, and one that was killed: no event tells when.
        ((("ROLLING", 11.0), ("OFFLINE", 40.0), ("BOOTING", NIGHT), ("ROLLING", NIGHT + 5)), (30.0, NIGHT + 9), 24.0),
        ((("ROLLING", 11.0), ("BOOTING", NIGHT), ("ROLLING", NIGHT + 5)), (30.0, NIGHT + 9), 24.0),
        ((("ROLLING", 11.0), ("TRAINING", 20.0), ("ROLLING", 25.0)), (20.0, 32.0), 22.0),
        # More steps were asked for a night after the last one, and the clock was set back.
        ((("COMPLETE", 30.0), ("ROLLING", NIGHT)), (30.0, NIGHT + 3), 23.0),
        ((), (30.0, 20.0), 20.0),
    ],
)
def test_seconds_of_a_training_have_no_pauses(
    store: ExperimentStore, states: tuple[tuple[str, float], ...], ends: tuple[float, ...], seconds: float
) -> None:
    training = record_state(store, "k", begun_at=10.0)
    points = [TrainingPoint("t", "m", step, None, end) for step, end in enumerate(ends, 1)]
    events = [ServerEvent("t", at, "engine.state", {"state": state}, moved) for at, (state, moved) in enumerate(states)]
    assert sum_step_seconds(training, points, events) == seconds
