"""The held-out scores of a training: the base score, later ones, and the step with the best one."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from pydantic import BaseModel, ConfigDict, ValidationError

from swarm import __version__
from swarm.cli.held_out_score import HeldOutScore, HeldOutStep, mean_of, score_of, score_on_record
from swarm.cli.train.training_folder import TrainingFolder, TrainingRecord, digest_of_files, files_below
from swarm.digest import digest_of
from swarm.errors import CheckpointError, EngineFailure, NotFound, SwarmError
from swarm.job import NOT_OF_SAMPLING

if TYPE_CHECKING:
    from swarm.client import Evaluation, SwarmClient
    from swarm.job import TrainJob
    from swarm.program.gates import StepScore

logger = logging.getLogger(__name__)

FOLDER = "base-scores"
"""The folder of the base scores, beside the folders of the trainings."""
DIGESTED_BYTES = 2**30
"""The size up to which a model is read for its digest, which takes about a second. A larger one is measured anew."""


def scored_steps(client: SwarmClient) -> list[HeldOutStep]:
    """Return the scores on the server's record of weights that the run still has, whoever measured them."""
    done = [each for each in client.evaluations() if each.state == "done"]
    return [
        HeldOutStep(each.step, score_on_record(each), datetime.fromtimestamp(each.ended_at or each.due_at, UTC))
        for each in done
    ]


def best_of(scores: Iterable[HeldOutStep], last: HeldOutStep) -> HeldOutStep:
    """Return the best score of a trained step. Of equally good ones it is the last, and otherwise the newest."""
    best = last
    if last.step is None or last.score.mean is None:
        return last
    for each in sorted(scores, key=lambda scored: scored.step or 0):
        is_earlier = each.step is not None and each.step < last.step
        if not is_earlier or each.score.mean is None or best.score.mean is None:
            continue
        if each.score.mean > best.score.mean or (best is not last and each.score.mean == best.score.mean):
            best = each
    return best


def end_at(client: SwarmClient, step: int) -> str | None:
    """Load the weights of an earlier step, and end the run there. Return why that is impossible, or None."""
    from swarm.program.gates import until_rest

    until_rest(client)
    try:
        client.load_checkpoint(step, end=True)
    except (NotFound, CheckpointError) as error:
        return error.message
    return None


