"""Quotas of a training, traces of a failed program, and base scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from swarm import SwarmClient, TrainJob
from swarm.client.evaluation import interval, interval_on_record
from swarm.environments import Grade, load_environment
from swarm.environments.environment_check import CheckSeverity
from swarm.errors import ProgramFailure
from swarm.pass_at_k import PassAtK
from swarm.program import ProgramProcess, place_program
from swarm.program.base_score import BaseScore, judge
from swarm.program.gates import AmountGate
from swarm.program.hosted import process
from swarm.program.training import train
from swarm.schemas import EvaluationView
from swarm.types import Task

JOB = TrainJob(engine="fake", batch_size=2, num_repeat=2, total_steps=50)


@pytest.fixture
def client(start_server: Callable[..., Any]) -> Iterator[SwarmClient]:
    with SwarmClient(start_server().url) as opened:
        opened.auto_sync_train_config_and_start_engine(JOB)
        yield opened


def test_training_ends_with_the_step_that_reaches_the_tokens(client: SwarmClient) -> None:
    gate = AmountGate(client, tokens=60, seconds=None, batch_size=JOB.batch_size)

    done = train(client, load_environment("copy"), JOB, gate=gate.gate)

    counts = [point.metrics["actor/trained_tokens"] for point in client.metrics()]
    assert done.steps == len(counts) < 50
    assert sum(counts) >= 60 > sum(counts[:-1])
    # Whoever takes the run up again finds that it has used its quota.
    again = AmountGate(client, tokens=60, seconds=None, batch_size=JOB.batch_size)
    assert train(client, load_environment("copy"), JOB, gate=again.gate).steps == done.steps


def test_training_ends_with_a_step_and_counts_those_that_were_there(client: SwarmClient) -> None:
    for last in (2, 3, 3):
        gate = AmountGate(client, tokens=None, seconds=None, steps=last, batch_size=JOB.batch_size)
        assert train(client, load_environment("copy"), JOB, gate=gate.gate).steps == last


def test_training_ends_with_the_first_step_after_the_seconds(client: SwarmClient) -> None:
    times = iter([0.0, 1.0, 2.0, 10.0])
    gate = AmountGate(client, tokens=None, seconds=5, batch_size=JOB.batch_size, clock=lambda: next(times))

    assert train(client, load_environment("copy"), JOB, gate=gate.gate).steps == 2


FAILS = """
def reward(task, transcript, grade):
    return inner(len(transcript))

def inner(number):
    return 1 / number if number < 5 else inner_again(number)

def inner_again(number):
    return inner_again(number - 1) if number else 1 / number
"""
NOWHERE = "http://127.0.0.1:9"


def failure(folder: Path, messages: int) -> ProgramFailure:
    with (
        place_program(FAILS, folder, NOWHERE, None) as place,
        ProgramProcess(place, shaping=place) as program,
        pytest.raises(ProgramFailure, match=r"program.py, line \d+: ZeroDivisionError") as raised,
    ):
        assert program.reward is not None
        program.reward(Task("q"), [{"role": "user", "content": "q"}] * messages, Grade(0.0, False))
    return raised.value


def test_the_lines_of_the_program_are_a_note_of_the_error(tmp_path: Path) -> None:
    [note] = failure(tmp_path, 0).__notes__
    assert [line.strip() for line in note.splitlines() if "^" not in line] == [
        'File "program.py", line 3, in reward',
        "return inner(len(transcript))",
        'File "program.py", line 6, in inner',
        "return 1 / number if number < 5 else inner_again(number)",
    ]


def test_a_deep_trace_is_cut_to_its_last_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "MAX_TRACE_CHARS", 500)
    [note] = failure(tmp_path, 40).__notes__
    assert len(note) == 500 and "in reward" not in note and "in inner_again" in note


def scored(*rewards: float, failures: int = 0) -> BaseScore:
    low, high = interval(rewards)
    mean = sum(rewards) / len(rewards) if rewards else 0.0
    return BaseScore(rewards, mean, low, high, failures, "KeyError" if failures else None, 1.0)


def on_record(mean: float, stderr: float | None, successes: int, scored: int, **rest: Any) -> EvaluationView:
    figures = {"scored": scored, "successes": successes, "mean": mean, "stderr": stderr, **rest}
    return EvaluationView(step=1, weight_version=1, state="done", episodes=scored, due_at=0.0, **figures)


@pytest.mark.parametrize(("successes", "number"), [(0, 64), (64, 64), (32, 64), (1, 10), (1, 1)])
def test_of_successes_and_failures_the_interval_is_wilsons(successes: int, number: int) -> None:
    from scipy.stats import binomtest

    rewards = [1.0] * successes + [0.0] * (number - successes)
    reference = binomtest(successes, number).proportion_ci(method="wilson")
    assert interval(rewards) == pytest.approx((reference.low, reference.high), abs=1e-4)


def test_of_other_grades_the_interval_is_normal() -> None:
    assert interval([0.2, 0.4, 0.6]) == pytest.approx(
        (0.4 - 1.96 * 0.2 / math.sqrt(3), 0.4 + 1.96 * 0.2 / math.sqrt(3))
    )
    assert interval([0.5]) == (-math.inf, math.inf)
    assert scored(0.5).figures()["low"] is None


def test_of_a_score_on_record_the_interval_is_wilsons_if_its_rewards_were_0_and_1() -> None:
    assert interval_on_record(on_record(0.25, 0.1, 4, 16)) == pytest.approx(interval([1.0] * 4 + [0.0] * 12))
    assert interval_on_record(on_record(0.4, 0.2 / math.sqrt(3), 0, 3)) == pytest.approx(interval([0.2, 0.4, 0.6]))
    assert interval_on_record(on_record(0.5, None, 0, 1)) == (-math.inf, math.inf)


def test_of_several_attempts_on_record_the_interval_is_over_their_tasks() -> None:
    four = on_record(0.25, 0.1, 4, 16, pass_at_k=(PassAtK(1, 0.25, 0.1, 0.5, 4), PassAtK(4, 0.5, 0.1, 0.9, 4)))
    assert interval_on_record(four) == pytest.approx(interval([1.0] + [0.0] * 3))


@pytest.mark.parametrize(
    ("score", "severity"),
    [
        (scored(*[0.0] * 64), CheckSeverity.FAIL),
        (scored(*[1.0], *[0.0] * 999), CheckSeverity.FAIL),
        (scored(*[1.0] * 2, *[0.0] * 62), CheckSeverity.OK),
        (scored(*[1.0] * 60, *[0.0] * 4), CheckSeverity.OK),
        (scored(*[1.0] * 100), CheckSeverity.WARN),
        (scored(*[-1.0] * 60, *[0.5] * 4), CheckSeverity.OK),
        (scored(*[-1.0] * 60, *[-0.5] * 4), CheckSeverity.FAIL),
        (scored(*[1.0, 0.0] * 32, failures=3), CheckSeverity.WARN),
        (scored(failures=3), CheckSeverity.FAIL),
    ],
)
def test_a_score_without_room_to_learn_is_found(score: BaseScore, severity: CheckSeverity) -> None:
    assert judge(score).severity is severity
