import math
from pathlib import Path

import pandas as pd
import pytest

from experiments_db import Experiment, ExperimentStore, RecordNotFound, Run, RunStatus, StoreUnavailable, Study, Verdict
from experiments_db.frames import (
    RUN_COLUMNS,
    ExportFormat,
    decisions_frame,
    evaluations_frame,
    events_frame,
    export_study,
    findings_frame,
    llm_calls_frame,
    metrics_frame,
    runs_frame,
    studies_frame,
)

TABLES = [
    *("study", "hypotheses", "experiments", "runs", "metrics", "evaluations", "findings", "notebook"),
    *("program_trials", "reviews", "questions", "decisions", "llm_calls", "events"),
]


def score(store: ExperimentStore, run: Run, phase: str, mean: float) -> None:
    store.record_evaluation(
        run.id,
        phase=phase,
        split="validation",
        metric="accuracy",
        weight_version=0,
        episodes=4,
        successes=int(4 * mean),
        mean=mean,
        stderr=0.1,
        evaluator_hash="h",
    )


@pytest.fixture
def full(store: ExperimentStore, study: Study, experiment: Experiment, run: Run) -> Study:
    """A study with one finished run, one planned run of a mixed-type arm, and a line in every table."""
    store.create_hypothesis(study.id, "h1", "higher is better")
    other = store.create_experiment(
        study.id, "lr=auto", factors={"lr": "auto", "kl": True}, job={"lr": [1, 2]}, is_baseline=True, iteration=1
    )
    store.claim_run(other.id, 2, "key-2")
    for status in (RunStatus.LAUNCHING, RunStatus.RUNNING, RunStatus.FINISHED):
        store.update_run(run.id, status=status, exit_reason="done")
    score(store, run, "base", 0.25)
    score(store, run, "final", 0.75)
    store.record_metrics(run.id, {1: {"reward": 0.5, "loss": math.nan}, 2: {"reward": 0.75}})
    store.record_finding(
        study.id,
        iteration=1,
        experiment_id=experiment.id,
        baseline_id=other.id,
        metric="accuracy",
        split="validation",
        effect=0.5,
        ci_low=0.1,
        ci_high=0.9,
        confidence=0.95,
        p_value=None,
        p_adjusted=None,
        verdict=Verdict.KEEP,
        method="m",
        run_ids=[run.id],
        summary="s",
    )
    store.record_decision(study.id, 1, action="stop", reason="done")
    store.record_llm_call(
        study.id,
        node="plan",
        model="m",
        prompt="p",
        response=None,
        input_tokens=1,
        output_tokens=0,
        cost_usd=0.0,
        latency_s=0.1,
        error="timeout",
    )
    store.append_event(study.id, "k", 'zeile 1\nzeile, "2"')
    return study


def test_runs_frame_has_factors_scores_and_durations(store: ExperimentStore, full: Study) -> None:
    frame = runs_frame(store, full.id)
    extra = ["factor.kl", "factor.lr", "base.validation", "final.validation"]
    assert list(frame.columns) == [*RUN_COLUMNS, *extra]
    done, planned = frame.to_dict("records")
    assert (done["experiment"], done["status"], done["factor.lr"]) == ("lr=1e-3", "finished", 1e-3)
    assert (done["base.validation"], done["final.validation"]) == (0.25, 0.75)
    assert done["duration_s"] > 0
    assert (planned["factor.lr"], planned["is_baseline"], planned["iteration"]) == ("auto", True, 1)
    assert math.isnan(planned["final.validation"])


def test_frames_of_an_empty_study_keep_their_columns(store: ExperimentStore, study: Study) -> None:
    assert list(runs_frame(store, study.id).columns) == list(RUN_COLUMNS)
    assert list(metrics_frame(store, []).columns) == ["run_id", "name", "step", "value", "recorded_at"]
    for frame in (evaluations_frame, findings_frame, decisions_frame, llm_calls_frame, events_frame):
        assert frame(store, study.id).empty
        assert "id" in frame(store, study.id).columns


def test_metrics_frame_is_long_with_nan_for_values_that_were_not_finite(
    store: ExperimentStore, full: Study, run: Run
) -> None:
    frame = metrics_frame(store, [run.id])
    assert frame["value"].dtype == "float64"
    assert frame["name"].tolist() == ["loss", "reward", "reward"]
    assert math.isnan(frame["value"][0])
    assert metrics_frame(store, [run.id], names=["reward"])["value"].tolist() == [0.5, 0.75]


def test_evaluations_and_findings_name_their_arms(store: ExperimentStore, full: Study) -> None:
    evaluations = evaluations_frame(store, full.id)
    assert evaluations["experiment"].tolist() == ["lr=1e-3"] * 2
    assert evaluations["seed"].tolist() == [1, 1]
    finding = findings_frame(store, full.id).to_dict("records")[0]
    assert (finding["experiment"], finding["baseline"], finding["verdict"]) == ("lr=1e-3", "lr=auto", "keep")


def test_studies_frame_counts_runs_by_status(store: ExperimentStore, full: Study) -> None:
    store.create_study("empty", planner="rules")
    frame = studies_frame(store)
    assert frame["topic"].tolist() == ["empty", full.topic]
    assert frame["runs"].tolist() == [0, 2]
    assert frame["runs_finished"].tolist() == [0, 1]
    assert frame["runs_planned"].tolist() == [0, 1]


@pytest.mark.parametrize("format", list(ExportFormat))
def test_export_writes_every_table_of_a_study(
    store: ExperimentStore, full: Study, tmp_path: Path, format: ExportFormat
) -> None:
    paths = export_study(store, full.id, tmp_path / "out", format)
    assert [path.stem for path in paths] == TABLES
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(path.name for path in paths)
    read = pd.read_csv if format == ExportFormat.CSV else pd.read_parquet
    tables = {path.stem: read(path) for path in paths}
    assert tables["runs"]["factor.lr"].tolist() == ["0.001", "auto"]
    assert tables["metrics"]["value"].tolist()[1:] == [0.5, 0.75]
    assert tables["events"]["message"].tolist() == ['zeile 1\nzeile, "2"']
    assert tables["experiments"]["job"].tolist() == ['{"lr": 0.001}', '{"lr": [1, 2]}']


def test_export_of_an_empty_study_writes_headers(store: ExperimentStore, study: Study, tmp_path: Path) -> None:
    paths = export_study(store, study.id, tmp_path)
    runs = pd.read_csv(paths[TABLES.index("runs")])
    assert list(runs.columns) == list(RUN_COLUMNS)
    assert runs.empty


def test_export_that_cannot_be_is_reported(store: ExperimentStore, study: Study, tmp_path: Path) -> None:
    with pytest.raises(RecordNotFound):
        export_study(store, "st-nowhere", tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailable, match="cannot export"):
        export_study(store, study.id, tmp_path / "file" / "out")
