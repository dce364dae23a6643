"""`swarm train`: a program on an environment, from the base score to the trained one, in one command.

Place in the flow: commands.py takes the command in. Progress goes to stderr, figures to stdout.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from swarm.cli.failures import failures_in_one_line
from swarm.cli.scores import score_figures, score_text
from swarm.cli.tokens import token_of
from swarm.errors import EngineFailure

if TYPE_CHECKING:
    from swarm.client import SwarmClient
    from swarm.job import TrainJob

STEPS = 60
REWARD = "critic/score/mean"
STOP_TIMEOUT_S = 60.0
WATCH_S = 0.5
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
    workers: Annotated[int, typer.Option(min=1, max=256, help="Episodes at the same time.")] = 32,
    eval_episodes: Annotated[int, typer.Option(min=1, max=100_000, help="Held-out tasks of each score.")] = 200,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")] = False,
) -> None:
    """Train on an environment: the held-out score before, every step, and the held-out score after.

    Run again, it goes on where it was.
    """
    with failures_in_one_line():
        from swarm.client import SwarmClient
        from swarm.environments import load_environment
        from swarm.program import load_program, measure
        from swarm.program import train as train_program
        from swarm.program.base import PLAIN

        environment = load_environment(env)
        chosen = PLAIN if program is None else load_program(program)
        train_job = _job_of(job, environment.name, seed)
        directory = home or RUNS / train_job.experiment_name
        with (
            closing(environment),
            _server(url, directory) as address,
            SwarmClient(address, token=token_of("commander"), client_id="swarm-train") as client,
        ):
            client.auto_sync_train_config_and_start_engine(train_job)
            scores = [measure(client, environment, chosen, episodes=eval_episodes, max_workers=workers)]
            typer.echo(f"held-out score before: {score_text(scores[0])}", err=True)
            with _steps_shown(client):
                done = train_program(client, environment, train_job, chosen, max_workers=workers)
            scores.append(measure(client, environment, chosen, episodes=eval_episodes, max_workers=workers))
            typer.echo(f"held-out score after:  {score_text(scores[1])}", err=True)
            if url is None:
                client.save_checkpoint()
        before, after = scores
        figures: dict[str, Any] = {
            "env": environment.name, "digest": environment.digest, "program": chosen.name, "steps": done.steps,
            "failed_episodes": done.failures, "before": score_figures(before), "after": score_figures(after),
            "home": None if url else str(directory),
        }  # fmt: skip
        if as_json:
            typer.echo(json.dumps(figures))
        else:
            typer.echo(f"{environment.name}: {score_text(before)} -> {score_text(after)} in {done.steps} steps")


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


@contextmanager
def _server(url: str | None, home: Path) -> Generator[str]:
    """The address of the server that was named, or of one that runs until this is left."""
    if url is not None:
        yield url
        return
    command = [sys.executable, "-m", "swarm.cli", "start", "--port", "0", "--home", str(home), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as server:
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            if not line:
                raise EngineFailure(f"the server of this run did not start: exit code {server.wait(STOP_TIMEOUT_S)}")
            yield json.loads(line)["url"]
        finally:
            server.send_signal(signal.SIGTERM)
            try:
                server.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                server.kill()


@contextmanager
def _steps_shown(client: SwarmClient) -> Generator[None]:
    """One line for each step, on stderr, while this is open."""
    ended = threading.Event()
    step = client.status().step

    def show() -> None:
        nonlocal step
        for point in client.metrics(after_step=step):
            step = point.step
            typer.echo(f"step {step:4d}  reward {point.metrics.get(REWARD, float('nan')):.3f}", err=True)

    def watch() -> None:
        while not ended.wait(WATCH_S):
            show()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join(STOP_TIMEOUT_S)
        show()
