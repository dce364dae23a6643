from __future__ import annotations

import math
from pathlib import Path

import pytest
from store_samples import record_finding, record_score

from experiments_db import TRAINING_SECONDS, Experiment, RecordNotFound, Run, RunStatus, StoreUnavailable, Study

TABLES = [
    *("study", "hypotheses", "experiments", "runs", "metrics", "evaluations", "findings", "notebook"),
    *("program_trials", "reviews", "questions", "decisions", "llm_calls", "events"),
]


@pytest.fixture(scope="module")
def frames():
    """The module, which loads pandas."""
    from experiments_db import frames

    return frames


@pytest.fixture
def full(store, study: Study, experiment: Experiment, run: Run) -> Study:
    """A study with one finished run, one planned run of a mixed-type arm, and a line in every table."""
    store.create_hypothesis(study.id, "h1", "higher is better")
    other = store.create_experiment(
        study.id, "lr=auto", factors={"lr": "auto", "kl": True}, job={"lr": [1, 2]}, is_baseline=True, iteration=1
    )
    store.claim_run(other.id, 2, "key-2")
    for status in (RunStatus.LAUNCHING, RunStatus.RUNNING, RunStatus.FINISHED):
        store.update_run(run.id, status=status, exit_reason="done")
    record_score(store, run, "base", 0.25)
    record_score(store, run, "final", 0.75)
    store.record_metrics(run.id, {1: {"reward": 0.5, "loss": math.nan}, 2: {"reward": 0.75}})
    record_finding(store, study, experiment, baseline_id=other.id, p_value=None, p_adjusted=None, run_ids=[run.id])
    store.record_decision(study.id, 1, action="stop", reason="done")
    store.record_llm_call(
        study.id, node="plan", model="m", prompt="p", response=None, input_tokens=1, output_tokens=0, cost_usd=0.0,
        latency_s=0.1, error="timeout",
    )  # fmt: skip
    store.append_event(study.id, "k", 'zeile 1\nzeile, "2"')
    return study


def test_runs_frame_has_factors_scores_and_seconds_of_training(frames, store, full: Study, run: Run) -> None:
    store.record_metrics(run.id, {1: {TRAINING_SECONDS: 2.0}, 2: {TRAINING_SECONDS: 3.0}})
    frame = frames.runs_frame(store, full.id)
    extra = ["factor.kl", "factor.lr", "base.validation", "final.validation"]
    assert list(frame.columns) == [*frames.RUN_COLUMNS, *extra]
    done, planned = frame.to_dict("records")
    assert (done["experiment"], done["status"], done["factor.lr"]) == ("lr=1e-3", "finished", 1e-3)
    assert (done["base.validation"], done["final.validation"]) == (0.25, 0.75)
    assert done["training_s"] == 5.0 and math.isnan(planned["training_s"])
    assert (planned["factor.lr"], planned["is_baseline"], planned["iteration"]) == ("auto", True, 1)
    assert math.isnan(planned["final.validation"])


def test_metrics_frame_is_long_with_nan_for_values_that_were_not_finite(frames, store, full: Study, run: Run) -> None:
    frame = frames.metrics_frame(store, [run.id])
    assert frame["value"].dtype == "float64"
    assert frame["name"].tolist() == ["loss", "reward", "reward"]
    assert math.isnan(frame["value"][0])
    assert frames.metrics_frame(store, [run.id], names=["reward"])["value"].tolist() == [0.5, 0.75]


@pytest.mark.parametrize("format", ["csv", "parquet"])
def test_export_writes_every_table_of_a_study(frames, store, full: Study, tmp_path: Path, format: str) -> None:
    pd = pytest.importorskip("pandas")
    paths = frames.export_study(store, full.id, tmp_path / "out", frames.ExportFormat(format))
    assert [path.stem for path in paths] == TABLES
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(path.name for path in paths)
    read = pd.read_csv if format == "csv" else pd.read_parquet
    tables = {path.stem: read(path) for path in paths}
    assert tables["runs"]["factor.lr"].tolist() == ["0.001", "auto"]
    assert tables["metrics"]["value"].tolist()[1:] == [0.5, 0.75]
    assert tables["events"]["message"].tolist() == ['zeile 1\nzeile, "2"']
    assert tables["experiments"]["job"].tolist() == ['{"lr": 0.001}', '{"lr": [1, 2]}']
    assert tables["evaluations"]["experiment"].tolist() == ["lr=1e-3"] * 2
    assert tables["evaluations"]["seed"].tolist() == [1, 1]
    finding = tables["findings"].to_dict("records")[0]
    assert (finding["experiment"], finding["baseline"], finding["verdict"]) == ("lr=1e-3", "lr=auto", "keep")


def test_export_of_an_empty_study_writes_headers(frames, store, study: Study, tmp_path: Path) -> None:
    headers = {
        path.stem: path.read_text().strip().split(",") for path in frames.export_study(store, study.id, tmp_path)
    }
    assert headers["runs"] == list(frames.RUN_COLUMNS)
    assert headers["metrics"] == ["run_id", "name", "step", "value", "recorded_at"]
    assert {"experiment", "baseline"} <= set(headers["findings"]) and "seed" in headers["evaluations"]


def test_export_that_cannot_be_is_reported(frames, store, study: Study, tmp_path: Path) -> None:
    with pytest.raises(RecordNotFound):
        frames.export_study(store, "st-nowhere", tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailable, match="cannot export"):
        frames.export_study(store, study.id, tmp_path / "file" / "out")
