"""What every Sampler promises: sampling parameters, stopping, aborts, life and end."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from tokenizers import Tokenizer

from swarm.errors import ContextLengthExceeded, EngineFailure
from swarm.sampler import Sampler
from swarm.types import FinishReason, SamplingParams, TokenDelta

pytestmark = pytest.mark.anyio

PROMPT = (40, 41, 42, 43)
LIMIT_S = 600
_names = itertools.count()


@dataclass
class Completion:
    token_ids: list[int]
    logprobs: list[float]
    weight_versions: list[int]
    finishes: list[FinishReason | None]


async def complete(sampler: Sampler, prompt: tuple[int, ...] = PROMPT, **params: Any) -> Completion:
    settings = SamplingParams(**{"max_tokens": 12, **params})
    deltas = [delta async for delta in sampler.generate(f"request-{next(_names)}", prompt, settings)]
    return join(deltas)


def join(deltas: list[TokenDelta]) -> Completion:
    for delta in deltas:
        assert len(delta.token_ids_T) == len(delta.logprobs_T) == len(delta.weight_versions_T)
    return Completion(
        [token for delta in deltas for token in delta.token_ids_T],
        [logprob for delta in deltas for logprob in delta.logprobs_T],
        [version for delta in deltas for version in delta.weight_versions_T],
        [delta.finish_reason for delta in deltas],
    )


@pytest.fixture
async def tokenizer(backend: Any) -> Tokenizer:
    info = await restart(backend.sampler)
    return Tokenizer.from_file(str(Path(info.tokenizer_path) / "tokenizer.json"))


async def restart(sampler: Sampler) -> Any:
    async with asyncio.timeout(LIMIT_S):
        return await sampler.start()


async def test_started_engine_states_its_facts(backend: Any) -> None:
    info = await restart(backend.sampler)
    assert info.context_length >= 1024
    assert (Path(info.tokenizer_path) / "tokenizer.json").is_file()


async def test_only_the_last_delta_carries_a_finish_reason(backend: Any) -> None:
    completion = await complete(backend.sampler)
    assert completion.finishes[-1] in {FinishReason.STOP, FinishReason.LENGTH}
    assert set(completion.finishes[:-1]) <= {None}
    assert 1 <= len(completion.token_ids) <= 12
    assert all(logprob <= 0 for logprob in completion.logprobs)
    assert set(completion.weight_versions) == {0}


async def test_same_seed_gives_the_same_tokens_whatever_runs_beside_it(backend: Any) -> None:
    alone = await complete(backend.sampler, seed=7)
    crowd = await asyncio.gather(*(complete(backend.sampler, seed=seed) for seed in range(20)))
    assert crowd[7].token_ids == alone.token_ids
    assert crowd[7].logprobs == pytest.approx(alone.logprobs, abs=1e-5)
    assert len({tuple(each.token_ids) for each in crowd}) > 5


async def test_temperature_zero_repeats_itself(backend: Any) -> None:
    first, second = await asyncio.gather(*(complete(backend.sampler, temperature=0.0) for _ in range(2)))
    assert first.token_ids == second.token_ids


async def test_unseeded_requests_differ(backend: Any) -> None:
    completions = await asyncio.gather(*(complete(backend.sampler) for _ in range(8)))
    assert len({tuple(each.token_ids) for each in completions}) > 1


async def test_max_tokens_ends_a_completion_with_length(backend: Any) -> None:
    completion = await complete(backend.endless, max_tokens=5)
    assert len(completion.token_ids) == 5
    assert completion.finishes[-1] is FinishReason.LENGTH


async def test_stop_token_ends_a_completion_and_belongs_to_it(backend: Any) -> None:
    free = await complete(backend.sampler, seed=3)
    third = free.token_ids[min(2, len(free.token_ids) - 1)]
    stopped = await complete(backend.sampler, seed=3, stop_token_ids=(third,))
    assert stopped.token_ids == free.token_ids[: free.token_ids.index(third) + 1]
    assert stopped.finishes[-1] is FinishReason.STOP


async def test_stop_string_ends_a_completion_at_the_token_that_completes_it(backend: Any, tokenizer: Tokenizer) -> None:
    free = await complete(backend.endless, temperature=0.0, max_tokens=40)
    text = tokenizer.decode(free.token_ids, skip_special_tokens=False)
    stop = text[5:8]
    stopped = await complete(backend.endless, temperature=0.0, max_tokens=40, stop=("never said", stop))
    assert stopped.finishes[-1] is FinishReason.STOP
    assert stopped.token_ids == free.token_ids[: len(stopped.token_ids)]
    assert stop in tokenizer.decode(stopped.token_ids, skip_special_tokens=False)
    assert stop not in tokenizer.decode(stopped.token_ids[:-1], skip_special_tokens=False)


async def test_full_context_refuses_and_nearly_full_context_ends_with_length(backend: Any) -> None:
    room = (await restart(backend.endless)).context_length
    with pytest.raises(ContextLengthExceeded, match="tokens"):
        await complete(backend.endless, prompt=(40,) * room)
    completion = await complete(backend.endless, prompt=(40,) * (room - 3), max_tokens=50)
    assert len(completion.token_ids) == 3
    assert completion.finishes[-1] is FinishReason.LENGTH


async def test_closing_early_aborts_and_others_go_on(backend: Any) -> None:
    other = asyncio.create_task(complete(backend.endless, max_tokens=60, seed=1))
    stream = generate_endlessly(backend.endless)
    async with asyncio.timeout(LIMIT_S):
        await anext(stream)
        await stream.aclose()
        assert len((await other).token_ids) == 60


async def test_stop_ends_generations_with_abort_and_start_begins_anew(backend: Any) -> None:
    stream = generate_endlessly(backend.endless)
    async with asyncio.timeout(LIMIT_S):
        first = await anext(stream)
        await backend.endless.stop()
        deltas = [first] + [delta async for delta in stream]
        await backend.endless.stop()
    assert join(deltas).finishes[-1] is FinishReason.ABORT
    with pytest.raises(EngineFailure):
        await complete(backend.endless)
    await restart(backend.endless)
    assert len((await complete(backend.endless)).token_ids) == 12


def generate_endlessly(sampler: Sampler) -> AsyncGenerator[TokenDelta]:
    stream = sampler.generate(f"request-{next(_names)}", PROMPT, SamplingParams(max_tokens=1500))
    return cast("AsyncGenerator[TokenDelta]", stream)
