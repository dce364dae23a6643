"""An engine that is stopped in the middle of a run: between two jobs, or for good."""

from __future__ import annotations

from typing import Any

from researcher.loop.deps import ActiveRun
from researcher.loop.nodes.monitor import RESTART_S, is_engine_gone


def test_every_restart_of_an_engine_has_its_time_and_a_stop_for_longer_is_the_end() -> None:
    nothing: Any = None
    active = ActiveRun("run-1", "lr=0.1 seed 0", nothing, 10, nothing, nothing)
    looks = [
        ("ROLLING", 0.0), ("OFFLINE", 1.0), ("BOOTING", 2.0), ("ROLLING", 3.0),
        ("OFFLINE", 900.0), ("OFFLINE", 899.9 + RESTART_S), ("OFFLINE", 900.0 + RESTART_S), ("FAILED", 1000.0),
    ]  # fmt: skip

    assert [is_engine_gone(active, state, at) for state, at in looks] == [False] * 6 + [True, True]
