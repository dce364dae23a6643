"""A call waits for each of its tokens as long as the server holds calls, and not for all of them together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

import pytest
from simulated_time import run_simulated

from swarm.errors import RolloutPaused
from swarm.rollout.waiting_sampler import Draft, WaitingSampler
from swarm.run.call_metrics import TokenRate
from swarm.run.lifecycle import EngineLifecycle
from swarm.sampler import SamplerInfo
from swarm.schemas import EngineState
from swarm.types import FinishReason, SamplingParams, TokenDelta

WAIT_S = 10.0


class PacedSampler:
    """Each token comes after its pause; the last one ends the completion."""

    def __init__(self, pauses_s: Sequence[float]) -> None:
        self._pauses_s = pauses_s

    async def start(self) -> SamplerInfo:
        raise NotImplementedError

    async def stop(self) -> None:
        raise NotImplementedError

    async def generate(
        self, request_id: str, prompt_ids: Sequence[int], params: SamplingParams
    ) -> AsyncGenerator[TokenDelta]:
        for number, pause_s in enumerate(self._pauses_s):
            await asyncio.sleep(pause_s)
            is_last = number == len(self._pauses_s) - 1
            yield TokenDelta((number,), (-0.5,), (0,), FinishReason.STOP if is_last else None)


async def sample(pauses_s: Sequence[float], reading_s: float = 0.0) -> list[int]:
    async def record(state: EngineState, reason: str | None) -> None:
        pass

    lifecycle = EngineLifecycle(record)
    for state in (EngineState.BOOTING, EngineState.ROLLING):
        await lifecycle.move(state)
    sampler = WaitingSampler(PacedSampler(pauses_s), lifecycle, WAIT_S, lambda error: None, TokenRate(lambda: 0.0))
    ended, has_left, restart = lambda: None, lambda: False, lambda: None
    draft = Draft("call", "episode e of client c", (1, 2), SamplingParams(max_tokens=8), ended, has_left, restart)
    token_ids: list[int] = []
    async for delta in sampler.sample(draft):
        token_ids.extend(delta.token_ids_T)
        await asyncio.sleep(reading_s)
    return token_ids


def now() -> float:
    """Seconds of the simulated clock, which begins at 0."""
    return asyncio.get_running_loop().time()


def test_tokens_that_each_come_in_time_may_take_longer_together() -> None:
    async def scenario() -> None:
        assert await sample([0.9 * WAIT_S] * 5) == [0, 1, 2, 3, 4]
        assert now() == pytest.approx(4.5 * WAIT_S)

    run_simulated(scenario())


def test_a_reader_may_take_longer_for_a_token_than_the_sampler() -> None:
    async def scenario() -> None:
        assert await sample([1.0] * 3, reading_s=3 * WAIT_S) == [0, 1, 2]

    run_simulated(scenario())


@pytest.mark.parametrize("pauses_s", [[], [1.0], [0.9 * WAIT_S] * 3], ids=["first", "second", "fourth"])
def test_a_call_is_refused_once_one_token_is_overdue(pauses_s: list[float]) -> None:
    async def scenario() -> None:
        with pytest.raises(RolloutPaused, match="no token for 10 s"):
            await sample([*pauses_s, 100 * WAIT_S])
        assert now() == pytest.approx(sum(pauses_s) + WAIT_S)

    run_simulated(scenario())
