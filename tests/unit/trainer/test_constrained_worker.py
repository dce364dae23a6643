"""Constrained turns through the real worker: what its sampler records is what its learner computes."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence

import pytest
from constrained_rollouts import NEXT, OTHER_END, PERSON, PROMPT, TOOL_CALL, Sampled, make_batch, make_turn

from swarm.backends.local.sampler import LocalEngine
from swarm.backends.local.trainer import LocalTrainer, build_local, build_worker
from swarm.config import ServerConfig
from swarm.job import TrainJob
from swarm.types import Grammar, GrammarKind, SamplingParams, Turn

pytestmark = pytest.mark.anyio

LIMIT_S = 60
_names = itertools.count()


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def pair(
    anyio_backend: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[LocalEngine, LocalTrainer]]:
    """Started once: the weights go on from test to test."""
    config = ServerConfig()
    worker = build_worker(config, tmp_path_factory.mktemp("worker") / "worker.log")
    engine, trainer = build_local(TrainJob(max_staleness=1, lr=1e-3), config, worker)
    async with asyncio.timeout(LIMIT_S):
        await engine.start()
    yield engine, trainer
    await worker.stop()


async def sample(engine: LocalEngine, prompt: Sequence[int], params: SamplingParams) -> Sampled:
    found = Sampled()
    async for delta in engine.generate(f"request-{next(_names)}", prompt, params):
        found.token_ids += delta.token_ids_T
        found.logprobs += delta.logprobs_T
        found.versions += delta.weight_versions_T
        found.finish = delta.finish_reason
    return found


async def play(engine: LocalEngine, number: int, turns_params: Sequence[SamplingParams]) -> list[Turn]:
    """A linear episode; the last turn starts a conversation of its own."""
    turns: list[Turn] = []
    prompt = PROMPT
    for index, params in enumerate(turns_params):
        parent = None if index in (0, len(turns_params) - 1) else index - 1
        prompt = PROMPT if parent is None else [*prompt, *turns[-1].output_ids_T, *NEXT]
        found = await sample(engine, prompt, params)
        turns.append(make_turn(f"episode-{number}", index, prompt, params, found, parent))
    return turns


async def test_a_batch_of_schema_turns_and_forced_tool_calls_shows_no_gap(
    pair: tuple[LocalEngine, LocalTrainer],
) -> None:
    engine, trainer = pair
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
            plays = [play(engine, number, [*kinds[number % 5 :], *kinds[: number % 5]]) for number in range(10)]
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


@pytest.mark.slow
async def test_turns_that_new_weights_met_in_mid_grammar_are_followed_too(
    pair: tuple[LocalEngine, LocalTrainer],
) -> None:
    engine, trainer = pair
    long = SamplingParams(900, grammar=Grammar(GrammarKind.REGEX, "(abc|[0-9]){400,}"))
    async with asyncio.timeout(LIMIT_S):
        running = [asyncio.create_task(play(engine, number, [long])) for number in range(4)]
        short = [await play(engine, number, [SamplingParams(60, grammar=PERSON)]) for number in range(4)]
        await trainer.train(make_batch(short))
        episodes = [await each for each in running]
        assert any(len(set(turns[0].weight_versions_T)) == 2 for turns in episodes)
        report = await trainer.train(make_batch(episodes, step=2))
    assert report.metrics["grammar/turns_left_out"] == 0
    assert report.metrics["training/rollout_logprob_gap_max"] < 1e-4
