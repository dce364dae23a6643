"""The verl engine over real processes and HTTP, with stand-ins for vLLM: sampling, weights, and every kind of death."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from vllm_stand_in import LIMIT_S, LIMITS, Completion, StandIns, complete, expected_tokens, port_of, until

from swarm.backends.replicas.adapter import WeightBroadcast
from swarm.backends.replicas.replica import ReplicaState
from swarm.backends.replicas.sampler import ReplicaSampler
from swarm.errors import BadRequest, EngineFailure, UnknownParameter
from swarm.sampler import EngineLost
from swarm.types import FinishReason, Grammar, GrammarKind, SamplingParams

pytestmark = pytest.mark.anyio

PROMPT = (50, 51, 52, 53)
SLOW_S = 0.03


@dataclass
class Shared:
    """One engine for the tests that do it no harm. It has no faults when a test begins."""

    stand_ins: StandIns
    sampler: ReplicaSampler


@pytest.fixture(scope="module")
async def kept(anyio_backend: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Shared]:
    stand_ins = StandIns(tmp_path_factory.mktemp("shared"))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in stand_ins.environment.items():
            patch.setenv(name, value)
        sampler = stand_ins.sampler()
        await sampler.start()
    yield Shared(stand_ins, sampler)
    await sampler.stop()
    assert stand_ins.living() == []


@pytest.fixture
async def shared(kept: Shared) -> Shared:
    kept.stand_ins.tell()
    kept.stand_ins.forget()
    await kept.sampler.start()
    return kept


@pytest.fixture
async def sampler(stand_ins: StandIns) -> AsyncIterator[ReplicaSampler]:
    made = stand_ins.sampler()
    await made.start()
    yield made
    await made.stop()
    assert stand_ins.living() == []


@pytest.fixture
async def pair(stand_ins: StandIns) -> AsyncIterator[ReplicaSampler]:
    made = stand_ins.sampler(replicas=2)
    await made.start()
    yield made
    await made.stop()
    assert stand_ins.living() == []


def kill(sampler: ReplicaSampler, replica: int) -> None:
    pid = sampler.replicas[replica].pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


async def under_way(stand_ins: StandIns, sampler: ReplicaSampler, **params: Any) -> asyncio.Task[Completion]:
    """Begin a completion, each token of which takes SLOW_S, and wait until some of its tokens are there."""
    stand_ins.tell(token_delay_s=SLOW_S)
    running = asyncio.create_task(complete(sampler, PROMPT, **params))
    await until(lambda: stand_ins.notes("asked"))
    await asyncio.sleep(5 * SLOW_S)
    return running


async def test_started_engine_samples_and_states_its_facts(shared: Shared) -> None:
    sampler = shared.sampler
    info = await sampler.start()
    assert (info.context_length, info.parameters, info.device) == (2048, 475_904, "cpu")
    completion = await complete(sampler, PROMPT)
    assert completion.token_ids == expected_tokens(PROMPT, 12)
    assert completion.finish is FinishReason.LENGTH
    assert set(completion.versions) == {0}


async def test_what_cannot_be_honoured_is_refused_by_name(shared: Shared) -> None:
    sampler = shared.sampler
    with pytest.raises(UnknownParameter, match="temperature") as refused:
        await complete(sampler, PROMPT, temperature=0.001)
    assert refused.value.param == "temperature"
    with pytest.raises(BadRequest, match="malformed"):
        await complete(sampler, PROMPT, grammar=Grammar(GrammarKind.JSON_SCHEMA, "[1]"))


async def test_refusal_by_vllm_is_the_callers_error_and_others_go_on(shared: Shared) -> None:
    stand_ins, sampler = shared.stand_ins, shared.sampler
    stand_ins.tell(refuses_requests=True)
    with pytest.raises(BadRequest, match="grammar error"):
        await complete(sampler, PROMPT)
    stand_ins.tell()
    assert (await complete(sampler, PROMPT)).token_ids == expected_tokens(PROMPT, 12)


async def test_logits_without_numbers_are_an_engine_failure(shared: Shared) -> None:
    stand_ins, sampler = shared.stand_ins, shared.sampler
    stand_ins.tell(not_finite=True)
    with pytest.raises(EngineFailure, match="diverged"):
        await complete(sampler, PROMPT)


async def test_overflow_by_the_parameters_of_a_request_is_its_own_error(shared: Shared) -> None:
    stand_ins, sampler = shared.stand_ins, shared.sampler
    stand_ins.tell(overflows=True)
    with pytest.raises(UnknownParameter, match=r"temperature 0\.5") as refused:
        await complete(sampler, PROMPT, temperature=0.5)
    assert refused.value.param == "temperature"
    assert (await complete(sampler, PROMPT)).token_ids == expected_tokens(PROMPT, 12)


async def test_stranger_without_the_key_is_refused_everywhere(shared: Shared) -> None:
    sampler = shared.sampler
    async with httpx.AsyncClient(base_url=str(sampler.replicas[0].base_url), trust_env=False) as stranger:
        assert (await stranger.get("/health")).status_code == 401
        assert (await stranger.post("/pause", headers={"authorization": "Bearer guess"})).status_code == 401


async def test_busy_replica_that_is_slow_to_say_how_it_fares_is_left_alone(shared: Shared) -> None:
    stand_ins, sampler = shared.stand_ins, shared.sampler
    stand_ins.tell(token_delay_s=SLOW_S, hangs_at=["/is_paused"])
    assert len((await complete(sampler, PROMPT, max_tokens=200)).token_ids) == 200
    assert len(stand_ins.notes("started")) == 1


async def test_closing_early_aborts_within_a_step(shared: Shared) -> None:
    stand_ins, sampler = shared.stand_ins, shared.sampler
    stand_ins.tell(token_delay_s=SLOW_S)
    async with aclosing(sampler.generate("closed", PROMPT, SamplingParams(max_tokens=1500))) as stream:
        await anext(stream)
    await until(lambda: stand_ins.notes("aborted"))
    assert stand_ins.notes("aborted")[0]["tokens"] < 20
    assert sampler.replicas[0].load == 0


async def test_starting_again_brings_the_base_model_back_without_new_processes(
    stand_ins: StandIns, sampler: ReplicaSampler
) -> None:
    stand_ins.tell(token_delay_s=SLOW_S)
    await sampler.publish(stand_ins.weights(3, version=1))
    running = asyncio.create_task(complete(sampler, PROMPT, max_tokens=1500))
    await until(lambda: sampler.replicas[0].load)
    before = sampler.replicas[0].pid
    await sampler.start()
    assert (await running).finish is FinishReason.ABORT
    assert sampler.replicas[0].pid == before
    again = await complete(sampler, PROMPT)
    assert again.token_ids == expected_tokens(PROMPT, 12)
    assert set(again.versions) == {0}


async def test_published_weights_are_sampled_with_on_every_replica(stand_ins: StandIns, pair: ReplicaSampler) -> None:
    await pair.publish(stand_ins.weights(7, version=4))
    completions = await asyncio.gather(*(complete(pair, PROMPT, name=f"r{index}") for index in range(6)))
    assert all(each.token_ids == expected_tokens(PROMPT, 12, weights=7) for each in completions)
    assert all(set(each.versions) == {4} for each in completions)
    assert {note["port"] for note in stand_ins.notes("asked")} == {port_of(pair, 0), port_of(pair, 1)}
    paths = [note["what"] for note in stand_ins.notes() if note["port"] == port_of(pair, 0) and note["what"][0] == "/"]
    assert paths[:6] == [
        "/pause", "/start_weight_update", "/update_weights", "/finish_weight_update", "/reset_prefix_cache", "/resume",
    ]  # fmt: skip
    assert {note["version"] for note in stand_ins.notes("version")} == {"4"}
    assert all(note["query"]["mode"] == "keep" for note in stand_ins.notes("/pause"))
    assert all(note["query"] == {"reset_running_requests": "true"} for note in stand_ins.notes("/reset_prefix_cache"))


async def test_completion_under_way_goes_on_with_new_weights_and_each_token_says_its_version(
    stand_ins: StandIns, sampler: ReplicaSampler
) -> None:
    running = await under_way(stand_ins, sampler, max_tokens=100)
    await sampler.publish(stand_ins.weights(7, version=1))
    completion = await running
    old = completion.versions.count(0)
    assert completion.versions == [0] * old + [1] * (100 - old)
    assert 0 < old < 100
    before = expected_tokens(PROMPT, old)
    assert completion.token_ids == before + expected_tokens((*PROMPT, *before), 100 - old, weights=7)


async def test_replica_killed_in_the_middle_is_only_a_pause(stand_ins: StandIns, sampler: ReplicaSampler) -> None:
    await sampler.publish(stand_ins.weights(5, version=2))
    running = await under_way(stand_ins, sampler, max_tokens=60)
    kill(sampler, 0)
    completion = await running
    assert completion.token_ids == expected_tokens(PROMPT, 60, weights=5)
    assert set(completion.versions) == {2}
    assert completion.finish is FinishReason.LENGTH
    assert len(stand_ins.notes("started")) == 2
    seeds = [note["seed"] for note in stand_ins.notes("started")]
    assert seeds[0] != seeds[1]


async def test_request_of_a_dead_replica_goes_on_at_another(stand_ins: StandIns, pair: ReplicaSampler) -> None:
    running = await under_way(stand_ins, pair, max_tokens=60, seed=11, min_tokens=30)
    first = next(index for index in (0, 1) if pair.replicas[index].load)
    kill(pair, first)
    completion = await running
    assert completion.token_ids == expected_tokens(PROMPT, 60)
    one, two = (note["body"] for note in stand_ins.notes("asked"))
    given = len(two["prompt"]) - len(PROMPT)
    assert given > 0
    assert two["max_tokens"] == 60 - given
    assert two["min_tokens"] == max(0, 30 - given)
    assert one["seed"] == 11
    assert two["seed"] not in {11, None}
    await until(lambda: pair.replicas[first].state is ReplicaState.SERVING)


async def test_completion_that_cannot_go_on_elsewhere_is_lost_and_says_so(
    stand_ins: StandIns, sampler: ReplicaSampler
) -> None:
    running = await under_way(stand_ins, sampler, max_tokens=200, presence_penalty=0.5)
    kill(sampler, 0)
    with pytest.raises(EngineLost, match="penalties"):
        await running


@pytest.mark.parametrize(
    "fault", [{"hangs": True}, {"hangs_at": ["/is_paused"]}], ids=["all", "behind a healthy front"]
)
async def test_hanging_replica_is_noticed_and_replaced(
    stand_ins: StandIns, sampler: ReplicaSampler, fault: dict[str, Any]
) -> None:
    running = await under_way(stand_ins, sampler, max_tokens=60)
    stand_ins.tell(port_of(sampler, 0), core_hangs=True, **fault)
    assert (await running).token_ids == expected_tokens(PROMPT, 60)
    assert len(stand_ins.notes("started")) == 2


async def test_replica_that_says_it_is_dead_is_replaced(stand_ins: StandIns, sampler: ReplicaSampler) -> None:
    first = sampler.replicas[0].pid
    stand_ins.tell(port_of(sampler, 0), is_dead=True)
    await until(lambda: sampler.replicas[0].pid not in {first, None} and sampler.replicas[0].state == "serving")
    assert (await complete(sampler, PROMPT)).token_ids == expected_tokens(PROMPT, 12)


@pytest.mark.parametrize("fault", [{"refuses": "/update_weights"}, {"hangs_at": ["/pause"]}, {"dies_at": "/resume"}])
async def test_replica_that_does_not_take_weights_is_started_again_with_them(
    stand_ins: StandIns, pair: ReplicaSampler, fault: dict[str, object]
) -> None:
    broken = port_of(pair, 0)
    stand_ins.tell(token_delay_s=SLOW_S)
    running = [asyncio.create_task(complete(pair, PROMPT, max_tokens=100, name=f"r{index}")) for index in range(4)]
    await until(lambda: len(stand_ins.notes("asked")) == 4)
    stand_ins.tell(broken, token_delay_s=SLOW_S, **fault)
    async with asyncio.timeout(LIMIT_S):
        await pair.publish(stand_ins.weights(7, version=1))
    after = await complete(pair, PROMPT)
    assert set(after.versions) == {1}
    assert after.token_ids == expected_tokens(PROMPT, 12, weights=7)
    for completion in await asyncio.gather(*running):
        old = completion.versions.count(0)
        before = expected_tokens(PROMPT, old)
        assert completion.token_ids == before + expected_tokens((*PROMPT, *before), 100 - old, weights=7)
    await until(lambda: pair.replicas[0].state is ReplicaState.SERVING)
    assert [replica.version for replica in pair.replicas] == [1, 1]


async def test_replica_that_keeps_dying_is_given_up_and_the_engine_is_lost(
    stand_ins: StandIns, sampler: ReplicaSampler
) -> None:
    waiting = asyncio.create_task(sampler.died())
    running = asyncio.create_task(complete(sampler, PROMPT, max_tokens=200))
    stand_ins.tell(dies_after=3)
    with pytest.raises(EngineLost, match="no vLLM replica is left"):
        await running
    async with asyncio.timeout(LIMIT_S):
        assert "no vLLM replica is left" in await waiting
    with pytest.raises(EngineLost):
        await complete(sampler, PROMPT)
    assert len(stand_ins.notes("started")) == 3
    stand_ins.tell()
    await sampler.start()
    assert (await complete(sampler, PROMPT)).token_ids == expected_tokens(PROMPT, 12)


async def test_request_at_which_living_replicas_break_off_is_refused(
    stand_ins: StandIns, sampler: ReplicaSampler
) -> None:
    stand_ins.tell(breaks_after=2)
    with pytest.raises(BadRequest, match="cannot complete this request"):
        await complete(sampler, PROMPT)
    assert len(stand_ins.notes("started")) == 1


async def test_model_that_vllm_refuses_is_an_engine_failure_with_its_words(stand_ins: StandIns) -> None:
    stand_ins.tell(fails_at_start="no such architecture")
    sampler = stand_ins.sampler(replicas=2)
    with pytest.raises(EngineFailure, match="no such architecture") as failed:
        await sampler.start()
    assert not isinstance(failed.value, EngineLost)
    await until(lambda: stand_ins.living() == [])


async def test_replicas_killed_at_start_lose_the_engine_after_some_tries(stand_ins: StandIns) -> None:
    stand_ins.tell(killed_at_start=True)
    sampler = stand_ins.sampler()
    with pytest.raises(EngineLost, match="SIGKILL"):
        await sampler.start()
    assert len(stand_ins.notes("started")) == 3


async def test_interpreter_that_is_not_there_is_named(stand_ins: StandIns, tmp_path: Path) -> None:
    sampler = ReplicaSampler(
        stand_ins.sampler()._plan.settings,  # pyright: ignore[reportPrivateUsage]
        python=tmp_path / "no-python",
        log_directory=tmp_path,
        limits=LIMITS,
    )
    with pytest.raises(EngineFailure, match="SWARM_VLLM_PYTHON"):
        await sampler.start()


async def test_replica_that_does_not_answer_at_start_is_given_up_in_time(stand_ins: StandIns) -> None:
    stand_ins.tell(hangs=True)
    sampler = stand_ins.sampler(limits=replace(LIMITS, boot_timeout_s=0.7))
    with pytest.raises(EngineLost, match=r"within 0\.7 s"):
        await sampler.start()
    await until(lambda: stand_ins.living() == [])


async def test_sampler_that_shares_devices_sleeps_and_requests_wait_for_it(stand_ins: StandIns) -> None:
    stand_ins.tell(token_delay_s=SLOW_S)
    sampler = stand_ins.sampler(layout={"colocated": True})
    await sampler.start()
    running = asyncio.create_task(complete(sampler, PROMPT, max_tokens=60))
    await until(lambda: stand_ins.notes("asked"))
    await sampler.suspend()
    assert sampler.replicas[0].state is ReplicaState.ASLEEP
    late = asyncio.create_task(complete(sampler, PROMPT))
    await asyncio.sleep(10 * SLOW_S)
    assert len(stand_ins.notes("asked")) == 1
    assert not running.done()
    await sampler.resume()
    await sampler.publish(stand_ins.weights(7, version=1))
    assert set((await late).token_ids) <= set(range(40, 60))
    assert len((await running).token_ids) == 60
    slept = [note["what"] for note in stand_ins.notes() if note["what"] in {"/sleep", "/wake_up", "/update_weights"}]
    assert slept == ["/sleep", "/wake_up", "/update_weights"]
    await sampler.stop()


async def test_sampler_that_dies_asleep_starts_again_only_when_the_devices_are_free(stand_ins: StandIns) -> None:
    sampler = stand_ins.sampler(layout={"colocated": True})
    await sampler.start()
    await sampler.suspend()
    kill(sampler, 0)
    await asyncio.sleep(1)
    assert len(stand_ins.notes("started")) == 1
    async with asyncio.timeout(LIMIT_S):
        await sampler.resume()
    assert (await complete(sampler, PROMPT)).token_ids == expected_tokens(PROMPT, 12)
    await sampler.stop()


async def test_replica_found_paused_is_replaced(sampler: ReplicaSampler) -> None:
    before = sampler.replicas[0].pid
    await sampler.replicas[0]._reached().pause()  # pyright: ignore[reportPrivateUsage]
    assert (await complete(sampler, PROMPT)).token_ids == expected_tokens(PROMPT, 12)
    assert sampler.replicas[0].pid != before


async def test_vllm_without_weight_updates_or_sleep_is_refused_with_the_reason(stand_ins: StandIns) -> None:
    stand_ins.tell(lacks=["/sleep"])
    sleepless = stand_ins.sampler(layout={"colocated": True})
    await sleepless.start()
    with pytest.raises(EngineFailure, match="cannot sleep"):
        await sleepless.suspend()
    await sleepless.stop()
    stand_ins.tell(lacks=["/update_weights"])
    with pytest.raises(EngineFailure, match=r"use 0\.24 or later"):
        await stand_ins.sampler().start()


async def test_vllm_that_updates_in_one_call_is_not_asked_for_more(stand_ins: StandIns) -> None:
    stand_ins.tell(lacks=["/start_weight_update", "/is_paused"])
    sampler = stand_ins.sampler()
    await sampler.start()
    await sampler.publish(stand_ins.weights(3, version=1))
    assert stand_ins.notes("/start_weight_update") == []
    assert (await complete(sampler, PROMPT)).token_ids == expected_tokens(PROMPT, 12, weights=3)
    await sampler.stop()


async def test_broadcast_meets_all_replicas_in_one_group(stand_ins: StandIns) -> None:
    sampler = stand_ins.sampler(replicas=2, transport="nccl")
    await sampler.start()
    source = WeightBroadcast(1, "10.0.0.1", 4000, 3, names=("a", "b"), dtypes=("bfloat16",) * 2, shapes=((2,), (3, 4)))
    await sampler.publish(source)
    joined = stand_ins.notes("joined")
    assert sorted(note["rank_offset"] for note in joined) == [1, 2]
    assert {(note["master_address"], note["master_port"], note["world_size"]) for note in joined} == {
        ("10.0.0.1", 4000, 3)
    }
    assert set((await complete(sampler, PROMPT)).versions) == {1}
    # One that has to start again cannot be given the present weights: it waits for the next broadcast.
    kill(sampler, 0)
    await until(lambda: sampler.replicas[0].state is ReplicaState.IDLE)
    assert set((await complete(sampler, PROMPT)).versions) == {1}
    await sampler.publish(replace(source, version=2))
    assert [replica.state for replica in sampler.replicas] == [ReplicaState.SERVING] * 2
    assert [replica.version for replica in sampler.replicas] == [2, 2]
    await sampler.stop()
    assert stand_ins.living() == []
