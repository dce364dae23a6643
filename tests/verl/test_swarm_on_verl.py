"""The whole swarm on verl: clients by HTTP, two FSDP2 ranks over gloo, vLLM; and what kill -9 of each part costs."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from faults.storm import Storm, Target, kill_pid, storm

pytestmark = [pytest.mark.verl, pytest.mark.begins_first]

JOB = {
    "engine": "verl",
    "batch_size": 4,
    "num_repeat": 4,
    "drain_timeout_s": 5,
    "max_response_length": 12,
    "lr": 1e-3,
    "seed": 1,
    "verl": {"trainer.n_gpus_per_node": 2},
}
STEPS = 5
DRIVER = "swarm.backends.verl.driver.main"
SAMPLER = "vllm.entrypoints.cli.main"
LIMIT_S = 240.0


def metrics_of(weather: Storm) -> list[dict[str, Any]]:
    return httpx.get(f"{weather.url}/v1/swarm/metrics", timeout=60).json()["points"]


def versions_by_step(ledger: Path) -> dict[int, int]:
    with closing(sqlite3.connect(f"file:{ledger}?mode=ro", uri=True)) as connection:
        return dict(connection.execute("SELECT step, weight_version FROM batches WHERE state = 'trained'").fetchall())


@pytest.mark.timeout(900)
def test_five_steps_are_exact_and_kills_of_every_part_lose_nothing(tmp_path: Path) -> None:
    with storm(tmp_path, JOB, seed=1, worker=DRIVER, recovery_limit_s=LIMIT_S) as weather:
        weather.wait_for_step(STEPS)
        history = metrics_of(weather)
        assert [point["step"] for point in history[:STEPS]] == list(range(1, STEPS + 1))
        for point in history[:STEPS]:
            assert point["metrics"]["training/rollout_probs_diff_max"] < 1e-5
            assert point["metrics"]["actor/grad_norm"] > 0
        recoveries = weather.peek()["recoveries"]
        # Its guard comes first, and processes of its own after it.
        _guard, sampler, *_ = sorted(weather.pids(SAMPLER))
        kill_pid(sampler)
        weather.wait_for_step(weather.peek()["step"] + 2)
        assert weather.peek()["recoveries"] == recoveries, "a sampler's death is healed by its engine"
        weather.strike(Target.WORKER)
        weather.wait_for_step(weather.peek()["step"] + 1)
        weather.strike(Target.SERVER)
        weather.calm_down()
        losses = weather.losses()
    assert losses.acknowledged > STEPS * 16
    assert (losses.lost, losses.altered, losses.counted_twice) == ([], [], 0)
    assert (losses.unfinished_batches, losses.missing_steps) == (0, [])
    versions = versions_by_step(tmp_path / "home" / "ledger.db")
    assert versions == {step: step for step in range(1, len(versions) + 1)}
    assert list((tmp_path / "home").glob("**/step-*/**/model*.safetensors")), "a checkpoint in Hugging Face layout"
