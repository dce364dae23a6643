"""The local engine on its real worker process: start, death, limits, and what its learner makes of
constrained turns."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from constrained_rollouts import NEXT, OTHER_END, PERSON, TOOL_CALL, Sampled, make_batch
from turns import plain_turn

from swarm.backends.local.engine import LocalSampler, build_local, build_worker
from swarm.backends.pairing import ProcessTrainer
from swarm.config import ServerConfig
from swarm.errors import BadRequest, EngineFailure
from swarm.job import TrainJob
from swarm.model_path import BUNDLED_DIRECTORY, read_stop_ids, read_tokenizer
from swarm.types import FinishReason, Grammar, GrammarKind, SamplingParams, TokenDelta, Turn

pytestmark = pytest.mark.anyio

LIMIT_S = 60
TOKENIZER = read_tokenizer(BUNDLED_DIRECTORY)
PROMPT: list[int] = TOKENIZER.encode("<|im_start|>user\nReverse: abc<|im_end|>\n<|im_start|>assistant\n").ids
_names = itertools.count()


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def sampler(anyio_backend: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalSampler]:
    """On a worker that outlives the engine; tests that kill it start it again."""
    log_path = tmp_path_factory.mktemp("worker") / "worker.log"
    config = ServerConfig(max_running_requests=32)
    worker = build_worker(config, log_path)
    sampler, _ = build_local(TrainJob(), config, worker)
    await sampler.start()
    yield sampler
    await worker.stop()


async def sample(sampler: LocalSampler, prompt: list[int] = PROMPT, **params: Any) -> list[TokenDelta]:
    settings = SamplingParams(**{"max_tokens": 32, **params})
    async with asyncio.timeout(LIMIT_S):
        return [delta async for delta in sampler.generate("request", prompt, settings)]


async def test_bundled_model_ends_its_reply_with_its_stop_token(sampler: LocalSampler) -> None:
    deltas = await sample(sampler, temperature=0.0)
    tokens = [token for delta in deltas for token in delta.token_ids_T]
    assert deltas[-1].finish_reason is FinishReason.STOP
    assert tokens[-1] in read_stop_ids(BUNDLED_DIRECTORY, TOKENIZER)
    assert TOKENIZER.decode(tokens).strip()


async def test_what_the_worker_never_uses_is_not_imported_with_its_libraries(sampler: LocalSampler) -> None:
    await sample(sampler)
    libraries = {
        part for mapped in psutil.Process(sampler.worker.pid).memory_maps() for part in Path(mapped.path).parts
    }
    assert "torch" in libraries and "scipy" not in libraries


async def test_reload_keeps_the_process_and_unload_refuses_requests(sampler: LocalSampler) -> None:
    pid = sampler.worker.pid
    await sampler.stop()
    with pytest.raises(EngineFailure, match="not started"):
        await sample(sampler)
    await sampler.start()
    assert sampler.worker.pid == pid
    assert await sample(sampler)


async def test_requests_beyond_the_limit_wait_for_a_row(sampler: LocalSampler) -> None:
    replies = await asyncio.gather(*(sample(sampler, seed=seed) for seed in range(100)))
    assert all(deltas[-1].finish_reason is not None for deltas in replies)


async def test_grammars_and_likeliest_tokens_pass_through_the_worker(sampler: LocalSampler) -> None:
    wanted = (
        '{"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": false}'
    )
    deltas = await sample(
        sampler,
        temperature=1.0,
        seed=1,
        top_logprobs=3,
        max_tokens=300,
        grammar=Grammar(GrammarKind.JSON_SCHEMA, wanted),
    )
    tokens = [token for delta in deltas for token in delta.token_ids_T]
    assert deltas[-1].finish_reason is FinishReason.STOP
    assert json.loads(TOKENIZER.decode(tokens))["a"] in (1, 2)
    likeliest = [each for delta in deltas for each in delta.top_logprobs_T or ()]
    logprobs = [logprob for delta in deltas for logprob in delta.logprobs_T]
    assert len(likeliest) == len(tokens)
    for token, logprob, top in zip(tokens, logprobs, likeliest, strict=True):
        assert dict(top).get(token, logprob) == logprob
        assert logprob <= top[0][1] and len(top) <= 3


async def test_bad_grammars_and_biases_are_refused_by_reason(sampler: LocalSampler) -> None:
    with pytest.raises(BadRequest, match="uniqueItems"):
        await sample(sampler, grammar=Grammar(GrammarKind.JSON_SCHEMA, '{"type": "array", "uniqueItems": true}'))
    with pytest.raises(BadRequest, match="vocabulary of 384") as caught:
        await sample(sampler, logit_bias=((384, 1.0),))
    assert caught.value.param == "logit_bias"
    assert await sample(sampler)


@pytest.fixture
async def pair(sampler: LocalSampler) -> AsyncIterator[tuple[LocalSampler, ProcessTrainer]]:
    """Sampler and trainer of a job of their own, which has the worker for the time of a test."""
    own, trainer = build_local(TrainJob(max_staleness=1, lr=1e-3), ServerConfig(), sampler.worker)
    async with asyncio.timeout(LIMIT_S):
        await own.start()
    yield own, trainer
    async with asyncio.timeout(LIMIT_S):
        await sampler.start()


async def sampled(sampler: LocalSampler, prompt: Sequence[int], params: SamplingParams) -> Sampled:
    found = Sampled()
    async for delta in sampler.generate(f"request-{next(_names)}", prompt, params):
        found.token_ids += delta.token_ids_T
        found.logprobs += delta.logprobs_T
        found.versions += delta.weight_versions_T
        found.finish = delta.finish_reason
    return found


async def play(sampler: LocalSampler, number: int, turns_params: Sequence[SamplingParams]) -> list[Turn]:
    """A linear episode; the last turn starts a conversation of its own."""
    turns: list[Turn] = []
    prompt = PROMPT
    for index, params in enumerate(turns_params):
        parent = None if index in (0, len(turns_params) - 1) else index - 1
        prompt = PROMPT if parent is None else [*prompt, *turns[-1].output_ids_T, *NEXT]
        found = await sampled(sampler, prompt, params)
        turns.append(
            plain_turn(
                index,
                prompt,
                found.token_ids,
                episode_id=f"episode-{number}",
                logprobs_T=tuple(found.logprobs),
                weight_versions_T=tuple(found.versions),
                finish_reason=found.finish,
                params=params,
                parent=parent,
            )
        )
    return turns


async def test_a_batch_of_schema_turns_and_forced_tool_calls_shows_no_gap(
    pair: tuple[LocalSampler, ProcessTrainer],
) -> None:
    sampler, trainer = pair
    stops = (OTHER_END,)
    kinds = [
        SamplingParams(60, 0.8, grammar=TOOL_CALL, stop_token_ids=stops),
        SamplingParams(12, stop_token_ids=stops),
        SamplingParams(60, grammar=PERSON),
        SamplingParams(30, 0.0, grammar=Grammar(GrammarKind.JSON_OBJECT)),
        SamplingParams(40, 1.3, stop=("5",), grammar=Grammar(GrammarKind.REGEX, "[3-5]{20,30}")),
    ]
    async with asyncio.timeout(LIMIT_S):
        for step in (1, 2):
            plays = [play(sampler, number, [*kinds[number % 5 :], *kinds[: number % 5]]) for number in range(10)]
            episodes = await asyncio.gather(*plays)
            report = await trainer.train(make_batch(episodes, size=5, step=step))
            constrained = [turn for turns in episodes for turn in turns if turn.params.grammar is not None]
            # A wrong set of allowed tokens would show in tenths; the rest is rounding, which depends on the batch.
            assert report.metrics["training/rollout_logprob_gap_max"] < 1e-4
            assert report.metrics["training/rollout_logprob_gap_mean"] < 1e-6
            assert report.metrics["grammar/turns"] == len(constrained) == 40
            assert report.metrics["grammar/tokens"] == sum(len(turn.output_ids_T) for turn in constrained)
            assert report.metrics["grammar/turns_left_out"] == 0
            assert report.metrics["rollout/trained_tokens"] == sum(len(t.output_ids_T) for ts in episodes for t in ts)
            assert report.metrics["rollout_corr/rollout_is_max"] == pytest.approx(1, abs=1e-4)
            assert report.metrics["actor/updates"] > 0


async def test_killed_worker_fails_generations_promptly_and_start_heals(sampler: LocalSampler) -> None:
    running = [asyncio.create_task(sample(sampler, prompt=[40 + n], max_tokens=2000)) for n in range(5)]
    await asyncio.sleep(0.05)
    pid = sampler.worker.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    async with asyncio.timeout(60):
        outcomes = await asyncio.gather(*running, return_exceptions=True)
    assert any(isinstance(outcome, EngineFailure) and "SIGKILL" in str(outcome) for outcome in outcomes)
    assert sampler.worker.exited.is_set()
    with pytest.raises(EngineFailure, match="SIGKILL"):
        await sample(sampler)
    await sampler.start()
    assert sampler.worker.pid != pid
    assert await sample(sampler)


async def test_wrong_models_are_refused_in_one_line(sampler: LocalSampler, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "no-such-model"}')
    (tmp_path / "tokenizer.json").write_text((BUNDLED_DIRECTORY / "tokenizer.json").read_text())
    too_long = TrainJob(max_model_len=4096)
    for job, reason in (
        (TrainJob(model=str(tmp_path / "missing")), "no directory"),
        (TrainJob(model=str(tmp_path)), "no-such-model"),
        (too_long, "max_model_len is 4096 and the model supports 2048"),
    ):
        other, _ = build_local(job, ServerConfig(), sampler.worker)
        with pytest.raises(EngineFailure, match=reason) as caught:
            await other.start()
        assert "\n" not in str(caught.value)
    await sampler.start()


async def test_shorter_context_is_kept_to(sampler: LocalSampler) -> None:
    short, _ = build_local(TrainJob(max_model_len=40), ServerConfig(), sampler.worker)
    assert (await short.start()).context_length == 40
    deltas = await sample(short, prompt=[40] * 38, max_tokens=20)
    assert sum(len(delta.token_ids_T) for delta in deltas) <= 2
    await short.stop()
    await sampler.start()
