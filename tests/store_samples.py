"""Records of a store with values that a test need not name: scores, findings and trainings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from experiments_db import RecordedTraining, Verdict

if TYPE_CHECKING:
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
