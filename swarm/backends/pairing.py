"""A sampler and a trainer in two processes: their common start, the way of new weights, and their common end."""

from __future__ import annotations

import asyncio
import hashlib
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from swarm.backends.process.wire import pack_batch
from swarm.backends.process.worker_process import WorkerProcess
from swarm.backends.replicas.adapter import WeightFile
from swarm.backends.replicas.sampler import ReplicaSampler
from swarm.backends.waits import first_of, together
from swarm.errors import SwarmError
from swarm.sampler import EngineLost, SamplerInfo
from swarm.types import SamplingParams, StepReport, TokenDelta, TrainBatch, WeightVersion

PUBLISH_TIMEOUT_S: Final = 600.0
"""Time for every replica to read the file; the sampler has its own deadline for each call."""
SHARED_MEMORY: Final = Path("/dev/shm")


def shared_memory_of(home: Path) -> Path:
    """Return the directory for new weights of the server with this home, for replicas on the same host."""
    return SHARED_MEMORY / f"swarm-{hashlib.sha256(str(home.resolve()).encode()).hexdigest()[:16]}"


class ProcessTrainer:
    """Implementation of `swarm.trainer.base.Trainer` on a process."""

    def __init__(self, process: WorkerProcess, *, train_timeout_s: float, checkpoint_timeout_s: float) -> None:
        self.process = process
        self._train_timeout_s = train_timeout_s
        self._checkpoint_timeout_s = checkpoint_timeout_s

    async def train(self, batch: TrainBatch) -> StepReport:
        answer = await self._call("train", pack_batch(batch), self._train_timeout_s)
        return StepReport(
            batch_id=batch.batch_id,
            step=batch.step,
            weight_version=WeightVersion(version=answer["version"], step=batch.step, published_at=time.time()),
            metrics=answer["metrics"],
            advantages=answer["advantages"],
        )

    async def save(self, directory: Path) -> None:
        await self._call("save", str(directory.resolve()), self._checkpoint_timeout_s)

    async def load(self, directory: Path) -> WeightVersion:
        answer = await self._call("restore", str(directory.resolve()), self._checkpoint_timeout_s)
        return WeightVersion(version=answer["version"], step=answer["step"], published_at=time.time())

    async def _call(self, op: str, args: Any, timeout_s: float) -> Any:
        return await self.process.call(op, args, timeout_s=timeout_s)


class PairedTrainer(ProcessTrainer, ABC):
    """Trainer that is started and stopped together with a sampler, which gets every version."""

    def __init__(
        self,
        process: WorkerProcess,
        sampler: ReplicaSampler,
        *,
        train_timeout_s: float,
        checkpoint_timeout_s: float,
        publish_timeout_s: float = PUBLISH_TIMEOUT_S,
    ) -> None:
        super().__init__(process, train_timeout_s=train_timeout_s, checkpoint_timeout_s=checkpoint_timeout_s)
        self._sampler = sampler
        self._publish_timeout_s = publish_timeout_s
        self._published: WeightFile | None = None

    @abstractmethod
    async def start(self) -> object:
        """Start at the base model, version 0. Raise JobInvalid, EngineFailure, EngineLost."""

    async def stop(self) -> None:
        """End the trainer. Its process may be kept for another job."""
        await self.end()

    async def end(self) -> None:
        """End the process, even if it hangs."""
        await self.process.stop()

    @abstractmethod
    async def _publish(self, answer: Any) -> None:
        """Give the sampler the version of an answer. Raise SwarmError."""

    async def _call(self, op: str, args: Any, timeout_s: float) -> Any:
        """Return the answer of the process, after the sampler has its version if it has one.

        Raise EngineLost if the sampler does not get it. The trainer already has the new weights at that point, so
        trainer and sampler are both started anew.
        """
        await self._sampler.suspend()
        try:
            answer = await super()._call(op, args, timeout_s)
        finally:
            await self._sampler.resume()
        if answer is None:
            return None
        version, began = answer["version"], time.perf_counter()
        try:
            async with asyncio.timeout(self._publish_timeout_s):
                await self._publish(answer)
        except TimeoutError:
            raise EngineLost(
                f"weight version {version} was not published within {self._publish_timeout_s:g} s"
            ) from None
        except SwarmError as error:
            raise EngineLost(f"weight version {version} could not be published: {error.message}") from error
        if op == "train":
            answer["metrics"]["timing_s/publish_weights"] = time.perf_counter() - began
        return answer

    async def _hand_over(self, new: WeightFile) -> None:
        """Publish a file, and remove the file of the version before."""
        await self._sampler.publish(new)
        previous, self._published = self._published, new
        if previous is not None:
            previous.path.unlink(missing_ok=True)


AnyTrainer = TypeVar("AnyTrainer", bound=PairedTrainer)


@dataclass(frozen=True, slots=True)
class Pair(Generic[AnyTrainer]):
    """Implementation of `swarm.sampler.Sampler` by the sampler, which also starts and stops the trainer.

    If they share devices, only one of them uses the devices at a time. With `trainer_first`, the trainer is started
    before the sampler otherwise.
    """

    sampler: ReplicaSampler
    trainer: AnyTrainer
    trainer_first: bool = False

    async def start(self) -> SamplerInfo:
        """Start both at the base model, and keep living processes. Raise JobInvalid, EngineFailure, EngineLost."""
        if self.sampler.is_colocated:
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
