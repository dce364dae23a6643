"""A real ledger in a temporary directory, and short names for what most tests do with it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

from swarm.ledger import EndReceipt, EpisodeRow, Ledger, ReportedResult
from swarm.types import EpisodeType, FinishReason, ForkReason, SamplingParams, StepReport, Turn, WeightVersion

T = TypeVar("T")


class Script:
    """Drives one ledger step by step from a synchronous test."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run(asyncio.wait_for(work, 60))

    def begin(self, episode_id: str, episode_type: EpisodeType = EpisodeType.TRAIN, client_id: str = "laptop") -> None:
        now = time.time()
        row = EpisodeRow(episode_id, episode_type, client_id, "0" * 64, now, 240.0, now + 1800)
        self.wait(self.ledger.begin_episode(row))

    def result(self, episode_id: str, **changes: Any) -> ReportedResult:
        fields: dict[str, Any] = {
            "idempotency_key": "key", "payload_digest": "digest", "task_id": "task", "reward": 1.0, "is_success": None,
            "metadata": {}, "ended_at": 1.0,
        }  # fmt: skip
        return ReportedResult(episode_id, **{**fields, **changes})

    def end(
        self, episode_id: str, *, key: str = "key", digest: str = "digest", reward: float = 1.0, task_id: str = "task"
    ) -> EndReceipt:
        ending = self.result(
            episode_id, idempotency_key=key, payload_digest=digest, task_id=task_id, reward=reward,
            is_success=reward > 0, metadata={"note": "é"}, ended_at=time.time(),
        )  # fmt: skip
        return self.wait(self.ledger.end_episode(ending))

    def complete(self, *episode_ids: str) -> None:
        for episode_id in episode_ids:
            self.begin(episode_id)
            self.end(episode_id)

    def report(self, batch_id: str, step: int, advantages: dict[str, float] | None = None) -> StepReport:
        return StepReport(batch_id, step, WeightVersion(step, step, time.time()), {"loss": 0.5}, advantages or {})

    def train(self, step: int, *groups: list[str], dropped: Sequence[tuple[str, str]] = ()) -> None:
        """Close batch b1, b2 ... of a step with these groups, and finish it."""
        self.wait(self.ledger.close_batch(f"b{step}", step, groups, dropped))
        self.wait(self.ledger.finish_batch(self.report(f"b{step}", step)))

    def turn(self, episode_id: str, index: int = 0, **changes: Any) -> Turn:
        fields: dict[str, Any] = {
            "episode_id": episode_id,
            "index": index,
            "prompt_ids": (1, 2, 3),
            "output_ids_T": (4, 5),
            "logprobs_T": (-0.1, -2.5),
            "weight_versions_T": (0, 0),
            "finish_reason": FinishReason.STOP,
            "params": SamplingParams(max_tokens=8, stop=("end",), stop_token_ids=(2,)),
            "messages": ({"role": "user", "content": "hi"},),
            "reply": {"role": "assistant", "content": "ho"},
            "tools": (),
            "parent": None if index == 0 else index - 1,
            "fork_reason": ForkReason.NEW_CONVERSATION if index == 0 else None,
            "started_at": 1.0,
            "ended_at": 2.0,
        }
        return Turn(**{**fields, **changes})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "home" / "ledger.db"


@pytest.fixture
def ledger(path: Path) -> Iterator[Ledger]:
    ledger = Ledger.open(path)
    yield ledger
    ledger.close()


@pytest.fixture
def make_script() -> type[Script]:
    return Script


@pytest.fixture
def script(ledger: Ledger) -> Script:
    """A ledger with a job on record."""
    script = Script(ledger)
    script.wait(ledger.record_job({"lr": 1e-3}, {"lr": 1e-3, "batch_size": 16}))
    return script
