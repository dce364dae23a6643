"""An external sampler as the gateway sees it: several replicas behind one `generate`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import Final

from swarm.backends.grammar import Constraint, GrammarCompiler
from swarm.backends.replicas.adapter import ReplicaPlan, SamplerLimits, SamplerSettings, WeightSource, load_adapter
from swarm.backends.replicas.generation import Generation, ModelFacts, PieceStream, read_facts
from swarm.backends.replicas.pool import ReplicaPool
from swarm.backends.replicas.replica import Replica
from swarm.backends.stopping import check_request
from swarm.errors import BadRequest, EngineFailure, WeightsNotFinite
from swarm.sampler import EngineLost, SamplerInfo
from swarm.sampling_limits import NEUTRAL, overflow_of
from swarm.types import FinishReason, SamplingParams, TokenDelta

logger = logging.getLogger(__name__)

MOST_BREAKS: Final = 3
"""If a request breaks off this often, on replicas that stay healthy, the request itself is the cause."""


class ReplicaSampler:
    """Implementation of `swarm.sampler.Sampler` on its own processes, which end with it.

    A completion ends with finish reason `length` at max_tokens or at the context limit, whichever comes first. A
    restart brings serving replicas back to the base model. If any replica does not serve, all are started anew.
    """

    def __init__(
        self,
        settings: SamplerSettings,
        *,
        python: Path,
        log_directory: Path,
        limits: SamplerLimits | None = None,
        sampling_seed: Callable[[], Sequence[int]] | None = None,
        ray_address: str | None = None,
    ) -> None:
        """Create a stopped sampler. `python` is the interpreter that has the server.

        At every start, `sampling_seed` is called for the seed of unseeded requests; the default is the seed of the
        settings. The replicas run on the Ray cluster at `ray_address` if given, otherwise on this host.
        """
        self._adapter = load_adapter(settings.sampler)
        self._plan = ReplicaPlan(self._adapter, python, settings, limits or SamplerLimits(), log_directory, ray_address)
        self._sampling_seed = sampling_seed or (lambda: [settings.seed])
        self._running: _Running | None = None
        self._turn = asyncio.Lock()

    @property
    def is_colocated(self) -> bool:
        """True if the sampler shares the devices of a trainer, and sleeps while the trainer uses them."""
        return self._plan.settings.layout.colocated

    @property
    def replicas(self) -> Sequence[Replica]:
        """Replicas for observers; empty while the sampler is stopped."""
        return () if self._running is None else self._running.pool.replicas

    async def start(self) -> SamplerInfo:
        async with self._turn:
            running = self._running
            if running is not None and running.pool.all_serve and self._plan.settings.transport == "shm_file":
                running.end_generations()
                self._running = running = _Running(running.pool, running.facts, running.context_length)
                await running.pool.rebase()
            else:
                await self._stop()
                running = await self._boot()
            return self._describe(running)

    async def stop(self) -> None:
        async with self._turn:
            await self._stop()

    async def died(self) -> str:
        """Wait until no replica is left, and return the reason. Raise EngineFailure if the sampler is not started."""
        pool = self._require_running().pool
        await pool.lost.wait()
        return pool.reason

    async def publish(self, source: WeightSource) -> None:
        """Sample with `source` from now on, on every replica. Running requests pause, and continue with it.

        A file must stay until the next one is published, because a restarted replica loads it. Raise EngineLost.
        """
        await self._require_running().pool.publish(source)

    async def suspend(self) -> None:
        """Give the devices to a trainer that shares them; requests wait. Raise EngineFailure, EngineLost."""
        if self.is_colocated:
            await self._require_running().pool.suspend()

    async def resume(self) -> None:
        """Take the devices again. Raise EngineLost."""
        if self.is_colocated:
            await self._require_running().pool.resume()

    async def generate(
        self, request_id: str, prompt_ids: Sequence[int], params: SamplingParams
    ) -> AsyncGenerator[TokenDelta]:
        running = self._require_running()
        facts, context_length = running.facts, running.context_length
        check_request(prompt_ids, params, vocabulary=facts.vocabulary, context_length=context_length)
        room, constraint = context_length - len(prompt_ids), running.start_constraint(params)
        generation = Generation(request_id, prompt_ids, params, facts, room, constraint)
        broken: list[int | None] = []
        while True:
            stream = await running.open(generation)
            if stream is None:
                yield TokenDelta((), (), (), FinishReason.ABORT)
                return
            try:
                while True:
                    delta = generation.accept(await stream.read())
                    if delta is None:
                        raise EngineLost(f"{self._adapter.name} aborted a completion")
                    yield delta
                    if delta.finish_reason is not None:
                        running.pool.remember(stream.replica, generation.sequence)
                        return
            except WeightsNotFinite:
                if await running.has_finite_scores(request_id, generation.sequence):
                    raise overflow_of(params) from None
                raise
            except EngineLost as error:
                if running.ended:
                    continue
                broken.append(running.doubt(stream))
                _raise_if_final(error, generation, running.survivors(broken[:-1]), self._adapter.name)
                logger.info("request %s goes on elsewhere: %s", request_id, error.message)
            finally:
                await stream.close()

    async def _boot(self) -> _Running:
        directory = self._plan.settings.model_directory
        facts = await asyncio.to_thread(read_facts, directory)
        pool = ReplicaPool(self._plan, self._sampling_seed())
        await pool.start()
        self._running = _Running(pool, facts, min(replica.context_length for replica in pool.replicas))
        return self._running

    async def _stop(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            running.end_generations()
            await running.pool.stop()

    def _describe(self, running: _Running) -> SamplerInfo:
        settings = self._plan.settings
        count = len(running.pool.replicas) * settings.layout.tensor_parallel * settings.layout.data_parallel
        return SamplerInfo(
            model=settings.model_directory.name,
            tokenizer_path=str(settings.model_directory),
            context_length=running.context_length,
            parameters=running.facts.parameters,
            device="cpu" if settings.layout.device == "cpu" else f"cuda x {count}",
        )

    def _require_running(self) -> _Running:
        if self._running is None:
            raise EngineFailure(f"the {self._adapter.name} sampler is not started")
        return self._running


class _Running:
    """State from one start to the next."""

    def __init__(self, pool: ReplicaPool, facts: ModelFacts, context_length: int) -> None:
        self.pool = pool
        self.facts = facts
        self.context_length = context_length
        self.ended = False
        self._grammars = GrammarCompiler(facts.tokenizer, facts.vocabulary, facts.stop_ids)

    def start_constraint(self, params: SamplingParams) -> Constraint | None:
        """Return a constraint, only for models without an end token. Raise BadRequest for an invalid grammar."""
        if params.grammar is None or self.facts.stop_ids or params.stop_token_ids:
            return None
        return self._grammars.start(params.grammar, ())

    async def has_finite_scores(self, request_id: str, sequence: Sequence[int]) -> bool:
        """Return whether a token that continues the sequence can be sampled with neutral parameters."""
        generation = Generation(f"{request_id}-neutral", sequence, NEUTRAL, self.facts, room=1)
        stream = await self.open(generation)
        if stream is None:
            return False
        try:
            return generation.accept(await stream.read()) is not None
        except WeightsNotFinite:
            return False
        finally:
            await stream.close()

    def end_generations(self) -> None:
        """End all running generations with `abort`."""
        self.ended = True
        for replica in self.pool.replicas:
            replica.break_off("the engine was stopped")
        self.pool.notify()

    async def open(self, generation: Generation) -> PieceStream | None:
        """Return a stream for the rest of a completion, once a replica serves, or None if all are to end.

        The pool chooses the replica. Raise EngineLost if none is left.
        """
        while not self.ended:
            replica = self.pool.choose(generation.sequence)
            if replica is not None:
                return replica.open(generation.next_request())
            await self.pool.change()
        return None

    def doubt(self, stream: PieceStream) -> int | None:
        """Check the replica of a broken stream. Return its process id, or None if the process is gone."""
        replica = self.pool.replicas[stream.replica]
        replica.doubt()
        return replica.pid

    def survivors(self, broken: Sequence[int | None]) -> int:
        """Return how many of these streams, given by process ids, broke on a replica that still lives."""
        living = {replica.pid for replica in self.pool.replicas} - {None}
        return sum(pid in living for pid in broken)


def _raise_if_final(error: EngineLost, generation: Generation, survivors: int, name: str) -> None:
    if survivors + 1 >= MOST_BREAKS:
        raise BadRequest(f"{name} cannot complete this request: {error.message}") from error
    if not generation.can_move:
        raise EngineLost(
            f"the replica of this completion is gone ({error.message}), and one that follows a grammar or penalties "
            "cannot go on elsewhere"
        ) from error
