"""The held-out scores that `swarm train` measures: before the first step, on the way, and at the end.

Place in the flow: training.py asks for them. Each is printed, kept for the figures, and put on the server's record. The
module does not know how episodes are run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import typer

from swarm.cli.held_out_score import HeldOutScore, mean_of, score_of, score_on_record
from swarm.errors import SwarmError

if TYPE_CHECKING:
    from datetime import datetime

    from swarm.cli.train.training_folder import TrainingFolder
    from swarm.cli.train.training_record import TrainingRecord
    from swarm.client import Evaluation, SwarmClient
    from swarm.program.evaluation import StepScore

logger = logging.getLogger(__name__)


class MeasuredScores:
    """The held-out scores of a run. Each is printed to stderr at once and kept with its step for the figures."""

    def __init__(self, client: SwarmClient, evaluate: Callable[[], Evaluation], tasks: int, batch_size: int) -> None:
        """Score with `evaluate` on so many `tasks`. A batch of the job has `batch_size` groups."""
        self._client, self._evaluate = client, evaluate
        self._tasks, self._batch_size = tasks, batch_size
        self._kept: list[tuple[int | None, HeldOutScore]] = []

    def base(
        self, folder: TrainingFolder, record: TrainingRecord, step: int, *, is_own_server: bool
    ) -> tuple[HeldOutScore | None, datetime | None]:
        """Return the score before the first step. Measure and record it if the record has none.

        The time is that of its measurement, if an earlier training measured it. Both are None if steps were trained
        before it was measured. Raise EngineFailure if no episode was scored.
        """
        if record.base_score is not None:
            return self._known(record, "on record")
        if step and (recorded := self._recorded_base()) is not None:
            found = record.model_copy(update={"base_score": recorded})
            folder.write(found)
            return self._known(found, "on the server's record")
        if step:
            _show_score("before", f"not known: {step} steps were trained before it was measured")
            return None, None
        from swarm.cli.train.base_scores import remembered_score

        # Another server may have other files of the model, and be another version.
        remembered = remembered_score(folder.directory.parent, record, self._tasks) if is_own_server else None
        if remembered is not None and (stored := remembered.find()) is not None:
            found = record.model_copy(
                update={"base_score": stored.score, "base_score_remembered_from": stored.measured_at}
            )
            folder.write(found)
            return self._known(found, "remembered")
        step_of_score, score = self.measure("before")
        if step_of_score != 0:
            _show_score("before", "not known: others trained while it was measured")
            return None, None
        folder.write(record.model_copy(update={"base_score": score}))
        if remembered is not None:
            remembered.keep(score)
        return score, None

    def _recorded_base(self) -> HeldOutScore | None:
        """Return the score of step 0 that the server has, if it is of as many tasks. None if there is none."""
        scores = [
            score_on_record(each) for each in self._client.evaluations() if (each.step, each.state) == (0, "done")
        ]
        return next((score for score in scores if score.n + score.failures == self._tasks), None)

    def _known(self, record: TrainingRecord, how: str) -> tuple[HeldOutScore | None, datetime | None]:
        """Show the score of the record and how it is known, and keep it for the figures."""
        score, measured_at = record.base_score, record.base_score_remembered_from
        assert score is not None
        since = "" if measured_at is None else f", measured {measured_at:%Y-%m-%d %H:%M} UTC by an earlier training"
        _show_score("before", f"{score.text}, {how}{since}")
        self._kept.append((0, score))
        return score, measured_at

    def measure(self, when: str) -> tuple[int | None, HeldOutScore]:
        """Return the step and the score of the present weights. Raise EngineFailure if no episode was scored.

        The step is None if the weights changed during the measurement.
        """
        from swarm.program.evaluation import score_at_rest

        found = score_at_rest(self._client, self._evaluate)
        mean_of(found.evaluation)
        score = score_of(found.evaluation)
        self._kept.append((found.step, score))
        self._record(found)
        _show_score(when, score.text)
        return found.step, score

    def _record(self, found: StepScore) -> None:
        """Put a score on the server's record, for the explorer and trackers. A score that is there already stays."""
        evaluation = found.evaluation
        if found.step is None or not evaluation.episode_ids:
            return
        try:
            self._client.record_evaluation(found.step, evaluation.episode_ids, failures=len(evaluation.failures))
        except SwarmError as error:
            # The score counts all the same: it is printed, and in the figures.
            logger.info("the score of step %d is not on the server's record: %s", found.step, error.message)

    def gate(self, every: int) -> Callable[[int], int]:
        """Return a gate for `train`, which calls it before each chunk of tasks. It scores every `every` steps."""
        from swarm.program.evaluation import PeriodicEvaluation

        return PeriodicEvaluation(
            self._client, self._evaluate, every=every, batch_size=self._batch_size, on_score=self._keep
        ).gate

    def figures(self) -> list[dict[str, Any]]:
        return [{"step": step, **score.figures()} for step, score in self._kept]

    def _keep(self, found: StepScore) -> None:
        score = score_of(found.evaluation)
        self._kept.append((found.step, score))
        self._record(found)
        step = "while others train" if found.step is None else f"at step {found.step}"
        # A failed score is no reason to stop the training.
        reason = f"none: {found.evaluation.failures[0].error}" if score.mean is None else score.text
        typer.echo(f"held-out score {step}: {reason}", err=True)


def _show_score(when: str, what: str) -> None:
    typer.echo(f"held-out score {when + ':':8}{what}", err=True)
