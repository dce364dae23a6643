"""The fake engine and trainer: replies as told, speed as told, faults on demand."""

from __future__ import annotations

import asyncio
import re
import time
from typing import Any

import pytest

from swarm.backends.fake import FakeSampler, FakeTrainer, Fault, FaultKind
from swarm.errors import BadRequest, EngineFailure
from swarm.job import TrainJob
from swarm.model_path import BUNDLED_DIRECTORY, read_tokenizer
from swarm.types import (
    FinishedEpisode,
    FinishReason,
    Grammar,
    GrammarKind,
    Group,
    SamplingParams,
    TokenDelta,
    TrainBatch,
)

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


def text_of(deltas: list[TokenDelta]) -> str:
    ids = [token_id for delta in deltas for token_id in delta.token_ids_T]
    return read_tokenizer(BUNDLED_DIRECTORY).decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize(
    ("grammar", "pattern"),
    [
        (Grammar(GrammarKind.REGEX, "PZA|QX"), "PZA|QX"),
        (Grammar(GrammarKind.REGEX, "[A-C]{3}"), "[A-C]{3}"),
        (Grammar(GrammarKind.REGEX, r"\d{4}"), r"\d{4}"),
        (Grammar(GrammarKind.LARK, 'start: "P" ("Z" | "Y") "A"\n'), "P[ZY]A"),
        (
            Grammar(
                GrammarKind.JSON_SCHEMA,
                '{"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}',
            ),
            r'(?s)\{\s*"a"\s*:\s*".*"\s*[,}].*\}?',
        ),
    ],
)
async def test_random_replies_are_sentences_of_the_grammar(grammar: Grammar, pattern: str) -> None:
    sampler = await started()
    texts = [text_of(await sample(sampler, seed=seed, grammar=grammar, max_tokens=400)) for seed in range(8)]
    assert all(re.fullmatch(pattern, text) for text in texts), texts
    assert len(set(texts)) > 1


async def test_random_replies_follow_biases_and_a_least_length() -> None:
    sampler = await started()
    letters = sorted(read_tokenizer(BUNDLED_DIRECTORY).encode("PZ").ids)
    biased = text_of(await sample(sampler, seed=1, logit_bias=tuple((each, 100.0) for each in letters)))
    assert set(biased) <= {"P", "Z"} and biased
    banned = tuple((each, -100.0) for each in range(35, 61))
    drawn = [delta.token_ids_T[0] for delta in await sample(sampler, seed=1, logit_bias=banned)]
    assert not set(drawn) & set(range(35, 61))
    assert len(await sample(sampler, seed=1, min_tokens=30)) > 30


async def test_what_no_engine_can_honour_is_refused() -> None:
    sampler = await started()
    for params in ({"grammar": Grammar(GrammarKind.REGEX, "(")}, {"logit_bias": ((10_000, 1.0),)}):
        with pytest.raises(BadRequest):
            await sample(sampler, **params)
