"""A sampler and a trainer in two processes: their common start, the way of new weights, and their common end."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from swarm.backends.process.wire import pack_batch
from swarm.backends.process.worker_process import WorkerProcess
from swarm.backends.replicas.handover import Handover
from swarm.backends.replicas.sampler import ReplicaSampler
from swarm.backends.waits import first_of, together
from swarm.sampler import SamplerInfo
from swarm.types import SamplingParams, StepReport, TokenDelta, TrainBatch, WeightVersion


class ProcessTrainer:
    """Implementation of `swarm.trainer.base.Trainer` on a process.

    With a handover, the trainer shares its devices with a sampler, which gets every version.
    """

    def __init__(
        self,
        process: WorkerProcess,
        *,
        train_timeout_s: float,
        checkpoint_timeout_s: float,
        handover: Handover | None = None,
    ) -> None:
        self.process = process
        self._train_timeout_s = train_timeout_s
        self._checkpoint_timeout_s = checkpoint_timeout_s
        self._handover = handover

    async def train(self, batch: TrainBatch) -> StepReport:
        answer = await self._call("train", pack_batch(batch), self._train_timeout_s)
        began = time.perf_counter()
        published: dict[str, float] = {}
        if self._handover is not None:
            await self._publish(answer, self._handover)
            published["timing_s/publish_weights"] = time.perf_counter() - began
        return StepReport(
            batch_id=batch.batch_id,
            step=batch.step,
            weight_version=WeightVersion(version=answer["version"], step=batch.step, published_at=time.time()),
            metrics={**answer["metrics"], **published},
            advantages=answer["advantages"],
        )

    async def save(self, directory: Path) -> None:
        await self._call("save", str(directory.resolve()), self._checkpoint_timeout_s)

    async def load(self, directory: Path) -> WeightVersion:
        answer = await self._call("restore", str(directory.resolve()), self._checkpoint_timeout_s)
        if self._handover is not None:
            await self._publish(answer, self._handover)
        return WeightVersion(version=answer["version"], step=answer["step"], published_at=time.time())

    async def _call(self, op: str, args: Any, timeout_s: float) -> Any:
        async with nullcontext() if self._handover is None else self._handover.sampler_asleep():
            return await self.process.call(op, args, timeout_s=timeout_s)

    async def _publish(self, answer: Any, handover: Handover) -> None:
        """Publish the version of an answer. Raise EngineLost."""
        raise NotImplementedError


class PairedTrainer(ProcessTrainer, ABC):
    """Trainer that is started and stopped together with its sampler."""

    @abstractmethod
    async def start(self) -> object:
        """Start at the base model, version 0. Raise JobInvalid, EngineFailure, EngineLost."""

    async def stop(self) -> None:
        """End the trainer. Its process may be kept for another job."""
        await self.end()

    async def end(self) -> None:
        """End the process, even if it hangs."""
        await self.process.stop()


AnyTrainer = TypeVar("AnyTrainer", bound=PairedTrainer)


@dataclass(frozen=True, slots=True)
class Pair(Generic[AnyTrainer]):
    """Implementation of `swarm.sampler.Sampler` by the sampler, which also starts and stops the trainer.

    If they share devices, only one of them uses the devices at a time. With `trainer_first`, the trainer is started
    before the sampler.
    """

    sampler: ReplicaSampler
    trainer: AnyTrainer
    colocated: bool
    trainer_first: bool = False

    async def start(self) -> SamplerInfo:
        """Start both at the base model, and keep living processes. Raise JobInvalid, EngineFailure, EngineLost."""
        if self.colocated:
            info = await self.sampler.start()
            await self.sampler.suspend()
            await self.trainer.start()
            await self.sampler.resume()
            return info
        if self.trainer_first:
            await self.trainer.start()
            return await self.sampler.start()
        info, _ = await together([self.sampler.start(), self.trainer.start()])
        return info

    async def stop(self) -> None:
        await asyncio.gather(self.sampler.stop(), self.trainer.stop())

    async def end(self) -> None:
        """End both processes, even if they hang."""
        await asyncio.gather(self.sampler.stop(), self.trainer.end())

    def generate(
        self, request_id: str, prompt_ids: Sequence[int], params: SamplingParams
    ) -> AsyncGenerator[TokenDelta, None]:
        return self.sampler.generate(request_id, prompt_ids, params)

    async def died(self) -> str:
        """Wait until a new start is needed, and return the reason.

        Either the trainer's process has ended, or no replica can be kept alive.
        """
        return await first_of(self.sampler.died(), self.trainer.process.died())
