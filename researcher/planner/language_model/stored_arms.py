"""What the database has of an arm that a prompt needs: its program, and why it failed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from experiments_db import Author, Experiment, ExperimentStatus, ExperimentStore, RunStatus
from researcher.plan import ArmProgram

MAX_MESSAGES = 12
"""The messages of a broken attempt that are shown, the last ones."""
MAX_MESSAGE_CHARS = 1_500


@dataclass(frozen=True, slots=True)
class StoredArms:
    """The arms of one study on record."""

    store: ExperimentStore
    study_id: str

    def find_program(self, arm: str) -> ArmProgram | None:
        """Return the program of an arm as it stands now, after any repair; None if it has none."""
        found = self.store.find_experiment(self.study_id, arm)
        if found is None or not found.program_code:
            return None
        return ArmProgram(arm, found.program_code, trusted=found.author is Author.PACKAGE)

    def describe_failure(self, arm: str) -> str:
        """Return why an arm failed: the check's reason, failed runs, and the attempts that broke in its trials."""
        found = self.store.find_experiment(self.study_id, arm)
        return "" if found is None else "\n\n".join(self._failures(found))

    def _failures(self, experiment: Experiment) -> Iterator[str]:
        if experiment.status is ExperimentStatus.INVALID and experiment.note:
            yield experiment.note
        for run in self.store.list_runs(experiment_id=experiment.id):
            if run.status is RunStatus.FAILED and run.exit_reason:
                yield f"A run of seed {run.seed} failed: {run.exit_reason}"
        for trial in self.store.list_program_trials(self.study_id, experiment_id=experiment.id)[-1:]:
            if trial.error:
                yield f"{trial.broken} of {trial.attempts} attempts broke in its trial: {trial.error}"
            if broken := next((item for item in trial.transcripts if item.get("error")), None):
                yield f"A broken attempt:\n{_show_messages(broken.get('messages') or [])}"


def _show_messages(messages: Any) -> str:
    lines = [f"{item.get('role')}: {str(item.get('content'))[:MAX_MESSAGE_CHARS]}" for item in messages]
    return "\n".join(lines[-MAX_MESSAGES:])