class MeasuredScores:
    """The held-out scores of a run, each measured once. Each is printed to stderr, recorded and in the figures."""

    def __init__(
        self,
        client: SwarmClient,
        evaluate: Callable[[int], Evaluation],
        tasks: int,
        job: TrainJob,
        folder: TrainingFolder,
        ks: Sequence[int] = (1,),
        initial_step: int = 0,
    ) -> None:
        """Score with `evaluate`, which takes a number of attempts, on so many `tasks`.

        Before the first step, each task is attempted as often as the largest of `ks`. The run began at `initial_step`.
        The scores before and after are recorded in `folder`.
        """
        self._client, self._evaluate = client, evaluate
        self._tasks, self._job, self._folder, self._ks = tasks, job, folder, ks
        self.initial_step = initial_step
        self._kept: list[HeldOutStep] = []

    def base(self, record: TrainingRecord, step: int, *, is_own_server: bool) -> TrainingRecord:
        """Return the record with the score before the first step, which is measured if no record has it.

        It is also measured if the score on record has fewer attempts. The score stays None if steps were trained before
        it was measured. Raise EngineFailure if no episode was scored.
        """
        attempts, first = max(self._ks), self.initial_step
        is_begun = step > first
        if record.base_score is not None and (is_begun or record.base_score.attempts >= attempts):
            return self._with_base(record, "on record")
        recorded = self._on_server(first)
        if recorded is not None and (is_begun or recorded.score.attempts >= attempts):
            return self._with_base(record.model_copy(update={"base_score": recorded.score}), "on the server's record")
        if is_begun:
            _show_score("before", f"not known: {step - first} steps were trained before it was measured")
            return record
        # Another server may have other files of the model, and be another version.
        remembered = remembered_score(self._folder.directory.parent, record, self._tasks, self._ks)
        remembered = remembered if is_own_server else None
        if remembered is not None and (stored := remembered.find()) is not None:
            known = {"base_score": stored.score, "base_score_remembered_from": stored.measured_at}
            return self._with_base(record.model_copy(update=known), "remembered")
        measured = self._keep(self._measure(attempts), self._ks)
        if measured.step != first:
            _show_score("before", "not known: others trained while it was measured")
            return record
        found = self._written(record.model_copy(update={"base_score": measured.score}))
        _show_score("before", measured.score.text)
        if remembered is not None:
            remembered.keep(measured.score)
        return found

    def after_demonstrations(self) -> HeldOutScore | None:
        """Train the demonstrations of the job and return the score of what they made of the model, if reward follows.

        A score that the server has is not measured again.
        """
        from swarm.program.gates import until_demonstrated

        steps, total = self._job.sft_steps, self._job.total_steps
        if not steps or until_demonstrated(self._client, self._job).step != steps or steps == total:
            return None
        if (recorded := self._on_server(steps)) is None:
            recorded = self._keep(self._measure())
        _show_score("now", f"{recorded.score.text}, after the demonstrations")
        return recorded.score

    def final(self, record: TrainingRecord, step: int) -> HeldOutStep:
        """Return the score of the present weights, those of `step`, which is measured if no record has it.

        Raise EngineFailure if no episode was scored.
        """
        recorded = [*self.of_end(record, step)[:1], *filter(None, [self._on_server(step)])]
        if not recorded:
            measured = self._keep(self._measure())
            _show_score("after", measured.score.text)
            return measured
        self._kept.append(recorded[0])
        _show_score("after", f"{recorded[0].score.text}, on record{_since(recorded[0].measured_at)}")
        return recorded[0]

    def with_final(self, record: TrainingRecord, ended: HeldOutStep) -> TrainingRecord:
        """Return the record with the score of the weights at which the training ended, unless it has that."""
        if ended.step is None or ended in record.final_scores:
            return record
        return self._written(record.model_copy(update={"final_scores": (*record.final_scores, ended)}))

    def again(self, record: TrainingRecord) -> TrainingRecord:
        """Return the record with one more score of the present weights. The server's record keeps the first alone."""
        found = self._measure()
        measured = HeldOutStep(found.step, score_of(found.evaluation), datetime.now(UTC))
        return self.with_final(record, measured)

    def of_end(self, record: TrainingRecord, step: int | None) -> list[HeldOutStep]:
        """Return the recorded scores of the weights after the last step, of as many tasks."""
        return [each for each in record.final_scores if each.step == step and each.score.tasks == self._tasks]

    def gate(self, every: int) -> Callable[[int], int]:
        """Return a gate for `train`, which calls it before each chunk of tasks. It scores every `every` steps."""
        from swarm.program.gates import PeriodicEvaluation

        return PeriodicEvaluation(
            self._client,
            partial(self._evaluate, 1),
            every=every,
            batch_size=self._job.batch_size,
            on_score=self._show_on_the_way,
        ).gate

    def merged_with(self, recorded: Iterable[HeldOutStep]) -> list[dict[str, Any]]:
        """Return the figures of all scores by step: those measured here, and those that only the server has."""
        known = {each.step for each in self._kept}
        scores = [*self._kept, *(each for each in recorded if each.step not in known)]
        figures = [{"step": each.step, **each.score.figures()} for each in scores]
        return sorted(figures, key=lambda score: math.inf if score["step"] is None else score["step"])

    def _on_server(self, step: int) -> HeldOutStep | None:
        """Return the score of a step that the server has, if it is of as many tasks. None if there is none."""
        # With `eval_env`, the server's record has scores of another environment.
        scores = scored_steps(self._client) if self._job.eval_env is None else []
        return next((each for each in scores if each.step == step and each.score.tasks == self._tasks), None)

    def _with_base(self, record: TrainingRecord, how: str) -> TrainingRecord:
        """Write a record with a base score that is known. Show how it is known, and keep it for the figures."""
        assert record.base_score is not None
        measured_at = record.base_score_remembered_from
        since = "" if measured_at is None else f"{_since(measured_at)} by an earlier training"
        _show_score("before", f"{record.base_score.text}, {how}{since}")
        self._kept.append(HeldOutStep(self.initial_step, record.base_score, measured_at or datetime.now(UTC)))
        return self._written(record)

    def _written(self, record: TrainingRecord) -> TrainingRecord:
        self._folder.write(record)
        return record

    def _measure(self, attempts: int = 1) -> StepScore:
        """Return the score of the present weights. Raise EngineFailure if no episode was scored."""
        from swarm.program.gates import score_at_rest

        found = score_at_rest(self._client, partial(self._evaluate, attempts))
        mean_of(found.evaluation)
        return found

    def _keep(self, found: StepScore, ks: Sequence[int] = (1,)) -> HeldOutStep:
        """Keep a score, also on the server's record, for the explorer and trackers. A score that is there stays."""
        evaluation = found.evaluation
        measured = HeldOutStep(found.step, score_of(evaluation, ks), datetime.now(UTC))
        self._kept.append(measured)
        if found.step is None or not evaluation.episode_ids:
            return measured
        try:
            self._client.record_evaluation(found.step, evaluation.episode_ids, failures=len(evaluation.failures))
        except SwarmError as error:
            # The score counts all the same: it is printed, and in the figures.
            logger.info("the score of step %d is not on the server's record: %s", found.step, error.message)
        return measured

    def _show_on_the_way(self, found: StepScore) -> None:
        score = self._keep(found).score
        step = "while others train" if found.step is None else f"at step {found.step}"
        # A failed score is no reason to stop the training.
        reason = f"none: {found.evaluation.failures[0].error}" if score.mean is None else score.text
        typer.echo(f"held-out score {step}: {reason}", err=True)


