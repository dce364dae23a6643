"""The command `swarm train`, which trains a program on an environment and scores it before and after."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from swarm.cli import options
from swarm.cli.failures import failures_in_one_line
from swarm.cli.held_out_score import TOO_FEW_TASKS, HeldOutScore, count_tasks, warning_of
from swarm.cli.job import parse_settings
from swarm.cli.own_server import server_at
from swarm.cli.scoring import evaluator_beside
from swarm.cli.train.training_job import STEPS
from swarm.errors import BadRequest
from swarm.models import MODEL_DESCRIPTION

if TYPE_CHECKING:
    from swarm.cli.held_out_score import HeldOutStep
    from swarm.cli.train.expectation import Expectation
    from swarm.cli.train.measurement import TrainingMeter
    from swarm.cli.train.scores import MeasuredScores
    from swarm.cli.train.training_folder import TrainingFolder, TrainingRecord
    from swarm.client import Evaluation, SwarmClient
    from swarm.client.fault_log import FaultLog
    from swarm.environments import Environment
    from swarm.job import TrainJob
    from swarm.prices import Prices
    from swarm.program import Program
    from swarm.program.training import TrainingResult
    from swarm.schemas import GuardView, Status

ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        "--train-model",
        help=f"Model: {MODEL_DESCRIPTION} (default: the job's, or else nano for a bundled environment and micro for any"
        " other).",
    ),
]
OriginOption = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="CHECKPOINT|RUN|EXPORT",
        help="Begin with the weights of a checkpoint, of the newest one of a run (a training's name, or"
        " project/experiment), or of an export.",
    ),
]
ResumeOption = Annotated[
    bool, typer.Option("--resume", help="With --from: go on with optimizer and step as well, not with weights alone.")
]
NameOption = Annotated[
    str | None, typer.Option(help="Name of the training (default: the job's experiment_name, or the environment's).")
]
EvalEpisodesOption = Annotated[int, typer.Option(min=1, max=100_000, help="Held-out tasks of each score.")]
FewTasksOption = Annotated[
    bool, typer.Option("--few-tasks", help=f"Score on fewer than {TOO_FEW_TASKS} held-out tasks all the same.")
]
AllowOverlapOption = Annotated[
    bool,
    typer.Option("--allow-overlap", help="Train on demonstrations that repeat held-out tasks all the same."),
]
FreshOption = Annotated[
    bool, typer.Option("--fresh", help="Begin anew; the training of this name is kept under another one.")
]
FolderOption = Annotated[
    Path | None, typer.Option(help="Directory of the training (default: $SWARM_HOME/train/NAME, runs/train/NAME).")
]


def train(
    env: options.EnvOption,
    job: Annotated[Path | None, typer.Option(help="A job.yaml; without one, the default job of 60 steps.")] = None,
    program: Annotated[Path | None, typer.Option(help="A Python file with agent, reward or schedule.")] = None,
    model: ModelOption = None,
    origin: OriginOption = None,
    resume: ResumeOption = False,
    name: NameOption = None,
    fresh: FreshOption = False,
    url: Annotated[
        str | None, typer.Option(envvar="SWARM_URL", help="A running server; without one, a server for this run.")
    ] = None,
    home: FolderOption = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of the job and of the order of tasks (default: the job's).")
    ] = None,
    changed: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A setting of the job, such as sft_steps=20; repeatable."),
    ] = None,
    allow_overlap: AllowOverlapOption = False,
    workers: options.WorkersOption = 64,
    eval_episodes: EvalEpisodesOption = 200,
    few_tasks: FewTasksOption = False,
    eval_every: Annotated[
        int | None, typer.Option(min=1, help="Score every so many steps as well (default: before and after).")
    ] = None,
    score_again: Annotated[
        bool, typer.Option("--score-again", help="Score the end of the training once more, beside the score on record.")
    ] = False,
    k: options.KOption = None,
    estimate: Annotated[
        bool,
        typer.Option("--estimate", help="Only say what it will take, from a few steps that are run and removed."),
    ] = False,
    prices: options.PricesOption = None,
    no_record: options.NoRecordOption = False,
    log: options.LogOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Train on an environment: the held-out score before, every step, and the held-out score after.

    Run again with the same job, environment and program, it goes on where it was, and with more total_steps it goes
    further. A finished training prints the scores on record. Anything else is another training, which --name or
    --fresh begins.
    """
    with failures_in_one_line():
        from swarm.processes.imports import plain_httpx

        with plain_httpx():
            from swarm.cli.train.origin import find_origin, require_outside
            from swarm.cli.train.overlap import require_not_held_out
            from swarm.cli.train.training_job import job_of
            from swarm.client.server_calls import name_by_digest
            from swarm.environments.server import open_environment
            from swarm.program.roles import refuse_roles

        if url is not None and log:
            raise BadRequest("the server of --url records its trainings itself: give it --log", param="log")
        chosen, ks, settings = options.program_of(program, env), options.ks_of(k), parse_settings(changed or [])
        refuse_roles(
            "--url", url, f"python -m swarm.program {program or 'PROGRAM'} --server ROLE=URL --job ROLE=FILE ..."
        )
        with open_environment(env) as environment:
            if estimate and resume:
                raise BadRequest("--estimate runs steps from the first one on: leave --resume out", param="estimate")
            begun_at = find_origin(origin, job, resume=resume)
            train_job, demonstrations = name_by_digest(
                job_of(
                    job, env, environment.name, chosen, begun_at, model=model, name=name, seed=seed, settings=settings
                )
            )
            if fresh:
                require_outside(begun_at, home or options.training_folder(train_job.experiment_name))
            require_not_held_out(environment, demonstrations, allowed=allow_overlap)
            tasks = count_held_out_tasks(environment, eval_episodes, few_tasks=few_tasks)
            sinks = options.chosen_sinks(no_record, log)
            training = Training(
                env, environment, program, chosen, train_job, tasks, eval_every, score_again, ks, workers, sinks,
                demonstrations, options.prices_of(prices, train_job),
            )  # fmt: skip
            if estimate:
                training.show_estimate(home, url, as_json=as_json)
                return
            figures = training.carry_out_in(home, url, fresh=fresh)
        typer.echo(json.dumps(figures) if as_json else in_one_line(figures))


