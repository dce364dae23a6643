"""A program trained on an environment: episodes until the job is done, and scores on held-out tasks.

Place in the flow: on top of the client library, for the CLI and for programs. It knows nothing of how tasks are made or
of how batches are formed; order.py says which tasks come next, also to a run that is started again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

import httpx

from swarm.client import (
    ConnectionStack,
    Credentials,
    Evaluation,
    SwarmClient,
    evaluate,
    run_episodes_until_all_complete,
)
from swarm.client.episode import DEFAULT_WAIT_S
from swarm.environments import DrivenEnvironment, Environment, EnvironmentTask, Grade, Transcript
from swarm.errors import EngineFailure, EnvironmentInvalid, ProgramFailure, SwarmError
from swarm.job import TrainJob
from swarm.program.attempts import CALL_TIMEOUT_S, Model, RecordedSession, open_session
from swarm.program.base import PLAIN, Program, answer_in_turn
from swarm.program.order import TaskOrder, give_up_dead
from swarm.schemas import Status
from swarm.tasks.base import Split
from swarm.types import EpisodeType, Task, WorkflowOutput

EVAL_TEMPERATURE = 1.0
"""Fixed, whatever a job trains at: what is compared is the policy itself, not its mode. An agent may set its own."""
MAX_FAILED_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """`failures` are episodes that failed for good; the server counts them, and they were not trained."""

    steps: int
    failures: int


def train(
    client: SwarmClient,
    environment: Environment,
    job: TrainJob,
    program: Program = PLAIN,
    *,
    max_workers: int = 32,
    gate: Callable[[int], int] | None = None,
) -> TrainingResult:
    """Run episodes until the job's `total_steps` are done; the server must have been started with that job.

    The job's seed decides the order of tasks. `gate` is asked how many of the next so many tasks may run, while none
    does, and may take its time (evaluation.py).

    Raises EnvironmentInvalid without `total_steps`, EngineFailure if nearly all episodes fail, and what ends a run of
    the client library.
    """
    _refuse_second_agent(program, environment)
    if job.total_steps is None:
        raise EnvironmentInvalid("the job has no end: set total_steps", param="total_steps")
    give_up_dead(client)
    order = TaskOrder(program, environment, job, client.held_tasks())
    failures = 0
    with httpx.Client(timeout=CALL_TIMEOUT_S, transport=ConnectionStack()) as http:
        while (status := client.status()).step < job.total_steps:
            number = min(order.chunk, _lacking(status, job.total_steps, job.batch_size))
            number = gate(number) if gate else number
            chosen = order.take(number, status.step / job.total_steps)
            by_id = {each.task.task_id: each for each in chosen}

            def attempt(task: Task, by_id: dict[str, EnvironmentTask] = by_id) -> None:
                with client.open_episode(task) as episode:
                    episode.output = _attempt(program, environment, by_id[task.task_id], episode.credentials, http)

            runs = run_episodes_until_all_complete([each.task for each in chosen], attempt, max_workers=max_workers)
            failures += len(runs.failures)
            if runs.training_complete:
                break
            if len(runs.failures) > MAX_FAILED_SHARE * len(runs.results):
                raise EngineFailure(f"nearly all episodes failed; the first: {runs.failures[0].error}")
    return TrainingResult(client.status().step, failures)


def _lacking(status: Status, total_steps: int, batch_size: int) -> int:
    """How many groups the job still needs, at least 1. The rest of the order stays untouched for a longer job."""
    complete = 0 if status.pool is None else status.pool.tasks
    return max(1, (total_steps - status.step) * batch_size - complete)


def measure(
    client: SwarmClient,
    environment: Environment,
    program: Program = PLAIN,
    *,
    split: Split = Split.VALIDATION,
    episodes: int = 200,
    max_workers: int = 32,
    wait_timeout: float = DEFAULT_WAIT_S,
    on_attempt: Callable[[Task, Credentials], None] | None = None,
) -> Evaluation:
    """The true score of the served weights on held-out tasks, whatever reward the program trains on.

    `on_attempt` is called as each attempt begins, from its thread; what it raises fails the attempt.
    """
    _refuse_second_agent(program, environment)
    items = list(islice(environment.tasks(split), episodes))
    by_id = {each.task.task_id: each for each in items}
    with httpx.Client(timeout=CALL_TIMEOUT_S, transport=ConnectionStack()) as http:

        def attempt(task: Task, credentials: Credentials) -> WorkflowOutput:
            if on_attempt is not None:
                on_attempt(task, credentials)
            return _attempt(program, environment, by_id[task.task_id], credentials, http, is_training=False)

        tasks = [each.task for each in items]
        end = environment.interrupt if isinstance(environment, DrivenEnvironment) else None
        return evaluate(client, tasks, attempt, max_workers, wait_timeout=wait_timeout, on_interrupt=end)


def play(
    client: SwarmClient, environment: Environment, item: EnvironmentTask, program: Program, session: RecordedSession
) -> WorkflowOutput:
    """One attempt as an eval episode; `session` keeps its messages. Raises ProgramFailure if the program fails."""
    with (
        httpx.Client(timeout=CALL_TIMEOUT_S, transport=ConnectionStack()) as http,
        client.open_episode(item.task, EpisodeType.EVAL) as episode,
    ):
        try:
            output = _attempt(program, environment, item, episode.credentials, http, is_training=False, session=session)
        except SwarmError:
            raise
        except Exception as error:
            raise ProgramFailure(f"the program {program.name} raised {type(error).__name__}: {error}") from error
        episode.output = output
    return output


def _attempt(
    program: Program,
    environment: Environment,
    item: EnvironmentTask,
    credentials: Credentials,
    http: httpx.Client,
    *,
    is_training: bool = True,
    session: RecordedSession | None = None,
) -> WorkflowOutput:
    transcript, grade = _play(program, environment, item, credentials, http, session, is_training=is_training)
    reward = grade.score
    if is_training and program.reward is not None:
        reward = float(program.reward(item.task, transcript, grade))
    return WorkflowOutput(reward, grade.is_success, {"score": grade.score, **grade.details})


def _play(
    program: Program,
    environment: Environment,
    item: EnvironmentTask,
    credentials: Credentials,
    http: httpx.Client,
    session: RecordedSession | None,
    *,
    is_training: bool,
) -> tuple[Transcript, Grade]:
    base_url, api_key, name = credentials.base_url, credentials.api_key, credentials.model
    if isinstance(environment, DrivenEnvironment):
        return environment.run(item, base_url, api_key, name, environment.max_tokens)
    session = session or open_session(environment, item)
    options = {} if is_training else {"temperature": EVAL_TEMPERATURE}
    answer = program.agent(item.task, Model(base_url, api_key, name, environment.max_tokens, http, options), session)
    if answer is not None and not session.is_over:
        session.reply(answer)
    return session.transcript, environment.grade(item, session.transcript)


def _refuse_second_agent(program: Program, environment: Environment) -> None:
    if isinstance(environment, DrivenEnvironment) and program.agent is not answer_in_turn:
        raise EnvironmentInvalid(
            f"{environment.name} has an agent of its own: take the function agent out of {program.name}",
            param="program",
        )
