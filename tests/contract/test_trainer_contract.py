"""What every Trainer promises: versions, reports, pauses in mid-generation, and checkpoints."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from swarm.errors import CheckpointError
from swarm.sampler import Sampler
from swarm.types import (
    ConstrainedTurn,
    FinishedEpisode,
    Grammar,
    GrammarKind,
    Group,
    Sample,
    SamplingParams,
    TokenDelta,
    TrainBatch,
)

pytestmark = pytest.mark.anyio

PROMPT = (40, 41, 42, 43)
LIMIT_S = 120


async def sample(
    sampler: Sampler, *, max_tokens: int = 6, seed: int | None = None, grammar: Grammar | None = None
) -> list[TokenDelta]:
    params = SamplingParams(max_tokens=max_tokens, seed=seed, grammar=grammar)
    async with asyncio.timeout(LIMIT_S):
        return [delta async for delta in sampler.generate(f"request-{seed}", PROMPT, params)]


async def make_batch(sampler: Sampler, step: int, grammar: Grammar | None = None) -> TrainBatch:
    """Two tasks of two episodes each, sampled now, one of each rewarded."""
    groups: list[Group] = []
    for task in range(2):
        episodes: list[FinishedEpisode] = []
        for repeat in range(2):
            name = f"step-{step}-task-{task}-{repeat}"
            deltas = await sample(sampler, seed=10 * task + repeat, grammar=grammar)
            episodes.append(to_episode(name, f"task-{task}", deltas, repeat, grammar))
        groups.append(Group(f"task-{task}", tuple(episodes)))
    return TrainBatch(batch_id=f"batch-{step}", step=step, groups=tuple(groups))


def to_episode(
    name: str, task_id: str, deltas: list[TokenDelta], reward: float, grammar: Grammar | None
) -> FinishedEpisode:
    tokens = tuple(token for delta in deltas for token in delta.token_ids_T)
    logprobs = tuple(logprob for delta in deltas for logprob in delta.logprobs_T)
    versions = tuple(version for delta in deltas for version in delta.weight_versions_T)
    read, sampled = len(PROMPT), len(tokens)
    whole = Sample(
        episode_id=name,
        token_ids_T=PROMPT + tokens,
        loss_mask_T=(False,) * read + (True,) * sampled,
        logprobs_T=(0.0,) * read + logprobs,
        weight_versions_T=(-1,) * read + versions,
        turn_indices_T=(-1,) * read + (0,) * sampled,
        temperatures_T=(1.0,) * (read + sampled),
        constrained_turns=() if grammar is None else (ConstrainedTurn(0, grammar),),
    )
    return FinishedEpisode(name, task_id, "client", reward, None, (whole,), 0.0)


@pytest.fixture(autouse=True)
async def fresh_weights(backend: Any) -> None:
    async with asyncio.timeout(LIMIT_S):
        await backend.endless.start()


async def test_each_step_publishes_the_next_version(backend: Any) -> None:
    async with asyncio.timeout(LIMIT_S):
        for step in (1, 2):
            batch = await make_batch(backend.endless, step)
            report = await backend.trainer.train(batch)
            assert (report.batch_id, report.step) == (batch.batch_id, step)
            assert (report.weight_version.version, report.weight_version.step) == (step, step)
            assert set(report.advantages) == {episode.episode_id for episode in batch.episodes}
            assert all(isinstance(value, float) for value in report.metrics.values())
            versions = {version for delta in await sample(backend.endless) for version in delta.weight_versions_T}
            assert versions == {step}


async def test_turns_sampled_under_a_grammar_are_trained(backend: Any) -> None:
    async with asyncio.timeout(LIMIT_S):
        batch = await make_batch(backend.endless, 1, Grammar(GrammarKind.REGEX, "[a-z]{30}"))
        report = await backend.trainer.train(batch)
    assert report.weight_version.version == 1
    assert set(report.advantages) == {episode.episode_id for episode in batch.episodes}


async def test_generation_pauses_for_a_step_and_goes_on_with_the_new_version(backend: Any) -> None:
    batch = await make_batch(backend.endless, 1)
    begun = asyncio.Event()
    versions: list[int] = []

    async def keep_versions() -> None:
        async for delta in backend.endless.generate("running", PROMPT, SamplingParams(max_tokens=900)):
            versions.extend(delta.weight_versions_T)
            begun.set()

    async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as tasks:
        tasks.create_task(keep_versions())
        await begun.wait()
        await backend.trainer.train(batch)
    assert len(versions) == 900
    assert versions == sorted(versions)
    assert {versions[0], versions[-1]} == {0, 1}


async def test_saved_state_is_restored_after_a_restart(backend: Any, tmp_path: Path) -> None:
    async with asyncio.timeout(LIMIT_S):
        await backend.trainer.train(await make_batch(backend.endless, 1))
        trained = await sample(backend.endless, seed=5)
        await backend.trainer.save(tmp_path / "checkpoint")
        await backend.endless.start()
        restored = await backend.trainer.load(tmp_path / "checkpoint")
        assert (restored.version, restored.step) == (1, 1)
        again = await sample(backend.endless, seed=5)
    assert flatten(again) == flatten(trained)
    assert {version for delta in again for version in delta.weight_versions_T} == {1}


async def test_directory_without_a_checkpoint_is_refused_and_sampling_goes_on(backend: Any, tmp_path: Path) -> None:
    async with asyncio.timeout(LIMIT_S):
        with pytest.raises(CheckpointError):
            await backend.trainer.load(tmp_path / "nothing")
        assert flatten(await sample(backend.endless))


async def test_checkpoint_that_cannot_be_written_is_refused(backend: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    async with asyncio.timeout(LIMIT_S):
        with pytest.raises(CheckpointError):
            await backend.trainer.save(tmp_path / "file" / "checkpoint")


def flatten(deltas: list[TokenDelta]) -> list[int]:
    return [token for delta in deltas for token in delta.token_ids_T]
