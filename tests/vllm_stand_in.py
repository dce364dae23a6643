"""Samplers whose replicas are stand-ins for vLLM: real processes and real HTTP, no model, faults on demand."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from process_support import is_running

from swarm.backends.replicas.adapter import SamplerLayout, SamplerLimits, SamplerSettings, WeightFile
from swarm.backends.replicas.sampler import ReplicaSampler
from swarm.model_path import BUNDLED_DIRECTORY
from swarm.types import FinishReason, SamplingParams, TokenDelta

PACKAGE = Path(__file__).parent / "stand_ins"
LIMITS = SamplerLimits(
    boot_timeout_s=60, call_timeout_s=5, transfer_timeout_s=5, hang_s=4, watch_interval_s=0.1, healthy_s=60
)
LIMIT_S = 60.0


def _rules() -> Any:
    spec = importlib.util.spec_from_file_location("stand_in_main", PACKAGE / "vllm" / "entrypoints" / "cli" / "main.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@dataclass
class StandIns:
    """What they are told, and what they were asked. `directory` is one test's own."""

    directory: Path

    def __post_init__(self) -> None:
        self.journal_path.touch()
        self.faults_path.write_text("{}")

    @property
    def journal_path(self) -> Path:
        return self.directory / "journal.jsonl"

    @property
    def faults_path(self) -> Path:
        return self.directory / "faults.json"

    @property
    def environment(self) -> dict[str, str]:
        """For the server: its replicas inherit it."""
        return {
            "PYTHONPATH": os.pathsep.join([str(PACKAGE), os.environ.get("PYTHONPATH", "")]),
            "STAND_IN_FAULTS": str(self.faults_path),
            "STAND_IN_JOURNAL": str(self.journal_path),
        }

    def tell(self, port: int | str = "all", **faults: Any) -> None:
        """From now on, the stand-in at this port has exactly these faults."""
        told = json.loads(self.faults_path.read_text())
        told[str(port)] = faults
        draft = self.faults_path.with_suffix(".draft")
        draft.write_text(json.dumps(told))
        draft.replace(self.faults_path)

    def notes(self, what: str | None = None) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.journal_path.read_text().splitlines()]
        return [line for line in lines if what is None or line["what"] == what]

    def forget(self) -> None:
        """All notes but those of processes."""
        kept = [json.dumps(note) + "\n" for note in self.notes() if "pid" in note]
        self.journal_path.write_text("".join(kept))

    def living(self) -> list[int]:
        """Ids of processes that stand-ins were or started and that still run."""
        pids = [note["pid"] for note in self.notes() if "pid" in note]
        return [pid for pid in pids if is_running(pid)]

    def sampler(
        self,
        replicas: int = 1,
        limits: SamplerLimits = LIMITS,
        ray_address: str | None = None,
        python: Path = Path(sys.executable),
        **options: Any,
    ) -> ReplicaSampler:
        layout = SamplerLayout(replicas=replicas, **options.pop("layout", {}))
        settings = SamplerSettings(BUNDLED_DIRECTORY, layout, "float32", max_num_seqs=16, sampler="vllm", **options)
        return ReplicaSampler(
            settings,
            python=python,
            log_directory=self.directory / "logs",
            limits=limits,
            ray_address=ray_address,
        )

    def weights(self, number: int, version: int) -> WeightFile:
        path = self.directory / f"weights-{version}"
        path.write_text(str(number))
        return WeightFile(path, version)


def port_of(sampler: ReplicaSampler, replica: int) -> int:
    url = sampler.replicas[replica].base_url
    assert url is not None
    return int(url.rsplit(":", 1)[1])


def expected_tokens(prompt: Sequence[int], count: int, weights: int = 0) -> list[int]:
    """What a completion of so many tokens must be, wherever it was sampled."""
    rules, sequence = _rules(), list(prompt)
    for _ in range(count):
        sequence.append(rules.next_token(sequence, weights))
    return sequence[len(prompt) :]


@dataclass
class Completion:
    token_ids: list[int]
    logprobs: list[float]
    versions: list[int]
    finish: FinishReason | None
    deltas: list[TokenDelta]


async def complete(
    sampler: ReplicaSampler,
    prompt: Sequence[int],
    name: str = "request",
    saw: Callable[[int], None] | None = None,
    *,
    limit_s: float = LIMIT_S,
    **params: Any,
) -> Completion:
    """`saw` is called with the number of tokens so far."""
    settings = SamplingParams(**{"max_tokens": 12, **params})
    deltas: list[TokenDelta] = []
    async with asyncio.timeout(limit_s):
        async for delta in sampler.generate(name, prompt, settings):
            deltas.append(delta)
            if saw is not None:
                saw(sum(len(each.token_ids_T) for each in deltas))
    return Completion(
        [token for delta in deltas for token in delta.token_ids_T],
        [value for delta in deltas for value in delta.logprobs_T],
        [version for delta in deltas for version in delta.weight_versions_T],
        deltas[-1].finish_reason,
        deltas,
    )


async def until(true: Callable[[], Any] | Callable[[], Awaitable[Any]], limit_s: float = 60.0) -> None:
    """Wait until the condition holds. Raises AssertionError if it does not in time."""
    give_up_at = time.monotonic() + limit_s
    while time.monotonic() < give_up_at:
        held = true()
        if asyncio.iscoroutine(held):
            held = await held
        if held:
            return
        await asyncio.sleep(0.02)
    raise AssertionError("what was waited for did not come about")
