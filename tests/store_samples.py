"""Records of a store with values that a test need not name: runs, scores, findings and trainings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from experiments_db import RecordedTraining, RunStatus, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from experiments_db import (
        DetailedEvaluation,
        Experiment,
        ExperimentStore,
        Finding,
        Run,
        Study,
    )


def record_score(
    store: ExperimentStore, run: Run, phase: str = "final", mean: float = 0.75, **changes: Any
) -> DetailedEvaluation:
    values: dict[str, Any] = {
        "split": "validation", "metric": "accuracy", "weight_version": 30, "episodes": 64, "successes": 48,
        "stderr": 0.05, "evaluator_hash": "abc",
    }  # fmt: skip
    return store.record_evaluation(run.id, phase=phase, mean=mean, **(values | changes))


def finish_run(store: ExperimentStore, arm: str, seed: int, scores: Mapping[str, float], **changes: Any) -> Run:
    """Store a run of an arm from its launch to its end, with its mean scores by phase."""
    run = store.claim_run(arm, seed, f"{arm}/{seed}", job={"total_steps": 30})
    for status in (RunStatus.LAUNCHING, RunStatus.RUNNING):
        store.update_run(run.id, status=status)
    for phase, mean in scores.items():
        record_score(store, run, phase, mean, **changes)
    return store.update_run(run.id, status=RunStatus.FINISHED, exit_reason="done")


def record_finding(store: ExperimentStore, study: Study, arm: Experiment, **changes: Any) -> Finding:
    values: dict[str, Any] = {
        "iteration": 1, "experiment_id": arm.id, "baseline_id": None, "metric": "accuracy", "split": "validation",
        "effect": 0.2, "ci_low": 0.1, "ci_high": 0.3, "confidence": 0.95, "p_value": 0.01, "p_adjusted": 0.02,
        "verdict": Verdict.KEEP, "method": "paired t over seeds", "run_ids": ["run-1", "run-2"], "summary": "better",
    }  # fmt: skip
    return store.record_finding(study.id, **(values | changes))


def record_state(store: ExperimentStore, key: str, **changes: Any) -> RecordedTraining:
    """Store a training, or its new state."""
    values: dict[str, Any] = {
        "project": "p", "experiment": key, "model": "nano", "engine": "local", "settings": {}, "changes": {},
        "home": "h", "launch_key": None, "status": "ROLLING", "reason": None, "step": 2, "begun_at": 1.0,
    }  # fmt: skip
    return store.record_training(RecordedTraining(key, **(values | changes)))
