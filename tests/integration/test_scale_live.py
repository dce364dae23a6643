"""The live part of bench scale: a real server and real clients on a small case, held against what is predicted."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from bench.scale.setup import Batching, Cluster, Setup, Workload
from bench.scale.simulation import simulate
from bench.scale_live import calibrated, measure

SETUP = Setup(
    Workload(turns=2, turn_tokens=6, read_tokens=6, tool_s=0.15, length_sigma=0.3),
    Cluster(
        replicas=1,
        token_s=0.02,
        token_per_request_s=0.001,
        max_num_seqs=16,
        ranks=1,
        rank_tokens_per_s=1_000,
        step_overhead_s=0.2,
        publish_s=0.05,
    ),
    Batching(4, 2, 2),
    clients=6,
)


@contextmanager
def slowdown() -> Iterator[list[float]]:
    """How many times as long as on a free core a little work takes, again and again while this is open; 1 at least."""
    found, ended = [1.0], threading.Event()

    def work() -> None:
        while not ended.wait(0.25):
            wall, processor = time.perf_counter(), time.thread_time()
            while time.thread_time() < processor + 0.005:
                pass
            found.append((time.perf_counter() - wall) / 0.005)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()


@pytest.mark.parametrize("batching", [pytest.param(Batching(4, 2, 0), marks=pytest.mark.slow), Batching(4, 2, 2)])
def test_what_a_real_server_does_is_near_what_is_predicted(batching: Batching) -> None:
    setup = replace(SETUP, batching=batching)
    with slowdown() as slower:
        live = measure(setup, steps=3, warm_up=1)
    # A busy machine makes all of it slower, never faster: by as much as any other work that is done there meanwhile.
    assert 0.7 < live.outcome.step_s / simulate(calibrated(setup, live), steps=20).step_s < 2.5 * max(slower)
    assert live.outcome.batch_episodes == pytest.approx(8, abs=2)
    assert live.outcome.staleness_max <= batching.max_staleness
    assert 0 < live.outcome.trainer_utilization < 1
    assert 0 < live.outcome.sampler_utilization < 1
    assert 0 < live.cpu_s_per_call < 1
