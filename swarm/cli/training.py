"""`swarm train`: a program on an environment, from the base score to the trained one, in one command.

Place in the flow: commands.py takes the command in. Progress goes to stderr, figures to stdout.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from swarm.cli.failures import failures_in_one_line
from swarm.cli.held_out_score import score_figures, score_text
from swarm.cli.options import program_of
from swarm.cli.own_server import server_at
from swarm.cli.scoring import evaluator_beside
from swarm.cli.tokens import token_of

if TYPE_CHECKING:
    from swarm.client import Evaluation, SwarmClient
    from swarm.environments import Environment
    from swarm.job import TrainJob
    from swarm.program import Program
    from swarm.program.evaluation import StepScore
    from swarm.schemas import EvaluationView

STEPS = 60
RUNS = Path("runs") / "train"


def train(
    env: Annotated[str, typer.Option("--env", help="Environment: a bundled one, a path, or LIBRARY:NAME.")],
    job: Annotated[Path | None, typer.Option(help="A job.yaml; without one, the default job of 60 steps.")] = None,
    program: Annotated[Path | None, typer.Option(help="A Python file with agent, reward or schedule.")] = None,
    url: Annotated[
        str | None, typer.Option(envvar="SWARM_URL", help="A running server; without one, a server for this run.")
    ] = None,
    home: Annotated[Path | None, typer.Option(help="Directory of that server (default: runs/train/NAME).")] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of the job and of the order of tasks (default: the job's).")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, max=256, help="Episodes at the same time.")] = 64,
    eval_episodes: Annotated[int, typer.Option(min=1, max=100_000, help="Held-out tasks of each score.")] = 200,
    eval_every: Annotated[
        int | None, typer.Option(min=1, help="Score every so many steps as well (default: before and after).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")] = False,
) -> None:
    """Train on an environment: the held-out score before, every step, and the held-out score after.

    Run again, it goes on where it was.
    """
    with failures_in_one_line():
        from swarm.client import SwarmClient
        from swarm.environments.server import open_environment
        from swarm.processes.child import own_name
        from swarm.program import train as train_program
        from swarm.program.roles import refuse_roles
        from swarm.program.steps import watch_steps

        chosen = program_of(program, env)
        refuse_roles(
            "--url", url, f"python -m swarm.program {program or 'PROGRAM'} --server ROLE=URL --job ROLE=FILE ..."
        )
        with open_environment(env) as environment:
            train_job = _job_of(job, environment.name, seed)
            directory = home or RUNS / train_job.experiment_name
            with (
                server_at(url, directory) as address,
                SwarmClient(address, token=token_of("commander"), client_id=own_name()) as client,
            ):
                client.auto_sync_train_config_and_start_engine(train_job)
                scores = _Scores(client, environment, chosen, eval_episodes, workers)
                before = scores.measure("before")
                with evaluator_beside(train_job, env, program, address, directory), watch_steps(client, _show_step):
                    gate = None if eval_every is None else scores.gate(eval_every, train_job.batch_size)
                    done = train_program(client, environment, train_job, chosen, max_workers=workers, gate=gate)
                after = scores.measure("after")
                evaluations = _merged(scores.figures(), client.evaluations())
                if url is None:
                    client.save_checkpoint()
        figures: dict[str, Any] = {
            "env": environment.name, "digest": environment.digest, "program": chosen.name, "steps": done.steps,
            "failed_episodes": done.failures, "before": score_figures(before), "after": score_figures(after),
            "evaluations": evaluations, "home": None if url else str(directory),
        }  # fmt: skip
        if as_json:
            typer.echo(json.dumps(figures))
        else:
            typer.echo(f"{environment.name}: {score_text(before)} -> {score_text(after)} in {done.steps} steps")


class _Scores:
    """The held-out scores of one run: told on stderr as they come, kept for the figures."""

    def __init__(
        self, client: SwarmClient, environment: Environment, program: Program, episodes: int, workers: int
    ) -> None:
        self._client, self._environment, self._program = client, environment, program
        self._episodes, self._workers = episodes, workers
        self._kept: list[StepScore] = []

    def measure(self, when: str) -> Evaluation:
        """The score of now. Raises EngineFailure if nothing was scored."""
        from swarm.program.evaluation import score_at_rest

        score = score_at_rest(self._client, self._evaluate)
        self._kept.append(score)
        typer.echo(f"held-out score {when + ':':8}{score_text(score.evaluation)}", err=True)
        return score.evaluation

    def gate(self, every: int, batch_size: int) -> Callable[[int], int]:
        """What `train` asks before each chunk, so that every so many steps are scored."""
        from swarm.program.evaluation import PeriodicEvaluation

        return PeriodicEvaluation(
            self._client, self._evaluate, every=every, batch_size=batch_size, on_score=self._keep
        ).gate

    def figures(self) -> list[dict[str, Any]]:
        return [{"step": score.step, **score_figures(score.evaluation)} for score in self._kept]

    def _keep(self, score: StepScore) -> None:
        self._kept.append(score)
        step = "while others train" if score.step is None else f"at step {score.step}"
        evaluation = score.evaluation
        # A score that cannot be had is no reason to give the training up.
        shown = f"none: {evaluation.failures[0].error}" if evaluation.mean is None else score_text(evaluation)
        typer.echo(f"held-out score {step}: {shown}", err=True)

    def _evaluate(self) -> Evaluation:
        from swarm.program import measure

        return measure(
            self._client, self._environment, self._program, episodes=self._episodes, max_workers=self._workers
        )


def _merged(measured: list[dict[str, Any]], recorded: list[EvaluationView]) -> list[dict[str, Any]]:
    """The scores of this command, and of other steps those that the job's `eval_every` brought; by step."""
    known = {score["step"] for score in measured}
    others = [
        {"step": each.step, "mean": each.mean, "stderr": each.stderr, "n": each.scored, "failures": each.failures}
        for each in recorded
        if each.state == "done" and each.step not in known
    ]
    return sorted([*measured, *others], key=lambda score: math.inf if score["step"] is None else score["step"])


def _job_of(path: Path | None, environment: str, seed: int | None) -> TrainJob:
    """The job of the file with the environment's name as its own, unless the file gives it one."""
    from swarm.job import TrainJob

    given = TrainJob() if path is None else TrainJob.build_job_from_yaml(path)
    named = re.sub(r"[^\w.-]+", "-", environment)
    changes: dict[str, Any] = {"total_steps": given.total_steps or STEPS}
    if seed is not None:
        changes["seed"] = seed
    if "experiment_name" not in given.model_fields_set:
        changes["experiment_name"] = named
    return given.model_copy(update=changes)


def _show_step(step: int, reward: float) -> None:
    typer.echo(f"step {step:4d}  reward {reward:.3f}", err=True)
