"""Sampler and trainer of one job on a worker of their own, and trained checkpoints where a server keeps them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contract.test_trainer_contract import PROMPT, make_batch, sample

from swarm.backends.local.engine import LocalSampler, build_local, build_worker
from swarm.backends.pairing import ProcessTrainer
from swarm.backends.process.worker_process import WorkerProcess
from swarm.config import ServerConfig
from swarm.job import TrainJob
from swarm.trainer.checkpoints import run_directory

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Drawn:
    """What the sampler said of the tokens that it drew."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


@dataclass(frozen=True)
class LocalRun:
    sampler: LocalSampler
    trainer: ProcessTrainer
    job: TrainJob
    worker: WorkerProcess

    async def train(self, first: int, last: int) -> list[dict[str, float]]:
        """Steps `first` to `last`, each on a batch sampled just before; the metrics of each."""
        return [dict((await self.trainer.train(await make_batch(self.sampler, step))).metrics)
                for step in range(first, last + 1)]  # fmt: skip

    async def save(self, home: Path, step: int, *, number: int = 1) -> Path:
        run = run_directory(home, self.job.project_name, self.job.experiment_name, number)
        directory = run / "checkpoints" / f"step-{step:06d}"
        await self.trainer.save(directory)
        return directory

    async def draw(self) -> list[Drawn]:
        """A few completions of the present weights, each with a seed of its own."""
        drawn: list[Drawn] = []
        for seed in range(4):
            deltas = await sample(self.sampler, max_tokens=12, seed=seed)
            tokens = tuple(token for delta in deltas for token in delta.token_ids_T)
            drawn.append(Drawn(tokens, tuple(value for delta in deltas for value in delta.logprobs_T)))
        return drawn


@asynccontextmanager
async def local_run(directory: Path, shared: WorkerProcess | None = None, **settings: Any) -> AsyncIterator[LocalRun]:
    """A started sampler of the bundled model with its trainer; a worker that is not shared ends with the context."""
    job = TrainJob(**{"lr": 3e-3, **settings}).resolve()
    worker = shared or build_worker(ServerConfig(), directory / "worker.log")
    sampler, trainer = build_local(job, ServerConfig(), worker)
    try:
        await sampler.start()
        yield LocalRun(sampler, trainer, job, worker)
    finally:
        if shared is None:
            await worker.stop()


def largest_gap(model: Path | torch.nn.Module, drawn: Sequence[Drawn]) -> float:
    """How far the sampler's logprobs are from those of a plain forward pass of a model in transformers."""
    import torch
    from transformers import AutoModelForCausalLM

    module: Any = model
    if isinstance(model, Path):
        module = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    gaps: list[float] = []
    for each in drawn:
        with torch.inference_mode():
            logits = module(torch.tensor([[*PROMPT, *each.token_ids]])).logits[0, len(PROMPT) - 1 : -1].float()
        said = torch.log_softmax(logits, -1).gather(1, torch.tensor(each.token_ids)[:, None])[:, 0]
        gaps.append((said - torch.tensor(each.logprobs)).abs().max().item())
    return max(gaps)


def assert_same_checkpoint(one: Path, other: Path) -> dict[str, Any]:
    """Weights, optimizer and critic are equal bit for bit. Returns the state of the trainer."""
    import torch

    [weights] = one.glob("*model.safetensors")
    assert weights.read_bytes() == (other / weights.name).read_bytes()
    states = [torch.load(path / "trainer_state.pt", weights_only=True) for path in (one, other)]
    assert states[0].keys() == states[1].keys()
    for name in ("steps_done", "optimizer", "critic"):
        assert_same(states[0].get(name), states[1].get(name))
    return states[0]


def assert_same(one: Any, other: Any) -> None:
    """Values of any depth are equal."""
    import torch

    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list | tuple):
        for each, counterpart in zip(one, other, strict=True):
            assert_same(each, counterpart)
    else:
        assert one == other
