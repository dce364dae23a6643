"""MLflow as a sink: a run for each training, in the experiment that is named like its project."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from swarm.sinks.base import TrainingDescription, TrainingUpdate
from swarm.sinks.rows import EPISODE_COLUMNS, RunSink, episode_rows, list_rows, run_name, settings_of

if TYPE_CHECKING:
    from mlflow import MlflowClient

LIBRARY = "mlflow"
DATABASE, ARTIFACTS = "mlflow.db", "mlflow-artifacts"
KEY = "swarm.training"
"""The tag of a run with the key of its training."""
METRICS_AT_ONCE, PARAMETERS_AT_ONCE = 1000, 100
"""The most values that MLflow takes in one call."""
LONGEST_VALUE = 6000
STATUS = {"COMPLETE": "FINISHED", "REPLACED": "KILLED", "STOPPED": "KILLED", "FAILED": "FAILED"}
"""MLflow's names for the states in which a training has ended. All others are RUNNING."""

Value = TypeVar("Value")


class MlflowSink(RunSink[str]):
    """The sink of one tracking server or file.

    MLflow deletes no values, so undone steps stay in its curves beside those that took their place.
    """

    def __init__(self, client: MlflowClient, artifacts: str | None) -> None:
        """Use a client. `artifacts` is the place of the artifacts of new experiments, if it is not the server's."""
        super().__init__()
        self._client = client
        self._artifacts = artifacts
        self._status: dict[str, str] = {}

    @property
    def place(self) -> str:
        return self._client.tracking_uri

    def holds(self, key: str) -> bool:
        return any(self._find(experiment.experiment_id, key) for experiment in self._client.search_experiments())

    def _open(self, training: TrainingDescription) -> str:
        name = training.project or "default"
        found = self._client.get_experiment_by_name(name)
        experiment = found.experiment_id if found else self._client.create_experiment(name, self._artifacts)
        return self._find(experiment, training.key) or self._create(experiment, training)

    def _log(self, run: str, update: TrainingUpdate) -> None:
        self._log_metrics(run, update)
        for step in sorted({episode.step for episode in update.episodes}):
            rows = episode_rows(each for each in update.episodes if each.step == step)
            table = {name: [row[place] for row in rows] for place, name in enumerate(EPISODE_COLUMNS)}
            self._client.log_table(run, table, f"episodes/step-{step:06}.json")
        for step, settings in update.training.changes.items():
            self._client.set_tag(run, f"changed_at.{step}", str(dict(settings)))
        self._set_status(run, update.training)

    def _finish(self, run: str) -> None:
        """There is nothing to close: each call was sent at once."""

    def _find(self, experiment: str, key: str) -> str | None:
        runs = self._client.search_runs([experiment], f"tags.`{KEY}` = '{key}'", max_results=1)
        return runs[0].info.run_id if runs else None

    def _create(self, experiment: str, training: TrainingDescription) -> str:
        from mlflow.entities import Param

        run = self._client.create_run(
            experiment, int(training.begun_at * 1000), tags={KEY: training.key}, run_name=run_name(training)
        )
        settings = [Param(name, str(value)[:LONGEST_VALUE]) for name, value in settings_of(training).items()]
        for some in _pieces(settings, PARAMETERS_AT_ONCE):
            self._client.log_batch(run.info.run_id, params=some)
        return run.info.run_id

    def _log_metrics(self, run_id: str, update: TrainingUpdate) -> None:
        from mlflow.entities import Metric

        rows = list_rows(update)
        begun_at = update.training.begun_at
        rows += [(int(reading.at - begun_at), reading.at, dict(reading.values)) for reading in update.system]
        metrics = [
            Metric(name, float(value), int(at * 1000), step) for step, at, row in rows for name, value in row.items()
        ]
        for some in _pieces(metrics, METRICS_AT_ONCE):
            self._client.log_batch(run_id, metrics=some)

    def _set_status(self, run_id: str, training: TrainingDescription) -> None:
        status = STATUS.get(training.status, "RUNNING")
        if self._status.get(run_id) == status:
            return
        if status == "RUNNING":
            self._client.update_run(run_id, status)
        else:
            self._client.set_terminated(run_id, status)
        self._status[run_id] = status


def _pieces(values: Sequence[Value], size: int) -> list[list[Value]]:
    return [list(values[begin : begin + size]) for begin in range(0, len(values), size)]


def open_mlflow(runs: str) -> MlflowSink:
    """Open the sink of the server of MLFLOW_TRACKING_URI, or else of `mlflow.db` in the directory of runs.

    Raise what MLflow raises.
    """
    from mlflow import MlflowClient

    if os.environ.get("MLFLOW_TRACKING_URI"):
        return MlflowSink(MlflowClient(), None)
    directory = Path(runs).resolve()
    return MlflowSink(MlflowClient(f"sqlite:///{directory / DATABASE}"), str(directory / ARTIFACTS))
