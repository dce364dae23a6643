"""Rows are sealed as they are stored: what is changed past the store shows, what the store changes does not."""

from __future__ import annotations

from sqlalchemy import create_engine, text

from experiments_db import Experiment, ExperimentStore, Run, RunStatus, SealedRows, Study, Verdict, open_store


def _check(store: ExperimentStore, study: Study) -> dict[str, SealedRows]:
    return {result.table: result for result in store.check_rows(study.id)}


def _execute(location: str, statement: str) -> None:
    url = location if "://" in location else f"sqlite:///{location}"
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        connection.execute(text(statement))
    engine.dispose()


def _fill(store: ExperimentStore, study: Study, experiment: Experiment, run: Run) -> None:
    store.update_run(run.id, status=RunStatus.LAUNCHING)
    store.update_run(run.id, status=RunStatus.RUNNING)
    store.record_metrics(run.id, {1: {"a": 0.5, "b": float("nan")}, 2: {"a": 0.25}})
    store.record_metrics(run.id, {2: {"a": 0.75, "b": 1.0}})
    store.append_event(study.id, "run.training", "it trains", run_id=run.id)
    store.record_finding(
        study.id, iteration=0, experiment_id=experiment.id, baseline_id=None, metric="m", split="validation",
        effect=0.1, ci_low=0.0, ci_high=0.2, confidence=0.95, p_value=0.1, p_adjusted=0.1,
        verdict=Verdict.INCONCLUSIVE, method="t", run_ids=[run.id], summary="s",
    )  # fmt: skip


def test_everything_the_store_wrote_is_intact(
    store: ExperimentStore, study: Study, experiment: Experiment, run: Run
) -> None:
    _fill(store, study, experiment, run)
    store.update_run(run.id, exit_reason="twice in", diagnosis={"kind": "stall"})
    store.record_metrics(run.id, {1: {"a": 0.5}})

    results = _check(store, study)

    assert results.keys() == {"studies", "experiments", "runs", "metric_points", "events", "findings"}
    assert results["metric_points"].total == 2, "one seal for each step"
    for result in results.values():
        assert result.intact == result.total and not (result.changed or result.missing or result.added), result


def test_changed_missing_and_added_rows_are_named(
    store: ExperimentStore, study: Study, experiment: Experiment, run: Run, location: str
) -> None:
    _fill(store, study, experiment, run)
    _execute(location, "UPDATE runs SET seed = 7")
    _execute(location, "UPDATE metric_points SET value = 0.9 WHERE step = 2 AND name = 'b'")
    _execute(location, "DELETE FROM findings")
    _execute(
        location,
        "INSERT INTO events (study_id, severity, kind, message, payload, created_at)"
        f" VALUES ('{study.id}', 'info', 'k', 'm', '{{}}', 1.0)",
    )

    results = _check(store, study)

    assert results["runs"].changed == (run.id,)
    assert results["metric_points"].changed == (f"{run.id}/2",)
    assert len(results["findings"].missing) == 1 and results["findings"].total == 0
    assert len(results["events"].added) == 1


def test_later_writes_do_not_seal_a_changed_row_anew(
    store: ExperimentStore, study: Study, run: Run, location: str
) -> None:
    store.record_metrics(run.id, {1: {"a": 0.5}})
    _execute(location, "UPDATE runs SET seed = 7")
    _execute(location, "UPDATE metric_points SET value = 0.9")

    store.update_run(run.id, status=RunStatus.LAUNCHING)
    store.record_metrics(run.id, {1: {"b": 0.5}})

    results = _check(store, study)
    assert results["runs"].changed == (run.id,) and results["metric_points"].changed == (f"{run.id}/1",)


def test_rows_of_an_earlier_version_are_counted_as_unsealed(
    store: ExperimentStore, study: Study, run: Run, location: str
) -> None:
    _execute(location, "DELETE FROM row_seals")
    store.update_run(run.id, status=RunStatus.LAUNCHING)
    store.append_event(study.id, "k", "stored with a seal")

    results = _check(store, study)

    assert (results["runs"].unsealed, results["runs"].intact) == (1, 0)
    assert (results["events"].unsealed, results["events"].intact) == (0, 1)
    assert not any(result.changed or result.added for result in results.values())


def test_another_study_has_seals_of_its_own(store: ExperimentStore, study: Study, location: str) -> None:
    other = store.create_study("another", brain="rules")
    _execute(location, f"UPDATE studies SET topic = 'changed' WHERE id = '{other.id}'")

    assert _check(store, other)["studies"].changed == (other.id,)
    with open_store(location, read_only=True) as reader:
        assert _check(reader, study)["studies"].changed == ()
