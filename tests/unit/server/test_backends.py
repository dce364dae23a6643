"""Which random numbers an engine draws from: the job's for a fresh run, new ones for a run that goes on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from swarm.backends import Backend, Backends
from swarm.config import ServerConfig, TrainJob
from swarm.errors import EngineFailure
from swarm.types import SamplingParams

pytestmark = pytest.mark.anyio

LIMIT_S = 60


async def first_completion(backend: Backend) -> list[int]:
    params = SamplingParams(max_tokens=40, temperature=5.0)
    async with asyncio.timeout(LIMIT_S):
        await backend.engine.start()
        deltas = [delta async for delta in backend.engine.generate("request", [40, 41, 42], params)]
    return [token for delta in deltas for token in delta.token_ids_T]


async def test_a_fresh_run_repeats_itself_and_one_that_goes_on_does_not_repeat_the_first(tmp_path: Path) -> None:
    backends = Backends(ServerConfig(), tmp_path / "worker.log")
    try:
        fresh = backends.build(TrainJob(), is_fresh=True)
        first = await first_completion(fresh)
        assert await first_completion(backends.build(TrainJob(), is_fresh=True)) == first
        assert await first_completion(fresh) != first
        assert await first_completion(backends.build(TrainJob(), is_fresh=False)) != first
    finally:
        await backends.close()


def test_a_model_that_is_not_there_is_named_before_anything_is_started(tmp_path: Path) -> None:
    backends = Backends(ServerConfig(), tmp_path / "worker.log")
    with pytest.raises(EngineFailure, match="no directory"):
        backends.build(TrainJob(model=str(tmp_path / "missing")), is_fresh=True)
    assert not (tmp_path / "worker.log").exists()