@dataclass(frozen=True, slots=True)
class Training:
    """The parsed arguments of the command.

    `env` and `file` are the environment and the program as the user named them. `tasks` is the number of held-out tasks
    of each score. With `score_again`, the end of the training is scored once more. `ks` are those of pass@k before the
    first step. `workers` is the number of concurrent episodes. A new server records the training in `sinks`. The job
    names `demonstrations` by their digest. `prices` may be unknown.
    """

    env: str
    environment: Environment
    file: Path | None
    program: Program
    job: TrainJob
    tasks: int
    eval_every: int | None
    score_again: bool
    ks: tuple[int, ...]
    workers: int
    sinks: list[str]
    demonstrations: Path | None
    prices: Prices | None

    def show_estimate(self, home: Path | None, url: str | None, *, as_json: bool) -> None:
        """Print what the training will take, from a trial. Raise BadRequest with a `url`, whose model would change."""
        from swarm.cli.train.trial import run_trial

        if url is not None:
            raise BadRequest("--estimate trains some steps on a server of its own: leave --url out", param="url")
        directory = home or options.training_folder(self.job.experiment_name)
        measured = run_trial(
            self.job, self.environment, self.program, self.demonstrations, tasks=self.tasks, workers=self.workers,
            beside=directory.parent,
        )  # fmt: skip
        estimate = self._expect(directory, self._record(), 0, 0).by_steps(measured)
        typer.echo(json.dumps(estimate.figures()) if as_json else f"{self.env}: {estimate.text}")

    def _expect(
        self, directory: Path, record: TrainingRecord, step: int, initial_step: int, *, has_own_server: bool = True
    ) -> Expectation:
        from swarm.cli.train.expectation import expect

        return expect(
            directory, record, self.job, step=step, initial_step=initial_step, tasks=self.tasks, ks=self._ks_before(),
            eval_every=self.eval_every, workers=self.workers, prices=self.prices, has_own_server=has_own_server,
        )  # fmt: skip

    def carry_out_in(self, home: Path | None, url: str | None, *, fresh: bool) -> dict[str, Any]:
        """Carry the training out in the folder `home`, by default that of its name, and return its figures."""
        from swarm.cli.train.training_folder import open_named_folder

        wanted = self._record()
        with open_named_folder(home, self.job.experiment_name, fresh=fresh) as folder:
            return self._carry_out(folder, wanted, url, fresh=fresh)

    def _record(self) -> TrainingRecord:
        from swarm.cli.train.training_folder import new_record

        return new_record(self.job, self.env, self.environment, options.program_file(self.file, self.env))

    def _carry_out(
        self, folder: TrainingFolder, wanted: TrainingRecord, url: str | None, *, fresh: bool
    ) -> dict[str, Any]:
        """Train from the present step to the end, and return the figures of the whole training.

        Raise Conflict if the folder or the server has another training.
        """
        from swarm.cli.train.expectation import step_printer
        from swarm.cli.train.measurement import TrainingMeter
        from swarm.cli.train.training_run import start_run, take_up
        from swarm.client import SwarmClient
        from swarm.client.fault_log import FaultLog
        from swarm.processes.child import own_name
        from swarm.program.limits import reply_limit
        from swarm.program.steps import watch_steps

        record = take_up(folder, wanted, has_own_server=url is None)
        directory = folder.directory
        meter = TrainingMeter(self.job, self.workers, directory if url is None else None)
        with (
            server_at(url, directory, self.job, sinks=self.sinks) as address,
            SwarmClient(address, token=options.token_of("commander"), client_id=own_name()) as client,
            FaultLog() as faults,
            meter.memory(),
        ):
            if self.demonstrations is not None:
                client.add_demonstrations(self.demonstrations)
            status = start_run(client, folder, record, self.job, fresh=fresh)
            if not self._is_over(status):
                # Scores of an earlier end are not those of the next one.
                record = record.model_copy(update={"final_scores": ()})
            initial_step = client.job().initial_step or 0
            self._report_progress(directory, status, initial_step)
            expected = self._expect(directory, record, status.step, initial_step, has_own_server=url is None)
            expected.show()
            scores = self._scores(client, meter.timed(self._evaluate(client, faults)), folder, initial_step)
            record = scores.base(record, status.step, is_own_server=url is None)
            if status.step == initial_step:
                self._show_start(record.base_score, is_next=not self.job.sft_steps)
            with (
                evaluator_beside(self.job, self.env, self.file, address, directory),
                watch_steps(client, step_printer(client, meter, expected, status.step), show_fault),
                meter.training(),
            ):
                done = self._train(client, scores, meter, faults)
            scored = self._score_end(client, scores, record)
            changes, found, limit = _changes(client), _faults(client), reply_limit(client, self.environment)
            measured = meter.read(client, status.step, done.steps)
            if url is None:
                client.save_checkpoint()
        took = None if measured is None else meter.complete(measured, done.steps - initial_step)
        return {
            "env": self.environment.name, "digest": self.environment.digest, "program": self.program.name,
            "steps": done.steps, "failed_episodes": done.failures,
            "max_response_length": limit if limit < self.environment.max_tokens else None,
            **scored, "guard": found, "changes": changes, "home": None if url else str(directory),
            "took": None if took is None else expected.keep(took, folder, is_own=url is None),
        }  # fmt: skip

    def _train(
        self, client: SwarmClient, scores: MeasuredScores, meter: TrainingMeter, faults: FaultLog
    ) -> TrainingResult:
        from swarm.program import train as train_program

        gate = None if self.eval_every is None else scores.gate(self.eval_every)
        with meter.demonstrating():
            start = scores.after_demonstrations()
        self._show_start(start, is_next=True)
        return train_program(
            client, self.environment, self.job, self.program, max_workers=self.workers, gate=gate, faults=faults
        )

    def _score_end(self, client: SwarmClient, scores: MeasuredScores, record: TrainingRecord) -> dict[str, Any]:
        """Score the end of the training, unless that is on record, and return the figures of all scores."""
        from swarm.cli.train.scores import scored_steps, show_again
        from swarm.program.gates import until_rest

        last = scores.final(record, until_rest(client).step)
        recorded = scored_steps(client)
        # A training with a score of its end ends there. One that is scored again may be worse by chance.
        # A run cannot end with the weights that it began with.
        trained = [each for each in recorded if (each.step or 0) > scores.initial_step]
        ended = last if record.final_scores else self._end_at_best(client, trained, last)
        record = scores.with_final(record, ended)
        record = scores.again(record) if self.score_again else record
        later = [each for each in scores.of_end(record, ended.step) if each != ended]
        show_again(later)
        before, remembered_from = record.base_score, record.base_score_remembered_from
        return {
            "before": None if before is None else before.figures(),
            "before_remembered_from": None if remembered_from is None else remembered_from.isoformat(),
            "after": ended.score.figures(), "ended_at": ended.step,
            "scored_again": [{"measured_at": each.measured_at.isoformat(), **each.score.figures()} for each in later],
            "evaluations": scores.merged_with(recorded),
        }  # fmt: skip

    def _show_start(self, score: HeldOutScore | None, *, is_next: bool) -> None:
        from swarm.cli.train.scores import show_start

        if score is not None:
            show_start(score, self.job, is_next=is_next, has_own_reward=self.program.reward is not None)

    def _scores(
        self, client: SwarmClient, evaluate: Callable[[int], Evaluation], folder: TrainingFolder, initial_step: int
    ) -> MeasuredScores:
        """Return the scores of the run. Before its first step they also tell of pass@k for a group, if that is free."""
        from swarm.cli.train.scores import MeasuredScores

        return MeasuredScores(client, evaluate, self.tasks, self.job, folder, self._ks_before(), initial_step)

    def _ks_before(self) -> list[int]:
        return sorted({*self.ks, *(k for k in (1, self.job.num_repeat) if k <= max(self.ks, default=1))})

    def _evaluate(self, client: SwarmClient, faults: FaultLog) -> Callable[[int], Evaluation]:
        """Return a function that measures the served weights on the held-out tasks, with so many attempts at each."""
        from swarm.program import measure

        def evaluate(attempts: int) -> Evaluation:
            return measure(
                client,
                self.environment,
                self.program,
                episodes=self.tasks,
                attempts=attempts,
                max_workers=self.workers,
                faults=faults,
            )

        return evaluate

    def _end_at_best(self, client: SwarmClient, scores: list[HeldOutStep], last: HeldOutStep) -> HeldOutStep:
        """End the run at the step with the best score, if it is not the last one. Return the score where it ends."""
        from swarm.cli.train.scores import best_of, end_at

        best = last if self.job.has_fixed_end else best_of(scores, last)
        if best is last or best.step is None:
            return last
        if (reason := end_at(client, best.step)) is not None:
            typer.echo(f"step {best.step} was better than the last one, but {reason}", err=True)
            return last
        typer.echo(f"step {best.step} was the best: the training ends there, and {last.step} was the last", err=True)
        return best

    def _is_over(self, status: Status) -> bool:
        from swarm.schemas import EngineState

        return status.state is EngineState.COMPLETE or status.step >= (self.job.total_steps or STEPS)

    def _report_progress(self, directory: Path, status: Status, initial_step: int) -> None:
        from swarm.program.limits import describe_limits

        if warning := warning_of(self.tasks):
            typer.echo(f"swarm: {warning}", err=True)
        total, step = self.job.total_steps or STEPS, status.step
        if step < total and self._is_over(status):
            typer.echo(f"the training in {directory} has ended at step {step}: {status.reason}", err=True)
        elif step >= total:
            typer.echo(f"all {total} steps of {directory} are done: a job with more total_steps goes further", err=True)
        elif step > initial_step:
            typer.echo(f"going on with {directory} at step {step} of {total}", err=True)
        if limits := describe_limits(self.environment, self.job):
            typer.echo(limits, err=True)