def show_again(scores: Iterable[HeldOutStep]) -> None:
    """Print the later scores of a training's end to stderr."""
    for each in scores:
        _show_score("again", f"{each.score.text}{_since(each.measured_at)}")


def show_start(score: HeldOutScore, job: TrainJob, *, is_next: bool, has_own_reward: bool) -> None:
    """Print to stderr pass@k of a score. If training by reward `is_next`, also print what is in its way."""
    from swarm.program.start import describe_start, find_obstacle

    if score.mean is None or not score.pass_at_k:
        return
    when = "before training by reward" if is_next else "before the demonstrations"
    typer.echo(f"{when}: {describe_start(score.pass_at_k, job.num_repeat)}", err=True)
    obstacle = find_obstacle(
        score.pass_at_k, job.num_repeat, mean=score.mean, high=score.high, stderr=score.stderr
    )  # fmt: skip
    if is_next and obstacle is not None:
        by = " (by the environment's grades; the reward of the program may tell more)" if has_own_reward else ""
        typer.echo(f"swarm: {obstacle}{by}", err=True)


def _show_score(when: str, what: str) -> None:
    typer.echo(f"held-out score {when + ':':8}{what}", err=True)


def _since(measured_at: datetime) -> str:
    return f", measured {measured_at:%Y-%m-%d %H:%M} UTC"


class StoredBaseScore(BaseModel):
    """A base score with the time of its measurement."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    measured_at: datetime
    score: HeldOutScore


class RememberedScore:
    """The place of one base score, a file named by the digest of all that decides the score.

    An earlier training may have stored the score there. A file that cannot be read or written costs a measurement, and
    ends no training.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def find(self) -> StoredBaseScore | None:
        """Return the stored score, or None if there is none. Report a file that cannot be read."""
        try:
            return StoredBaseScore.model_validate_json(self._path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is damaged or of another version"
            typer.echo(f"swarm: {self._path} cannot be read: {reason}; the score is measured anew", err=True)
            return None

    def keep(self, score: HeldOutScore) -> None:
        """Store a score that was just measured, unless an attempt failed. Report a file that cannot be written."""
        if score.mean is None or score.failures or score.broken:
            return
        stored = StoredBaseScore(measured_at=datetime.now(UTC), score=score)
        # Two trainings may store the same score at the same time, each with a draft of its own.
        draft = self._path.with_suffix(f".{os.getpid()}.new")
        try:
            self._path.parent.mkdir(exist_ok=True)
            draft.write_text(stored.model_dump_json(indent=2), encoding="utf-8")
            draft.replace(self._path)
        except OSError as error:
            reason = f"{self._path} cannot be written: {error.strerror}"
            typer.echo(f"swarm: {reason}; the next training measures the score anew", err=True)


def remembered_score(
    trainings: Path, record: TrainingRecord, episodes: int, ks: Sequence[int] = (1,)
) -> RememberedScore | None:
    """Return the place of the base score of a training, with pass@k for `ks`.

    Return None for a model that is too large to be digested, and for weights that are not the model's. `trainings` is
    the folder that has the folders of the trainings.
    """
    from swarm.model_path import resolve_model
    from swarm.program.training import EVAL_TEMPERATURE

    if record.job.resume_from is not None:
        return None
    try:
        files = files_below(resolve_model(record.job.model))
        if sum(path.stat().st_size for path in files) > DIGESTED_BYTES:
            return None
        model = digest_of_files(files, whole_up_to=DIGESTED_BYTES)
    except (OSError, EngineFailure):
        return None
    # The settings are those that may change what the untrained model says. The model counts by its content.
    settings = record.job.model_dump(mode="json", exclude={*NOT_OF_SAMPLING, "model"})
    assert record.environment is not None and record.program is not None, "a score is of an environment"
    tasks = (record.environment.name, record.environment.digest, record.program.digest, episodes, tuple(ks))
    digest = digest_of((__version__, model, *tasks, EVAL_TEMPERATURE, settings))
    return RememberedScore(trainings / FOLDER / f"{digest}.json")
