"""The estimate of a training: nothing in it that was not measured, and only trainings of the same kind count."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from swarm.cli.train.estimate import WorkAhead, estimate_training, find_like
from swarm.cli.train.measurement import MeasuredTraining, TrainingMeter, bytes_below
from swarm.cli.train.training_folder import RECORD, EnvironmentOnRecord, ProgramOnRecord, TrainingRecord
from swarm.client import Evaluation
from swarm.errors import BadRequest
from swarm.job import TrainJob
from swarm.prices import Prices, read_prices

TOOK = MeasuredTraining(
    steps=10, seconds=60, step_s=3, attempt_s=0.1, other_s=10, tokens_per_step=1000, tokens_per_attempt=20,
    memory=10**9, disk=7 * 10**6, checkpoint=5 * 10**6, record=2 * 10**5, workers=64, cores=2,
)  # fmt: skip
JOB = TrainJob(total_steps=100, save_freq=50)


def record(job: TrainJob, took: MeasuredTraining | None, program: str = "p", tasks: str = "t") -> TrainingRecord:
    return TrainingRecord(
        key="k",
        job=job.resolve(),
        environment=EnvironmentOnRecord(name="sort", digest=tasks),
        program=ProgramOnRecord(name="plain", digest=program),
        took=took,
    )


def test_time_tokens_and_files_grow_with_steps_and_attempts_and_money_with_time() -> None:
    found = estimate_training([TOOK], WorkAhead(100, 400), JOB, "10 steps", Prices(cpu_hour=36))
    assert found.seconds == pytest.approx(10 + 300 + 40)
    assert found.money == pytest.approx(3.5)
    assert found.tokens == 108_000 and found.memory == 10**9
    assert found.disk == 100 * 2 * 10**5 + 2 * 5 * 10**6
    assert found.text.endswith("from 10 steps")


def test_what_was_not_measured_is_not_in_the_line() -> None:
    unknown = TOOK.model_copy(update=dict.fromkeys(("attempt_s", "tokens_per_attempt", "memory", "record")))
    found = estimate_training([unknown], WorkAhead(100, 400), JOB, "10 steps", Prices(cpu_hour=36))
    assert (found.seconds, found.money, found.tokens, found.memory, found.disk) == (None,) * 5
    assert found.text == "100 steps of 3 s; from 10 steps"
    assert estimate_training([unknown], WorkAhead(100, 0), JOB, "", None).seconds == pytest.approx(310)


def test_trainings_with_another_model_agent_environment_or_batch_are_not_like(tmp_path: Path) -> None:
    wanted = record(JOB, None)
    kinds = {
        "like": record(JOB.model_copy(update={"seed": 7, "total_steps": 5, "experiment_name": "b"}), TOOK),
        "batch": record(JOB.model_copy(update={"batch_size": 2}), TOOK),
        "replies": record(JOB.model_copy(update={"num_repeat": 2}), TOOK),
        "model": record(JOB.model_copy(update={"model": "micro"}), TOOK),
        "agent": record(JOB, TOOK, program="other"),
        "tasks": record(JOB, TOOK, tasks="other"),
        "machine": record(JOB, TOOK.model_copy(update={"cores": 64})),
        "unmeasured": record(JOB, None),
    }
    for number, (name, each) in enumerate(kinds.items()):
        (tmp_path / name).mkdir()
        took = each.took and each.took.model_copy(update={"seconds": number})
        (tmp_path / name / RECORD).write_text(each.model_copy(update={"took": took}).model_dump_json())
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / RECORD).write_text("{")
    assert [each.seconds for each in find_like(tmp_path, wanted, workers=64, cores=2)] == [0]


def test_a_meter_counts_scores_within_the_training_apart_from_its_steps() -> None:
    times: Iterator[int] = iter(range(0, 1000, 10))
    meter = TrainingMeter(JOB, 64, None, clock=lambda: next(times))
    score = Evaluation(4, 0, None, None, {}, (0,), ())
    with meter.training():
        meter.timed(lambda: score)()
    assert not meter.has_enough(1)
    assert meter.has_enough(2)
    assert not TrainingMeter(JOB, 64, None, clock=lambda: 0).has_enough(100)


def test_bytes_of_a_directory_are_those_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").write_bytes(b"12345")
    assert bytes_below(tmp_path) == 5


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("cpu_hour: -1", "cpu_hour"),
        ("cpu_hours: 1", "cpu_hours"),
        ("cpu_hour: .nan", "cpu_hour"),
        ("- 1", "the file"),
        ("", "the file"),
        ("a: [", "cannot be read"),
    ],
)
def test_a_file_of_prices_with_anything_else_is_refused_by_name(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "prices.yaml").write_text(text)
    with pytest.raises(BadRequest, match=said):
        read_prices(tmp_path / "prices.yaml")


def test_a_price_that_the_training_needs_and_the_file_lacks_is_named() -> None:
    with pytest.raises(BadRequest, match="gpu_hour"):
        Prices(cpu_hour=1).of_hours(1, gpus=2)
    with pytest.raises(BadRequest, match="cpu_hour"):
        Prices(gpu_hour=1).of_hours(1, gpus=2)
    assert Prices(cpu_hour=1, gpu_hour=3).of_hours(2, gpus=2) == 14