def _changes(client: SwarmClient) -> list[dict[str, Any]]:
    """Return the settings that changed while the job ran, and print them to stderr.

    They are shown because the figures then belong to the job with these changes, not to the job alone.
    """
    changes = client.job().changes
    for change in changes:
        settings = ", ".join(f"{name} {value}" for name, value in change.settings.items())
        typer.echo(f"the job was changed while it ran: from step {change.at_step} on {settings}", err=True)
    return [change.model_dump(include={"at_step", "settings"}) for change in changes]


def _faults(client: SwarmClient) -> list[dict[str, Any]]:
    """Return what the guard of the server did in this run."""
    events = client.past_events()
    begin = max((each.event_id for each in events if each.kind == "job.started"), default=0)
    guard = [each for each in events if each.kind.startswith("guard.") and each.event_id > begin]
    return [{"did": each.kind.removeprefix("guard."), **each.detail} for each in guard]


def count_held_out_tasks(environment: Environment, episodes: int, *, few_tasks: bool) -> int:
    """Return the number of held-out tasks of a score. Raise BadRequest if it is too small, unless `few_tasks`."""
    from swarm.tasks import Split

    tasks = count_tasks(environment, Split.VALIDATION, episodes)
    if tasks < TOO_FEW_TASKS and not few_tasks:
        raise BadRequest(
            f"{warning_of(tasks)}; take {TOO_FEW_TASKS} or more of the split validation (--eval-episodes says how"
            " many), or add --few-tasks",
            param="few_tasks",
        )
    return tasks


def in_one_line(figures: Mapping[str, Any]) -> str:
    after, steps = HeldOutScore(**figures["after"]).text, figures["steps"]
    for each in figures["scored_again"]:
        after += f", scored again {each['mean']:.3f}"
    where = f"{steps} steps"
    if figures["ended_at"] not in {steps, None}:
        where += f", and it ends at step {figures['ended_at']}, the best"
    if (limit := figures["max_response_length"]) is not None:
        where += f", with replies of at most {limit} tokens"
    if figures["before"] is None:
        return f"{figures['env']}: {after} after {where}; the base score is not known"
    return f"{figures['env']}: {HeldOutScore(**figures['before']).text} -> {after} in {where}"


def show_fault(found: GuardView) -> None:
    typer.echo(f"guard: {found.sentence} {found.advice}", err=True)
