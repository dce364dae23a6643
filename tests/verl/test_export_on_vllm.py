"""An export of `swarm export`, served by vLLM on the CPU: the probabilities are those of the sampler that trained."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from local_runs import PROMPT, Drawn, largest_gap, local_run
from vllm_sampler import make_vllm_sampler, vllm_python

from swarm.types import SamplingParams


@pytest.fixture(scope="module", autouse=True)
def late_imports() -> None:
    global export_checkpoint
    from swarm.backends.local.export import export_checkpoint


pytestmark = [pytest.mark.anyio, pytest.mark.verl, pytest.mark.timeout(900), pytest.mark.begins_first]

LIMIT_S = 600


async def drawn_by_vllm(model: Path, logs: Path) -> list[Drawn]:
    sampler = make_vllm_sampler(logs, model)
    drawn: list[Drawn] = []
    try:
        async with asyncio.timeout(LIMIT_S):
            await sampler.start()
            for seed in range(4):
                params = SamplingParams(max_tokens=12, seed=seed)
                deltas = [delta async for delta in sampler.generate(f"request-{seed}", PROMPT, params)]
                tokens = tuple(token for delta in deltas for token in delta.token_ids_T)
                drawn.append(Drawn(tokens, tuple(value for delta in deltas for value in delta.logprobs_T)))
    finally:
        await sampler.stop()
    return drawn


@pytest.mark.parametrize("settings", [{}, {"lora_rank": 8}], ids=["full", "lora"])
async def test_vllm_serves_an_export_with_the_probabilities_of_the_trained_model(
    tmp_path: Path, settings: dict[str, int]
) -> None:
    vllm_python()
    async with local_run(tmp_path, **settings) as run:
        await run.train(1, 3)
        checkpoint = await run.save(tmp_path, 3)
        by_sampler = await run.draw()
    export_checkpoint(checkpoint, tmp_path / "out", merge_lora=bool(settings))
    assert largest_gap(tmp_path / "out", by_sampler) < 1e-4
    by_vllm = await drawn_by_vllm(tmp_path / "out", tmp_path / "logs")
    assert largest_gap(tmp_path / "out", by_vllm) < 1e-4
