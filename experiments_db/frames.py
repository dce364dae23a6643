"""Studies as pandas frames, for the explorer, the report and export; times stay seconds since the epoch."""

# pandas ships annotations that pyright's strict mode reads only in part.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields
from enum import StrEnum
from pathlib import Path
from typing import Any

import pandas as pd

from experiments_db.errors import StoreUnavailable
from experiments_db.kinds import FindingKind
from experiments_db.records import (
    DetailedEvaluation,
    Event,
    Experiment,
    Finding,
    LLMCall,
    MetricPoint,
    NotebookEntry,
    PlannerQuestion,
    ProgramTrial,
    Review,
    StoredDecision,
    StoredHypothesis,
    Study,
)
from experiments_db.store import ExperimentStore
from experiments_db.trainings import TRAINING_SECONDS

RUN_COLUMNS = (
    "run_id",
    "experiment_id",
    "experiment",
    "is_baseline",
    "iteration",
    "seed",
    "rung",
    "attempt",
    "status",
    "server_url",
    "created_at",
    "started_at",
    "finished_at",
    "training_s",
    "exit_reason",
)


class ExportFormat(StrEnum):
    CSV = "csv"
    PARQUET = "parquet"


def runs_frame(store: ExperimentStore, study_id: str) -> pd.DataFrame:
    """Return one row per run, oldest first.

    The columns are `RUN_COLUMNS`, then `factor.<name>` of its arm, then `<phase>.<split>` means. A factor that the arm
    does not have, and an evaluation that was not made, is a missing value.
    """
    found = store.list_all_runs([study_id])
    experiments = {experiment.id: experiment for experiment in found.experiments}
    arms = [experiments[run.experiment_id] for run in found.runs]
    columns: dict[str, list[Any]] = {
        name: [getattr(run, name) for run in found.runs]
        for name in ("experiment_id", "seed", "rung", "attempt", "server_url", "created_at", "started_at",
                     "finished_at", "exit_reason")
    }  # fmt: skip
    seconds = store.sum_metric([run.id for run in found.runs], TRAINING_SECONDS)
    columns |= {
        "training_s": [seconds.get(run.id, math.nan) for run in found.runs],
        "run_id": [run.id for run in found.runs],
        "experiment": [arm.name for arm in arms],
        "is_baseline": [arm.is_baseline for arm in arms],
        "iteration": [arm.iteration for arm in arms],
        "status": [str(run.status) for run in found.runs],
    }
    means: dict[str, dict[str, float]] = {}
    for mean in found.means:
        means.setdefault(f"{mean.phase}.{mean.split}", {})[mean.run_id] = mean.mean
    factors = sorted({name for arm in arms for name in arm.factors})
    values = {f"factor.{name}": [arm.factors.get(name, math.nan) for arm in arms] for name in factors}
    scores = {name: [of_run.get(run.id, math.nan) for run in found.runs] for name, of_run in sorted(means.items())}
    return pd.DataFrame({name: columns[name] for name in RUN_COLUMNS} | values | scores)


def metrics_frame(
    store: ExperimentStore, run_ids: Collection[str], names: Collection[str] | None = None
) -> pd.DataFrame:
    """Return points in long format, one row each: run_id, name, step, value, recorded_at.

    `value` is NaN where it was not finite.
    """
    frame = _frame(MetricPoint, store.list_metrics(run_ids, names=names))
    return frame.astype({"step": "int64", "value": "float64", "recorded_at": "float64"})


def curves_frame(
    store: ExperimentStore,
    owner_ids: Collection[str],
    names: Collection[str],
    *,
    most: int,
    steps: tuple[int, int] | None = None,
) -> pd.DataFrame:
    """Return metric curves in long format, at most `most` rows per curve, of all steps or those of `steps`.

    Each row covers a span of steps: `step` is the first of them, and `steps` their number. `value` is the mean of their
    values, and `low` and `high` their range. `missing` counts values that were not finite. The other columns are
    run_id (a run or a recorded training), name and recorded_at.
    """
    rows = [
        (item.run_id, item.name, item.first_step, item.last_step - item.first_step + 1, item.mean, item.low, item.high,
         item.missing, item.recorded_at)
        for item in store.sample_metrics(owner_ids, names, most=most, steps=steps)
    ]  # fmt: skip
    columns = ["run_id", "name", "step", "steps", "value", "low", "high", "missing", "recorded_at"]
    numbers = dict.fromkeys(("value", "low", "high", "recorded_at"), "float64")
    return pd.DataFrame(rows, columns=columns).astype(
        {"step": "int64", "steps": "int64", "missing": "int64", **numbers}
    )


