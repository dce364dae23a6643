"""The measurement of a training: the time of its steps and scores, its memory, its files and its tokens."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

from swarm.cli.own_server import own_server_pid
from swarm.types import EpisodeType

if TYPE_CHECKING:
    from typing import ParamSpec

    from swarm.client import Evaluation, SwarmClient
    from swarm.job import TrainJob
    from swarm.schemas import JobUsage

    P = ParamSpec("P")

LEAST_STEPS, LEAST_S = 2, 10.0
"""The least steps that a training is estimated from, and the least time that they take: the first ones are slower."""
MEMORY_S = 0.5
"""The time between two readings of the memory of the server."""


class MeasuredTraining(BaseModel):
    """The measured use of a training, as far as it could be measured.

    `seconds` is the whole time of the command. `step_s` is the mean time of one of the `steps` by reward, and
    `sft_step_s` that of a supervised step. `attempt_s` is the time of a score divided by its attempts. `other_s` is the
    rest: start, loading, saving. Tokens are prompt and sampled tokens, without those of demonstrations.
    `memory` is the largest sum of resident memory of the server's processes in bytes. `checkpoint` and `record` are the
    bytes of one checkpoint, and of all other files per step. `workers` and `cores` were at work.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    steps: int
    seconds: float
    step_s: float | None
    sft_step_s: float | None = None
    attempt_s: float | None
    other_s: float
    tokens_per_step: float | None
    tokens_per_attempt: float | None
    memory: int | None = None
    disk: int | None = None
    checkpoint: int | None = None
    record: float | None = None
    workers: int
    cores: int


class TrainingMeter:
    """A meter of one command. `home` is the directory of its own server, if it has one. Thread-safe."""

    def __init__(
        self, job: TrainJob, workers: int, home: Path | None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._job, self._workers, self._home, self._clock = job, workers, home, clock
        self._began = clock()
        self._score_s, self._attempts = 0.0, 0
        self._training_since: float | None = None
        self._training_s, self._training_score_s, self._sft_s = 0.0, 0.0, 0.0
        self._memory: int | None = None

    def timed(self, evaluate: Callable[P, Evaluation]) -> Callable[P, Evaluation]:
        """Return the function with its time and attempts counted."""

        def measured(*args: P.args, **kwargs: P.kwargs) -> Evaluation:
            began = self._clock()
            evaluation = evaluate(*args, **kwargs)
            took = self._clock() - began
            self._score_s += took
            self._attempts += evaluation.n + len(evaluation.failures)
            if self._training_since is not None:
                self._training_score_s += took
            return evaluation

        return measured

    @contextmanager
    def training(self) -> Generator[None]:
        """Count the time of the block as that of steps, apart from scores in it."""
        self._training_since = self._clock()
        try:
            yield
        finally:
            self._training_s = self._clock() - self._training_since
            self._training_since = None

    @contextmanager
    def demonstrating(self) -> Generator[None]:
        """Count the time of the block, within the training, as that of supervised steps, apart from scores in it."""
        began, scored = self._clock(), self._training_score_s
        try:
            yield
        finally:
            self._sft_s = self._clock() - began - (self._training_score_s - scored)

    @contextmanager
    def memory(self) -> Generator[None]:
        """Watch the memory of the command's own server and its processes during the block."""
        if self._home is None or (pid := own_server_pid(self._home)) is None:
            yield
            return
        ended = threading.Event()

        def watch() -> None:
            while True:
                self._memory = max(self._memory or 0, resident_memory(pid)) or None
                if ended.wait(MEMORY_S):
                    return

        watcher = threading.Thread(target=watch, name="memory", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join()

    def has_enough(self, steps: int) -> bool:
        """Return whether so many steps by reward of this process say what the others will take."""
        # Steps with staleness overlap, so that the first ones say little.
        return steps >= LEAST_STEPS + self._job.max_staleness and self._steps_s() >= LEAST_S

    def read(self, client: SwarmClient, begun_at: int, step: int) -> MeasuredTraining | None:
        """Return what is measured of the steps of this process up to `step`, None without one."""
        trained, scored = client.usage(EpisodeType.TRAIN), client.usage(EpisodeType.EVAL)
        sft_steps = max(0, min(step, self._job.sft_steps) - begun_at)
        steps = max(0, step - begun_at - sft_steps)
        if not steps and not sft_steps:
            return None
        seconds, steps_s = self._clock() - self._began, self._steps_s()
        per_episode = _tokens_per_episode(trained)
        return MeasuredTraining(
            steps=steps,
            seconds=seconds,
            step_s=steps_s / steps if steps else None,
            sft_step_s=self._sft_s / sft_steps if sft_steps else None,
            attempt_s=self._score_s / self._attempts if self._attempts else None,
            other_s=max(0.0, seconds - steps_s - self._sft_s - self._score_s),
            # Some of the counted episodes may belong to the next step.
            tokens_per_step=None if per_episode is None else per_episode * self._job.batch_size * self._job.num_repeat,
            tokens_per_attempt=_tokens_per_episode(scored),
            memory=self._memory,
            workers=self._workers,
            cores=available_cores(),
        )

    def _steps_s(self) -> float:
        since = self._training_since
        whole = self._training_s if since is None else self._clock() - since
        return max(0.0, whole - self._training_score_s - self._sft_s)

    def complete(self, measured: MeasuredTraining, all_steps: int) -> MeasuredTraining:
        """Return the measurement with the whole time and the files, once the server has ended."""
        seconds = self._clock() - self._began
        known = {"seconds": seconds, "other_s": measured.other_s + seconds - measured.seconds}
        if self._home is None:
            return measured.model_copy(update=known)
        disk, checkpoints = bytes_below(self._home), checkpoint_sizes(self._home)
        files = {
            "disk": disk,
            "checkpoint": max(checkpoints, default=None),
            "record": (disk - sum(checkpoints)) / all_steps,
        }
        return measured.model_copy(update=known | files)


def _tokens_per_episode(usage: JobUsage) -> float | None:
    return (usage.prompt_tokens + usage.sampled_tokens) / usage.episodes if usage.episodes else None


def available_cores() -> int:
    """Return the number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def resident_memory(pid: int) -> int:
    """Return the resident memory of a process and its children in bytes, 0 once it is gone."""
    import psutil

    total = 0
    with suppress(psutil.Error):
        root = psutil.Process(pid)
        for process in [root, *root.children(recursive=True)]:
            with suppress(psutil.Error):
                total += process.memory_info().rss
    return total


def bytes_below(directory: Path) -> int:
    """Return the size of all files below a directory. Files that go meanwhile do not count."""
    total = 0
    for path in directory.rglob("*"):
        with suppress(OSError):
            total += path.stat().st_size if path.is_file() else 0
    return total


def checkpoint_sizes(home: Path) -> list[int]:
    """Return the sizes of the checkpoints in the home of a server, with those for recovery."""
    return [bytes_below(path) for path in home.rglob("step-*") if path.is_dir()]
