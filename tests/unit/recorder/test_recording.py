"""What is recorded: which episodes of which steps, and what becomes of it when a sink fails or steps are undone."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from swarm.errors import BadRequest
from swarm.ledger import EpisodeRow
from swarm.recorder.episodes import choose_by_rule, is_looked_at
from swarm.recorder.reading import Position
from swarm.recorder.recording import Recording
from swarm.recorder.system import SystemReader, parse_gpus
from swarm.schemas import EpisodeState
from swarm.sinks import FinishedStep, SystemReading, TrainingDescription, TrainingUpdate, list_sinks, open_sink
from swarm.types import EpisodeType

TRAINING = TrainingDescription("k", "p", "e", "nano", "fake", {}, {}, "/home", None, 0.0, 2, "ROLLING", None)


class Ledger:
    """Three updates of one step each, after the position of the step before."""

    def read(self, position: Position, *, is_served: bool = True) -> tuple[TrainingUpdate, Position] | None:
        step = position.step + 1
        if step > 3:
            return None
        return TrainingUpdate(TRAINING, steps=(FinishedStep(step, step, 0.0, {}),)), Position(1, step=step, key="k-1")


class FailingSink:
    """A sink that fails at its second write, once."""

    place = "here"

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.readings: list[SystemReading] = []
        self.is_failing = True

    def holds(self, key: str) -> bool:
        return bool(self.steps)

    def write(self, update: TrainingUpdate) -> None:
        if self.is_failing and len(self.steps) == 1:
            self.is_failing = False
            raise OSError("the disk is full")
        self.steps += [step.step for step in update.steps]
        self.readings += update.system

    def close(self) -> None: ...


def test_what_a_sink_failed_to_store_is_written_at_the_next_call_and_nothing_twice(tmp_path: Path) -> None:
    sink = FailingSink()
    recording = Recording(Ledger(), "failing", sink, tmp_path)
    assert not recording.catch_up() and "disk is full" in str(recording.failure)
    assert recording.catch_up() and sink.steps == [1, 2, 3] and recording.failure is None
    assert Recording(Ledger(), "failing", sink, tmp_path).catch_up() and sink.steps == [1, 2, 3]
    assert Recording(Ledger(), "another", sink, tmp_path).catch_up() and sink.steps == [1, 2, 3, 1, 2, 3]


def test_a_sink_that_lost_its_trainings_is_filled_anew_and_each_place_from_the_start(tmp_path: Path) -> None:
    first, emptied, elsewhere = FailingSink(), FailingSink(), FailingSink()
    first.is_failing = emptied.is_failing = elsewhere.is_failing = False
    elsewhere.place = "there"
    for sink in (first, emptied, elsewhere):
        assert Recording(Ledger(), "failing", sink, tmp_path).catch_up() and sink.steps == [1, 2, 3]


def test_readings_wait_for_an_update_and_for_a_sink_that_fails(tmp_path: Path) -> None:
    sink, readings = FailingSink(), [SystemReading(float(at), {"system/cpu_percent": 1.0}) for at in range(3)]
    recording = Recording(Ledger(), "failing", sink, tmp_path)
    assert not recording.catch_up(readings[:1]) and sink.readings == readings[:1]
    assert recording.catch_up(readings[1:2]) and sink.readings == readings[:2]
    assert recording.catch_up(readings[2:]) and sink.readings == readings[:2]


def test_of_a_long_training_ever_fewer_steps_are_looked_at() -> None:
    looked_at = [step for step in range(1, 10_001) if is_looked_at(step)]
    assert looked_at[:101] == [*range(1, 101), 110] and len(looked_at) == 100 + 90 + 90


def row(number: int, group: int, reward: float) -> EpisodeRow:
    return EpisodeRow(
        str(number), EpisodeType.TRAIN, "c", "", 0.0, 1.0, 1.0, EpisodeState.TRAINED, batch_group=group, reward=reward
    )


def test_the_best_the_worst_a_random_one_and_one_without_signal_are_kept_each_once() -> None:
    rows = [row(0, 0, 0.2), row(1, 0, 0.9), row(2, 1, 0.0), row(3, 1, 1.0), row(4, 2, 0.5), row(5, 2, 0.5)]
    chosen = choose_by_rule(rows, random.Random(0))
    assert (chosen["best"].episode_id, chosen["worst"].episode_id) == ("3", "2")
    assert chosen["no signal"].batch_group == 2 and len({item.episode_id for item in chosen.values()}) == 4
    assert list(choose_by_rule(rows[:1], random.Random(0))) == ["best"]


def test_the_load_of_gpus_is_read_from_what_nvidia_smi_prints() -> None:
    assert parse_gpus("93, 1000, 4000\n0, 0, 4000\n") == {
        "system/gpu0_percent": 93.0, "system/gpu0_memory_percent": 25.0,
        "system/gpu1_percent": 0.0, "system/gpu1_memory_percent": 0.0,
    }  # fmt: skip


def test_a_process_that_is_gone_has_no_load(tmp_path: Path) -> None:
    import os
    import subprocess

    reading = SystemReader(os.getpid()).read()
    assert reading is not None and reading.values["system/memory_mb"] > 1
    with subprocess.Popen(["sleep", "60"]) as process:
        reader = SystemReader(process.pid)
        process.kill()
    assert reader.read() is None


def test_a_sink_that_nobody_knows_is_refused_with_the_names_of_those_there_are() -> None:
    assert "database" in list_sinks()
    with pytest.raises(BadRequest, match="database"):
        open_sink("nowhere", "runs")
