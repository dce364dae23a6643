"""An engine without a model, for load tests and checks of client code: any reply, any speed, faults on demand."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import asyncio
import itertools
import json
import math
import random
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer

from swarm.backends.grammar import Constraint, GrammarCompiler
from swarm.backends.stopping import EndRule, check_request
from swarm.backends.waits import first_of
from swarm.errors import EngineFailure, WeightsNotFinite
from swarm.job import TrainJob
from swarm.model_path import BUNDLED_DIRECTORY, read_stop_ids, read_tokenizer
from swarm.sampler import EngineLost, SamplerInfo
from swarm.trainer.checkpoint_files import (
    CheckpointInfo,
    describe_file,
    info_of,
    read_checkpoint_manifest,
    written_checkpoint,
)
from swarm.types import FinishReason, SamplingParams, StepReport, TokenDelta, TrainBatch, WeightVersion

CONTEXT_LENGTH = 4096
LONGEST_REPLY = 16
"""Tokens of the longest random reply: about a short sentence."""
CLOSING = "\"'}])>"
"""Signs that lead to the end of a structured reply."""
LARGEST_BIAS = 50.0
"""A larger bias draws no token more surely, and its exponential would be too large a number."""
LEAST_WEIGHT = 1e-100

Reply = Callable[[Sequence[int]], Sequence[int]]
"""Prompt ids -> completion ids. A completion that max_tokens does not cut ends with finish reason `stop`."""


class FaultKind(StrEnum):
    """Kinds of faults: RAISE fails the request, HANG stalls it for good, DIE ends the engine until the next start.

    NOT_FINITE fails the request like weights that give no finite numbers.

    A fault stays until it is removed: a restarted engine dies again.
    """

    RAISE = "raise"
    NOT_FINITE = "not_finite"
    HANG = "hang"
    DIE = "die"


@dataclass(frozen=True, slots=True)
class Fault:
    """Fault that strikes once a request has received `after_tokens` tokens."""

    kind: FaultKind
    after_tokens: int = 0


class FakeSampler:
    """Implementation of `swarm.sampler.Sampler` without a model.

    Without `reply`, a completion is up to LONGEST_REPLY random letters and the stop token. It is a function of prompt
    and seed, or of the prompt alone at temperature 0. An unseeded completion depends on prompt and order of arrival.
    A grammar, biases and a least length are obeyed: each token is drawn from those that they leave, letters first.
    """

    def __init__(
        self,
        *,
        reply: Reply | None = None,
        token_delay_s: float = 0.0,
        fault: Fault | None = None,
        context_length: int = CONTEXT_LENGTH,
    ) -> None:
        self.fault = fault
        self.weight_version = 0
        self.died = asyncio.Event()
        self._reply = reply
        self._token_delay_s = token_delay_s
        self._context_length = context_length
        self._running: _Running | None = None
        self._death: EngineLost | None = None

    @property
    def death(self) -> str | None:
        """Reason why the engine died, until it is started again."""
        return None if self._death is None else self._death.message

    def die(self, reason: str) -> None:
        """End like a killed process: every request and training step fails until the engine is started again."""
        self._death = EngineLost(reason)
        self.died.set()
        if self._running is not None:
            self._running.steady.set()

    async def start(self) -> SamplerInfo:
        if self._running is not None:
            self._running.stopped.set()
        tokenizer = read_tokenizer(BUNDLED_DIRECTORY)
        self._running = _Running(tokenizer, read_stop_ids(BUNDLED_DIRECTORY, tokenizer))
        self._death = None
        self.died.clear()
        self.weight_version = 0
        return SamplerInfo(
            model="fake",
            tokenizer_path=str(BUNDLED_DIRECTORY),
            context_length=self._context_length,
            parameters=0,
            device="none",
        )

    async def stop(self) -> None:
        if self._running is not None:
            self._running.stopped.set()
            self._running = None

    @asynccontextmanager
    async def weight_change(self) -> AsyncGenerator[None]:
        """Pause generations inside the block; tokens after it carry the `weight_version` that was set in the block."""
        running = self._require_running()
        running.steady.clear()
        try:
            yield
            if self._death is not None:
                raise self._death
        finally:
            running.steady.set()

    async def generate(
        self, request_id: str, prompt_ids: Sequence[int], params: SamplingParams
    ) -> AsyncGenerator[TokenDelta]:
        running = self._require_running()
        check_request(prompt_ids, params, vocabulary=running.vocabulary, context_length=self._context_length)
        room = self._context_length - len(prompt_ids)
        rule = EndRule(params, running.stop_ids, room, running.decode)
        reply = self._told(prompt_ids, running) if self._reply else running.random_reply(prompt_ids, params, rule)
        output_ids: list[int] = []
        for token_id, logprob, is_last in reply:
            await self._meet_fault(running, tokens_given=len(output_ids))
            if not await self._wait_turn(running):
                yield TokenDelta((), (), (), FinishReason.ABORT)
                return
            output_ids.append(token_id)
            finish = rule.check(output_ids)
            if finish is None and is_last:
                finish = FinishReason.STOP
            top = (((token_id, logprob),),) if params.top_logprobs else None
            yield TokenDelta((token_id,), (logprob,), (self.weight_version,), finish, top)
            if finish is not None:
                return

    def _told(self, prompt_ids: Sequence[int], running: _Running) -> Iterator[_Drawn]:
        """Yield the tokens of the reply that this engine was given."""
        assert self._reply is not None, "the caller has looked"
        reply = self._reply(prompt_ids)
        for count, token_id in enumerate(reply, start=1):
            yield _Drawn(token_id, running.logprob, count == len(reply))

    def _require_running(self) -> _Running:
        if self._death is not None:
            raise self._death
        if self._running is None:
            raise EngineFailure("the fake engine is not started")
        return self._running

    async def _wait_turn(self, running: _Running) -> bool:
        """Wait for one token, longer while weights change. Return False if the engine was stopped meanwhile."""
        await asyncio.sleep(self._token_delay_s)
        if not running.steady.is_set():
            await first_of(running.steady.wait(), running.stopped.wait())
        if self._death is not None:
            raise self._death
        return not running.stopped.is_set()

    async def _meet_fault(self, running: _Running, *, tokens_given: int) -> None:
        if self.fault is None or tokens_given < self.fault.after_tokens:
            return
        match self.fault.kind:
            case FaultKind.RAISE:
                raise EngineFailure(f"fake fault after {tokens_given} tokens")
            case FaultKind.NOT_FINITE:
                raise WeightsNotFinite(f"fake weights after {tokens_given} tokens")
            case FaultKind.HANG:
                await running.stopped.wait()
            case FaultKind.DIE:
                self.die(f"the fake engine died after {tokens_given} tokens")
                self._require_running()


class _Drawn(NamedTuple):
    token_id: int
    logprob: float
    is_last: bool


class _Running:
    """State that exists between start and stop."""

    def __init__(self, tokenizer: Tokenizer, stop_ids: frozenset[int]) -> None:
        self.stop_ids = stop_ids
        self.steady = asyncio.Event()
        self.steady.set()
        self.stopped = asyncio.Event()
        self._tokenizer = tokenizer
        self._arrivals = 0
        vocabulary: dict[str, int] = tokenizer.get_vocab()
        self.vocabulary = 1 + max(vocabulary.values())
        self._letters = sorted(vocabulary[token] for token in vocabulary if token.isascii() and token.isalpha())
        self._closing = sorted(vocabulary[token] for token in vocabulary if token and set(token) <= set(CLOSING))
        self._grammars = GrammarCompiler(tokenizer, self.vocabulary, stop_ids)
        self.logprob = -math.log(len(self._letters))

    def decode(self, token_ids: Sequence[int]) -> str:
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=False)

    def random_reply(self, prompt_ids: Sequence[int], params: SamplingParams, rule: EndRule) -> Iterator[_Drawn]:
        """Yield tokens without end, as long as the grammar does not end them. Raise BadRequest for a wrong grammar."""
        self._arrivals += 1
        if params.temperature == 0:
            source = "greedy"
        else:
            source = f"seed {params.seed}" if params.seed is not None else f"arrival {self._arrivals}"
        generator = random.Random(f"{source}: {list(prompt_ids)}")
        constraint = None if params.grammar is None else self._grammars.start(params.grammar, rule.stop_ids)
        biases = dict(params.logit_bias)
        length = max(generator.randint(1, LONGEST_REPLY), params.min_tokens)
        for count in itertools.count():
            allowed = None if constraint is None else _ids(constraint)
            choices = self._choices(allowed, sorted(rule.stop_ids), biases, is_long=count >= length)
            token_id, logprob = _draw(generator, choices, biases)
            if constraint is not None and token_id not in rule.stop_ids:
                constraint.take(token_id)
            yield _Drawn(token_id, logprob, constraint is not None and constraint.is_over)

    def _choices(
        self, allowed: frozenset[int] | None, ends: Sequence[int], biases: Mapping[int, float], *, is_long: bool
    ) -> Sequence[int]:
        """Return the tokens that may come next: letters until the reply is long, then an end or what leads to one."""
        raised = [token_id for token_id, bias in biases.items() if bias > 0]
        if allowed is None:
            wanted = ends if is_long and ends else self._letters
            return list(dict.fromkeys([*wanted, *raised])) if raised else wanted
        kinds = (ends, self._closing, self._letters) if is_long else (self._letters, sorted(allowed - {*ends}), ends)
        chosen = next((found for kind in kinds if (found := [each for each in kind if each in allowed])), ())
        return list(dict.fromkeys([*chosen, *(each for each in raised if each in allowed)])) or sorted(allowed)


def _draw(generator: random.Random, choices: Sequence[int], biases: Mapping[int, float]) -> tuple[int, float]:
    """Return a token and its logprob. Without a bias, all tokens are equally likely."""
    if not biases:
        return generator.choice(choices), -math.log(len(choices))
    weights = [math.exp(min(biases.get(token_id, 0.0), LARGEST_BIAS)) for token_id in choices]
    [place] = generator.choices(range(len(choices)), weights)
    return choices[place], math.log(max(weights[place], LEAST_WEIGHT) / sum(weights))


def _ids(constraint: Constraint) -> frozenset[int]:
    """Return the tokens that may come next. Raise BadRequest if none may."""
    words = constraint.allowed()
    if words is None:
        assert constraint.error is not None, "a constraint without tokens says why"
        raise constraint.error
    return frozenset(np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")).tolist())


STATE_FILE = "fake_trainer.json"
FORMAT = "fake-1"


class FakeTrainer:
    """Implementation of `swarm.trainer.base.Trainer` without weights."""

    def __init__(self, sampler: FakeSampler, job: TrainJob, *, step_delay_s: float = 0.0) -> None:
        self._sampler = sampler
        self._job = job
        self._step_delay_s = step_delay_s
        self._step = 0

    async def train(self, batch: TrainBatch) -> StepReport:
        async with self._sampler.weight_change():
            await asyncio.sleep(self._step_delay_s)
            self._sampler.weight_version += 1
        self._step = batch.step
        metrics = {"actor/grad_norm": 1.0 / (1 + batch.step), **_of_rewards(batch), **_of_demonstrations(batch)}
        return StepReport(
            batch_id=batch.batch_id,
            step=batch.step,
            weight_version=self._version(),
            metrics=metrics,
            advantages=_centred_rewards(batch),
        )

    async def save(self, directory: Path) -> None:
        info = CheckpointInfo(self._step, self._sampler.weight_version)
        manifest = {"format": FORMAT, "job": self._job.resolve().model_dump(mode="json")}
        with written_checkpoint(directory, info, manifest, describe=describe_file, failures=()) as draft:
            (draft / STATE_FILE).write_text(json.dumps(asdict(info)), encoding="utf-8")

    async def load(self, directory: Path) -> WeightVersion:
        info = info_of(directory, read_checkpoint_manifest(directory, FORMAT))
        async with self._sampler.weight_change():
            self._step, self._sampler.weight_version = info.step, info.weight_version
        return self._version()

    def _version(self) -> WeightVersion:
        return WeightVersion(version=self._sampler.weight_version, step=self._step, published_at=time.time())


def _of_rewards(batch: TrainBatch) -> dict[str, float]:
    rewards = [episode.reward for episode in batch.episodes]
    if not rewards:
        return {}
    mean = sum(rewards) / len(rewards)
    return {
        "critic/score/mean": mean,
        "critic/score/std": math.sqrt(sum((reward - mean) ** 2 for reward in rewards) / len(rewards)),
        "actor/pg_loss": 0.0,
        "actor/entropy": 1.0,
        "actor/ppo_kl": 0.0,
        "actor/trained_tokens": float(sum(episode.trained_tokens for episode in batch.episodes)),
    }


def _of_demonstrations(batch: TrainBatch) -> dict[str, float]:
    if not batch.demonstrations:
        return {}
    losses = {"sft/loss": 1.0 / batch.step}
    return {**losses, "sft/held_out_loss": 1.0 / batch.step} if batch.held_out else losses


def _centred_rewards(batch: TrainBatch) -> dict[str, float]:
    """Return a map from episode id to the reward minus the mean reward of its group."""
    centred: dict[str, float] = {}
    for group in batch.groups:
        mean = sum(episode.reward for episode in group.episodes) / len(group.episodes)
        centred.update({episode.episode_id: episode.reward - mean for episode in group.episodes})
    return centred
