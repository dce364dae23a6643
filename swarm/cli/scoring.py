"""The command `swarm eval`, which measures the held-out score of served weights once, or whenever the job asks."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from swarm.cli import options
from swarm.cli.failures import failures_in_one_line
from swarm.cli.held_out_score import count_tasks, mean_of, score_of, score_on_record, warning_of
from swarm.errors import BadRequest, EngineFailure
from swarm.pass_at_k import text_of

if TYPE_CHECKING:
    from swarm.client import Evaluation, SwarmClient
    from swarm.job import TrainJob
    from swarm.program import Program
    from swarm.program.roles import Servers
    from swarm.schemas import EvaluationView
    from swarm.tasks import Split

EPISODES = 200
END_S = 60.0
"""Time that an evaluator has to end after the last score."""
PATIENCE_S = 120.0
"""Time that an evaluator waits for a server that has disappeared. A killed server is usually started again."""


def evaluate(
    env: Annotated[
        str | None, typer.Option("--env", help="Environment: a bundled one, a path, or LIBRARY:NAME.")
    ] = None,
    agent: Annotated[
        Path | None,
        typer.Option("--agent", help="In place of --env: a Python file with my_agent, tasks and reward."),
    ] = None,
    program: options.ProgramOption = None,
    url: Annotated[
        list[str] | None, typer.Option(envvar="SWARM_URL", help="Address of the server, or ROLE=URL for each role.")
    ] = None,
    split: Annotated[
        str | None, typer.Option("--split", help="train, validation or test (default: validation).")
    ] = None,
    episodes: Annotated[
        int | None,
        typer.Option(
            "--episodes", "-n", min=1, max=100_000, help="How many tasks (default: 200; with --follow the job's)."
        ),
    ] = None,
    k: options.KOption = None,
    workers: options.WorkersOption = 16,
    follow: Annotated[
        bool, typer.Option("--follow", help="Score at every step that the job is due for it (eval_every), to its end.")
    ] = False,
    as_json: options.JsonOption = False,
) -> None:
    """Measure the served weights on an environment, or an agent of your own on its tasks. Nothing is trained."""
    with failures_in_one_line():
        from swarm.processes.child import own_name
        from swarm.program.roles import clients_of, connected, servers_named

        ks = options.ks_of(k)
        if ks and follow:
            raise BadRequest("--k is measured once, not with --follow: leave one of both out", param="k")
        source = _source_of(env, agent, program, split)
        addresses, token = (
            servers_named("--url", url or [options.DEFAULT_URL]),
            options.token_of("rollout", "commander"),
        )
        # The server distinguishes the evaluators of a job by these ids.
        client_id = f"swarm-eval/{own_name()}" if follow else "swarm-eval"
        patience = {"timeout": PATIENCE_S} if follow else {}
        with (
            source as scored,
            connected(addresses, token, client_id=client_id, **patience) as servers,
        ):
            for client in clients_of(servers).values():
                options.require_model(client)
            scorer = scored(servers, episodes or EPISODES, ks, workers)
            if follow:
                _follow(next(iter(clients_of(servers).values())), scorer, episodes, as_json=as_json)
            else:
                _score_once(scorer, episodes or EPISODES, as_json=as_json)


MakeScorer = Callable[["Servers", int, tuple[int, ...], int], "_Scorer"]
"""Make a scorer from servers, the number of tasks, those of pass@k, and the most attempts at the same time."""


def _source_of(
    env: str | None, agent: Path | None, program: Path | None, split: str | None
) -> AbstractContextManager[MakeScorer]:
    """Return what is scored: an environment with a program, or an agent file. Raise BadRequest unless it is one."""
    if (env is None) == (agent is None):
        raise BadRequest("give either --env ENVIRONMENT or --agent FILE: one of them names what is scored", param="env")
    if env is not None:
        return _environment_scored(env, options.program_of(program, env), options.split_named(split or "validation"))
    for option, given in (("program", program), ("split", split)):
        if given is not None:
            raise BadRequest(f"--{option} belongs to --env: an agent file has its own agent and tasks", param=option)
    assert agent is not None
    return _agent_scored(agent)


@contextmanager
def _environment_scored(env: str, program: Program, split: Split) -> Generator[MakeScorer]:
    from swarm.environments.server import open_environment
    from swarm.program import measure

    with open_environment(env) as environment:

        def make(servers: Servers, episodes: int, ks: tuple[int, ...], workers: int) -> _Scorer:
            _warn_of_few(count_tasks(environment, split, episodes))
            score = partial(
                measure, servers, environment, program, split=split, attempts=max(ks, default=1), max_workers=workers
            )
            return _Scorer(environment.name, str(split), lambda wanted: score(episodes=wanted), ks)

        yield make


@contextmanager
def _agent_scored(file: Path) -> Generator[MakeScorer]:
    from swarm.client import SwarmClient
    from swarm.program.agent_file import load_agent_file, measure_agent

    agent = load_agent_file(file)

    def make(servers: Servers, episodes: int, ks: tuple[int, ...], workers: int) -> _Scorer:
        if not isinstance(servers, SwarmClient):
            raise BadRequest("an agent file is scored with one server: give one --url", param="url")
        _warn_of_few(len(agent.first_tasks(episodes)))
        score = partial(measure_agent, servers, agent, attempts=max(ks, default=1), max_workers=workers)
        return _Scorer(agent.name, None, lambda wanted: score(episodes=wanted), ks)

    yield make


def _warn_of_few(tasks: int) -> None:
    if few := warning_of(tasks):
        typer.echo(f"swarm: {few}", err=True)


@contextmanager
def evaluator_beside(job: TrainJob, env: str, program: Path | None, url: str, directory: Path) -> Generator[None]:
    """Run `swarm eval --follow` during a training if the job has `eval_every` but no `eval_env`.

    After the training, the evaluator gets time to score the last step. Its output goes to `evaluator.log` in the
    directory. Raise EngineFailure if that file cannot be written.
    """
    if not job.eval_every or job.eval_env is not None:
        yield
        return
    from swarm.processes.child import Child, python_module

    command = python_module("swarm.cli", "eval", "--follow", "--env", env, "--url", url, "--json")
    command += [] if program is None else ["--program", str(program)]
    log = directory / "evaluator.log"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        child = Child(command, env=dict(os.environ), cwd=Path.cwd(), out=log, errors=log)
    except OSError as error:
        raise EngineFailure(f"the evaluator of this run cannot use {directory}: {error.strerror}") from error
    try:
        yield
        # The evaluator ends once the last step is scored or the server gives that score up.
        child.wait(job.eval_timeout_s + END_S)
    finally:
        child.stop()


@dataclass(frozen=True, slots=True)
class _Scorer:
    """A way to score held-out tasks. `score` gets the number of tasks, and `ks` are those of pass@k.

    An agent file has no splits.
    """

    task: str
    split: str | None
    score: Callable[[int], Evaluation]
    ks: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        return self.task if self.split is None else f"{self.task}/{self.split}"

    @property
    def figures(self) -> dict[str, str | None]:
        return {"task": self.task, "split": self.split}


def _score_once(scorer: _Scorer, episodes: int, *, as_json: bool) -> None:
    began = time.monotonic()
    result = scorer.score(episodes)
    score = score_of(result, scorer.ks)
    shown: dict[str, Any] = {
        **scorer.figures,
        "episodes": result.n,
        "mean_reward": mean_of(result),
        "stderr": score.stderr,
        "low": score.low,
        "high": score.high,
        "failures": len(result.failures),
        "broken": len(result.broken),
        "pass_at_k": [asdict(each) for each in score.pass_at_k],
        "weight_versions": sorted(result.weight_versions),
        "seconds": round(time.monotonic() - began, 2),
    }
    if result.broken:
        typer.echo(f"swarm: {len(result.broken)} attempts were broken; the first: {result.broken[0].error}", err=True)
    if as_json:
        typer.echo(json.dumps(shown))
        return
    versions = ", ".join(map(str, shown["weight_versions"]))
    typer.echo(
        f"{scorer.name}: {score.text}, weight version {versions}, {len(result.failures)} failed, {shown['seconds']} s"
    )
    if score.pass_at_k:
        typer.echo(text_of(score.pass_at_k))


def _follow(client: SwarmClient, scorer: _Scorer, episodes: int | None, *, as_json: bool) -> None:
    """Score whenever the job is due for it, until the job ends. Raise BadRequest if the job never asks for a score."""
    from swarm.client import follow_evaluations

    job = client.job()
    if not (job.in_force or job.resolved or {}).get("eval_every"):
        raise BadRequest(
            "the job asks for no scores: give it eval_every; while it runs, swarm job --set eval_every=10 does so",
            param="follow",
        )

    def show(score: EvaluationView) -> None:
        if as_json:
            typer.echo(json.dumps({**scorer.figures, **score.model_dump()}))
        elif score.mean is None:
            typer.echo(f"{scorer.name} at step {score.step}: no score: {score.reason}")
        else:
            typer.echo(f"{scorer.name} at step {score.step}: {score_on_record(score).text}")

    follow_evaluations(client, lambda due: scorer.score(episodes or due.episodes), on_score=show)
