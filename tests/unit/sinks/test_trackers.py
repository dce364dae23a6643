"""Trackers as sinks: each has a training's curves, settings and chosen episodes, read back by its own library."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from swarm.sinks import (
    ChosenEpisode,
    EvaluatedStep,
    FinishedStep,
    Sink,
    SystemReading,
    TrainingDescription,
    TrainingUpdate,
    open_sink,
)

# MLflow's own models use what SQLAlchemy will drop one day.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

LOAD = "system/cpu_percent"
BEGAN = 1_790_000_000.0
TRAINING = TrainingDescription(
    key="5c1f-1",
    project="shop",
    experiment="agent",
    model="nano",
    engine="local",
    settings={"lr": 0.001, "seed": 7},
    changes={},
    home="/tmp/home",
    launch_key=None,
    begun_at=BEGAN,
    step=2,
    status="ROLLING",
    reason=None,
)
EPISODE = ChosenEpisode(
    step=2, episode_id="ep-1", chosen_as="best", task_id="t-1", data_source="d", group=0, reward=0.75, is_success=True,
    advantage=1.25, weight_version=1, at=BEGAN + 2,
    messages=({"role": "user", "content": "Reverse: abc"}, {"role": "assistant", "content": "cba"}), samples=(),
)  # fmt: skip
FIRST = TrainingUpdate(
    TRAINING,
    steps=tuple(
        FinishedStep(step, step, BEGAN + step, {"critic/score/mean": step / 10, "eval/mean": 0.5}) for step in (1, 2)
    ),
    scores=(EvaluatedStep(2, BEGAN + 2.5, 0.5, 0.05, 100, 50),),
    episodes=(EPISODE,),
    system=(SystemReading(BEGAN + 1, {"system/cpu_percent": 40.0}),),
)
SECOND = TrainingUpdate(
    replace(TRAINING, step=3, status="COMPLETE"),
    steps=(FinishedStep(3, 3, BEGAN + 3, {"critic/score/mean": 0.3}),),
)


@dataclass
class Read:
    """What a tracker has of one training."""

    points: dict[int, float]
    """The rewards by step."""
    scores: list[float]
    settings: dict[str, Any]
    episodes: str
    system: list[float]
    is_over: bool | None = None


@dataclass
class Tracker:
    name: str
    read: Callable[[Path, str], Read]
    runs: Path

    def open(self) -> Sink:
        return open_sink(self.name, str(self.runs))


def read_mlflow(runs: Path, key: str) -> Read:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{runs}/mlflow.db")
    [experiment] = [each for each in client.search_experiments() if each.name == "shop"]
    [run] = client.search_runs([experiment.experiment_id], f"tags.`swarm.training` = '{key}'")

    def history(name: str) -> list[Any]:
        return client.get_metric_history(run.info.run_id, name)

    paths = [item.path for item in client.list_artifacts(run.info.run_id, "episodes")]
    tables = [client.download_artifacts(run.info.run_id, path) for path in paths]
    return Read(
        {metric.step: metric.value for metric in history("critic/score/mean")},
        [metric.value for metric in history("eval/mean")],
        {"lr": float(run.data.params["lr"]), "seed": int(run.data.params["seed"])},
        "".join(Path(table).read_text() for table in tables),
        [metric.value for metric in history("system/cpu_percent")],
        run.info.status == "FINISHED",
    )


def read_trackio(runs: Path, key: str) -> Read:
    from trackio.sqlite_storage import SQLiteStorage

    name = f"agent-{key}"
    rows = SQLiteStorage.get_logs("shop", name)
    config = SQLiteStorage.get_all_run_configs("shop")
    with closing(sqlite3.connect(SQLiteStorage.get_project_db_path("shop"))) as connection:
        stored = "".join(str(row) for row in connection.execute("SELECT * FROM traces"))
    run = SQLiteStorage.get_latest_run_record_by_name("shop", name)
    assert run is not None
    settings = config[run["id"]]
    return Read(
        {row["step"]: row["critic/score/mean"] for row in rows if "critic/score/mean" in row},
        [row["eval/mean"] for row in rows if "eval/mean" in row],
        {name: settings[name] for name in ("lr", "seed")},
        stored,
        [row["system/cpu_percent"] for row in SQLiteStorage.get_system_logs("shop", name)],
    )


def read_tensorboard(runs: Path, key: str) -> Read:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    files = EventAccumulator(str(runs / "tensorboard" / "shop" / f"agent-{key}"))
    files.Reload()
    texts = {tag: files.Tensors(tag)[-1].tensor_proto.string_val[0].decode() for tag in files.Tags()["tensors"]}
    table = dict(line.strip("| ").split(" | ") for line in texts["settings"].splitlines() if " | " in line)
    return Read(
        {event.step: round(event.value, 6) for event in files.Scalars("critic/score/mean")},
        [event.value for event in files.Scalars("eval/mean")],
        {"lr": float(table["lr"]), "seed": int(table["seed"])},
        texts["episodes/best"],
        [event.value for event in files.Scalars(LOAD)] if LOAD in files.Tags()["scalars"] else [],
    )


READERS = {"mlflow": read_mlflow, "trackio": read_trackio, "tensorboard": read_tensorboard}


@pytest.fixture(params=READERS)
def tracker(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tracker:
    pytest.importorskip(request.param)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    if request.param == "trackio":
        monkeypatch.setattr("trackio.utils.TRACKIO_DIR", tmp_path / "trackio")
        monkeypatch.setattr("trackio.sqlite_storage.TRACKIO_DIR", tmp_path / "trackio")
    return Tracker(request.param, READERS[request.param], tmp_path)


def test_a_tracker_has_all_of_a_training_also_from_a_recorder_that_begins_anew(
    tracker: Tracker,
) -> None:
    sink = tracker.open()
    assert not sink.holds(TRAINING.key)
    for update in (FIRST, SECOND):
        sink.write(update)
        sink.close()
        sink = tracker.open()
    found = tracker.read(tracker.runs, TRAINING.key)
    assert found.points == pytest.approx({1: 0.1, 2: 0.2, 3: 0.3})
    assert found.scores == pytest.approx([0.5]) and found.settings == {"lr": 0.001, "seed": 7}
    assert all(text in found.episodes for text in ("Reverse: abc", "cba", "0.75", "1.25"))
    assert found.system == [40.0] and found.is_over in {True, None}
    assert sink.holds(TRAINING.key)


def test_a_job_that_trains_nothing_is_no_run(tracker: Tracker) -> None:
    sink = tracker.open()
    sink.write(TrainingUpdate(TRAINING, system=FIRST.system))
    sink.close()
    assert not sink.holds(TRAINING.key)


def test_two_trainings_of_a_server_are_two_runs(tracker: Tracker) -> None:
    sink = tracker.open()
    other = replace(TRAINING, key="5c1f-2", settings={"lr": 0.002, "seed": 8})
    sink.write(FIRST)
    sink.write(replace(SECOND, training=other))
    sink.write(replace(FIRST, training=other, system=()))
    sink.close()
    assert tracker.read(tracker.runs, TRAINING.key).points == pytest.approx({1: 0.1, 2: 0.2})
    assert tracker.read(tracker.runs, other.key).points == pytest.approx({1: 0.1, 2: 0.2, 3: 0.3})


def test_undone_steps_give_way_to_those_that_took_their_place(tracker: Tracker) -> None:
    sink = tracker.open()
    sink.write(FIRST)
    again = (FinishedStep(2, 2, BEGAN + 9, {"critic/score/mean": 0.9}),)
    sink.write(TrainingUpdate(TRAINING, rewound_to=1, steps=again))
    sink.close()
    assert tracker.read(tracker.runs, TRAINING.key).points == pytest.approx({1: 0.1, 2: 0.9})


def test_wandb_records_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    sink = open_sink("wandb", str(tmp_path))
    for update in (FIRST, SECOND):
        sink.write(update)
    sink.close()
    [log] = tmp_path.glob("wandb/offline-run-*/run-5c1f-1.wandb")
    names = (b"critic/score/mean", b"eval/mean", b"system/cpu_percent", b"lr")
    # W&B writes its file in a process of its own.
    deadline = time.monotonic() + 60
    while not all(name in log.read_bytes() for name in names):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    [table] = tmp_path.glob("wandb/offline-run-*/files/media/table/*.table.json")
    content = json.loads(table.read_text())
    assert content["data"][0][content["columns"].index("advantage")] == 1.25
