"""The fake engine and trainer: replies as told, speed as told, faults on demand."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from swarm.backends.fake import FakeSampler, FakeTrainer, Fault, FaultKind
from swarm.errors import EngineFailure
from swarm.job import TrainJob
from swarm.types import FinishedEpisode, FinishReason, Group, SamplingParams, TokenDelta, TrainBatch

pytestmark = pytest.mark.anyio

PROMPT = (40, 41, 42)
LONG = tuple(range(40, 60))


async def sample(sampler: FakeSampler, **params: Any) -> list[TokenDelta]:
    settings = SamplingParams(**{"max_tokens": 50, **params})
    async with asyncio.timeout(60):
        return [delta async for delta in sampler.generate("request", PROMPT, settings)]


async def started(**settings: Any) -> FakeSampler:
    sampler = FakeSampler(**settings)
    await sampler.start()
    return sampler


async def test_given_reply_is_sampled_token_by_token_and_ends_with_stop() -> None:
    deltas = await sample(await started(reply=lambda prompt: [*prompt, 50]))
    assert [delta.token_ids_T for delta in deltas] == [(40,), (41,), (42,), (50,)]
    assert deltas[-1].finish_reason is FinishReason.STOP


async def test_random_reply_is_letters_and_the_stop_token() -> None:
    deltas = await sample(await started(), seed=1)
    assert deltas[-1].finish_reason is FinishReason.STOP
    assert 2 <= len(deltas) <= 17


async def test_token_delay_sets_the_speed() -> None:
    sampler = await started(reply=lambda _: LONG, token_delay_s=0.01)
    begun = time.monotonic()
    await sample(sampler)
    assert time.monotonic() - begun >= 0.2


async def test_raise_fails_the_request_and_spares_the_engine() -> None:
    sampler = await started(reply=lambda _: LONG, fault=Fault(FaultKind.RAISE, after_tokens=3))
    received: list[TokenDelta] = []
    with pytest.raises(EngineFailure, match="after 3 tokens"):
        async for delta in sampler.generate("request", PROMPT, SamplingParams(max_tokens=50)):
            received.append(delta)
    assert len(received) == 3
    sampler.fault = None
    assert len(await sample(sampler)) == len(LONG)


async def test_hang_stalls_the_request_until_the_engine_stops() -> None:
    sampler = await started(reply=lambda _: LONG, fault=Fault(FaultKind.HANG, after_tokens=2))
    hanging = sampler.generate("request", PROMPT, SamplingParams(max_tokens=50))
    assert [(await anext(hanging)).finish_reason for _ in range(2)] == [None, None]
    third = asyncio.ensure_future(anext(hanging))
    await asyncio.sleep(0.1)
    assert not third.done()
    await sampler.stop()
    assert (await third).finish_reason is FinishReason.ABORT
    assert [delta async for delta in hanging] == []


async def test_death_fails_every_request_until_the_next_start() -> None:
    sampler = await started(reply=lambda _: LONG, token_delay_s=0.01, fault=Fault(FaultKind.DIE, after_tokens=5))
    outcomes = await asyncio.gather(*(sample(sampler) for _ in range(3)), return_exceptions=True)
    assert all(isinstance(outcome, EngineFailure) for outcome in outcomes)
    sampler.fault = None
    with pytest.raises(EngineFailure, match="died"):
        await sample(sampler)
    await sampler.start()
    assert len(await sample(sampler)) == len(LONG)


async def test_advantages_are_rewards_around_the_mean_of_their_group() -> None:
    report = await FakeTrainer(await started(), TrainJob(engine="fake")).train(make_batch(1))
    assert report.advantages == {"a": -0.5, "b": 0.5, "alone": 0.0}


def make_batch(step: int) -> TrainBatch:
    def episode(name: str, reward: float) -> FinishedEpisode:
        return FinishedEpisode(name, "task", "client", reward, None, (), 0.0)

    groups = (Group("one", (episode("a", 0), episode("b", 1))), Group("two", (episode("alone", 1),)))
    return TrainBatch("batch", step, groups)
