"""The rate of sampled tokens is that of the time in which something was sampled."""

from __future__ import annotations

import time

import pytest

from swarm.run.call_metrics import TokenRate


def test_neither_idle_time_nor_a_change_of_weights_makes_a_server_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    now, served_since = 100.0, 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    rate = TokenRate(lambda: served_since)
    assert rate.per_second() == 0.0
    with rate.sampling():
        assert rate.per_second() == 0.0, "nothing is known yet"
        now += 2
        rate.add(20)
        assert rate.per_second() == 10.0
        # Weights change for eight seconds, and nothing is sampled.
        now += 8
        served_since = now
        assert rate.per_second() == 0.0
        now += 2
        rate.add(30)
        assert rate.per_second() == 15.0
    now += 5
    with rate.sampling():
        now += 1
        rate.add(9)
        assert rate.per_second() == 9.0
        now += 20
        assert rate.per_second() == 0.0, "the last ten seconds count"
    assert rate.total == 59