def llm_calls_frame(store: ExperimentStore, study_id: str) -> pd.DataFrame:
    """Return one row per LLM call, oldest first, prompt and response included."""
    return _frame(LLMCall, store.list_llm_calls(study_id, limit=None))


def export_study(
    store: ExperimentStore, study_id: str, directory: str | Path, format: ExportFormat = ExportFormat.CSV
) -> list[Path]:
    """Write every table of a study to `directory`, one file each, and return their paths.

    Nested values become JSON text. A file is complete or absent: it is written beside its place and moved there.
    Raises RecordNotFound for an unknown study, StoreUnavailable if the files cannot be written.
    """
    study = store.get_study(study_id)
    runs = {run.id: run for run in store.list_runs(study_id=study_id)}
    names = {experiment.id: experiment.name for experiment in store.list_experiments(study_id)}
    scores = store.list_evaluations(study_id=study_id)
    findings = store.list_findings(study_id=study_id, kinds=list(FindingKind))
    frames = {
        "study": _frame(Study, [study]),
        "hypotheses": _frame(StoredHypothesis, store.list_hypotheses(study_id)),
        "experiments": _frame(Experiment, store.list_experiments(study_id)),
        "runs": runs_frame(store, study_id),
        "metrics": metrics_frame(store, runs.keys()),
        # Scores and findings name their arms, so that each file can be read alone.
        "evaluations": _frame(DetailedEvaluation, scores).assign(
            experiment_id=[runs[item.run_id].experiment_id for item in scores],
            experiment=[names[runs[item.run_id].experiment_id] for item in scores],
            seed=[runs[item.run_id].seed for item in scores],
        ),
        "findings": _frame(Finding, findings).assign(
            experiment=[names.get(item.experiment_id or "") for item in findings],
            baseline=[names.get(item.baseline_id or "") for item in findings],
        ),
        "notebook": _frame(NotebookEntry, store.list_notes(study_id)),
        "program_trials": _frame(ProgramTrial, store.list_program_trials(study_id)),
        "reviews": _frame(Review, store.list_reviews(study_id)),
        "questions": _frame(PlannerQuestion, store.list_questions(study_id)),
        "decisions": _frame(StoredDecision, store.list_decisions(study_id)),
        "llm_calls": llm_calls_frame(store, study_id),
        "events": _frame(Event, store.list_events(study_id, limit=None)),
    }
    target = Path(directory)
    try:
        target.mkdir(parents=True, exist_ok=True)
        return [_write(_flat(frame), target / f"{name}.{format}", format) for name, frame in frames.items()]
    except OSError as error:
        raise StoreUnavailable(f"cannot export to {target}: {error.strerror or error}") from error
    except ImportError as error:
        raise StoreUnavailable("Parquet needs the Python package pyarrow; install it, or export as CSV") from error


def _write(frame: pd.DataFrame, path: Path, format: ExportFormat) -> Path:
    unfinished = path.with_name(f".{path.name}.part")
    if format == ExportFormat.PARQUET:
        frame.to_parquet(unfinished, index=False)
    else:
        frame.to_csv(unfinished, index=False)
    return unfinished.replace(path)


def _flat(frame: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({str(name): _flat_column(column) for name, column in frame.items()})


def _flat_column(column: pd.Series) -> pd.Series:
    values: list[Any] = column.to_list()
    if any(isinstance(value, (Mapping, list, tuple)) for value in values):
        return pd.Series([json.dumps(value, ensure_ascii=False) for value in values], index=column.index)
    kinds: set[type[Any]] = {type(value) for value in values if not _is_missing(value)}
    if len(kinds) > 1:
        # A factor that is a number in one arm and a word in another has no Parquet type.
        return pd.Series([None if _is_missing(value) else str(value) for value in values], index=column.index)
    return column


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _frame(record: type[Any], rows: Iterable[Any]) -> pd.DataFrame:
    return pd.DataFrame([_values(row) for row in rows], columns=_names(record))


def _names(record: type[Any]) -> list[str]:
    return [field.name for field in fields(record)]


def _values(row: Any) -> dict[str, Any]:
    values = {field.name: getattr(row, field.name) for field in fields(row)}
    return {name: str(value) if isinstance(value, StrEnum) else value for name, value in values.items()}
