"""The training of a program on an environment, and its scores on held-out tasks."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
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
from swarm.client.episode import DEFAULT_WAIT_S, EpisodeSampling
from swarm.client.evaluation import attempt_seed
from swarm.client.fault_log import FaultLog
from swarm.client.pace import AttemptPace
from swarm.environments import DrivenEnvironment, Environment, EnvironmentTask, Grade, Transcript
from swarm.errors import BadRequest, EngineFailure, EnvironmentFailure, EnvironmentInvalid, ProgramFailure, SwarmError
from swarm.job import TrainJob
from swarm.program.attempts import ModelKey, RecordedSession, model_of, open_session
from swarm.program.base import PLAIN, Program, answer_in_turn, named_exits, rewards_of
from swarm.program.faults import ServerWatch, fault_of
from swarm.program.gates import POLL_S, until_demonstrated, until_rest
from swarm.program.limits import reply_limit
from swarm.program.order import TaskOrder, give_up_dead
from swarm.program.roles import ONE_ROLE, Servers, clients_of, open_episodes
from swarm.schemas import MAX_REPLIES, MAX_REPLY_TEXTS, EngineState, Status
from swarm.tasks.agent import open_http
from swarm.tasks.base import Split
from swarm.types import EpisodeType, Task, WorkflowOutput

EVAL_TEMPERATURE = 1.0
"""Fixed, whatever temperature a job trains with, so that scores compare the policy itself.

An agent may set another, unless the score has fixed sampling."""
MAX_FAILED_SHARE = 0.9
IDLE_S = 240.0
"""The least idle timeout of an attempt of a score. A slow environment gets a longer one."""
MAX_IDLE_S = 86_400.0
"""The longest idle timeout that a server accepts."""


@dataclass(frozen=True, slots=True)
class EndedAttempt:
    """An attempt of a score as it ended: the messages of its session, and its grade or the error that ended it.

    A ProgramFailure is an error of the program, and any other error is one of the system.
    """

    task: Task
    episode_id: str
    transcript: Transcript
    grade: Grade | None = None
    error: SwarmError | None = None


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """The outcome of a training. `failures` counts the failed episodes, which were not trained."""

    steps: int
    failures: int


def train(
    servers: Servers,
    environment: Environment,
    job: TrainJob,
    program: Program = PLAIN,
    *,
    max_workers: int = 64,
    gate: Callable[[int], int] | None = None,
    attempt_calls: int | None = None,
    attempt_tokens: int | None = None,
    faults: FaultLog | None = None,
) -> TrainingResult:
    """Run episodes until the job's `total_steps` are done. The server must run that job already.

    With a team, which has a client for each role, every attempt is an episode on each server. It counts on all of them
    or on none. `job` is that of the first role. The job's seed decides the order of tasks. `gate` gets a number of
    tasks and returns how many of them may run now. It is called while no episode runs, and may take its time
    (gates.py). If it returns 0, the training ends. At most `max_workers` attempts run at once, and fewer on a slow
    server (pace.py). `attempt_calls` and `attempt_tokens` limit the
    model calls and the sampled tokens of each attempt. `faults` counts the failures of episodes.

    Raises EnvironmentInvalid if the job has no `total_steps`, and the errors that end a run of the client library. If
    nearly all episodes fail, it raises EnvironmentFailure, EngineFailure or ProgramFailure, depending on the cause.
    """
    clients = clients_of(servers)
    first = next(iter(clients.values()))
    _refuse_second_agent(program, environment, clients)
    if job.total_steps is None:
        raise EnvironmentInvalid("the job has no end: set total_steps", param="total_steps")
    for client in clients.values():
        give_up_dead(client)
    until_demonstrated(first, job)
    order = TaskOrder(program, environment, job, first.task_counts(), initial_step=_initial_step(first, job))
    watch = ServerWatch(first)
    failures = 0
    sampling = EpisodeSampling(max_calls=attempt_calls, max_tokens=attempt_tokens)
    pace = AttemptPace(first, EpisodeType.TRAIN, max_workers)
    with (
        open_http(ConnectionStack()) as http,
        FaultLog() if faults is None else nullcontext(faults) as log,
    ):
        while (status := first.status()).step < job.total_steps:
            number = min(order.chunk, _lacking(status, job.total_steps, job.batch_size))
            number = gate(number) if gate else number
            if not number:
                break
            started_at = watch.started_at
            chosen = order.take(number, status.step / job.total_steps)
            by_id = {each.task.task_id: each for each in chosen}
            # The job may change while it runs.
            player = _Player.of(program, environment, http, clients)

            def attempt(task: Task, by_id: dict[str, EnvironmentTask] = by_id, player: _Player = player) -> None:
                with open_episodes(servers, task, sampling) as episodes:
                    episodes.outputs.update(player.trained(by_id[task.task_id], episodes.credentials))

            tasks = [each.task for each in chosen]
            runs = run_episodes_until_all_complete(tasks, attempt, max_workers=max_workers, throttler=pace, faults=log)
            failures += len(runs.failures)
            if runs.training_complete:
                break
            if len(runs.failures) > MAX_FAILED_SHARE * len(runs.results):
                raise _fault_of_all([each.error for each in runs.failures], watch.failure_since(started_at))
    return TrainingResult(min(_last_step(client) for client in clients.values()), failures)


def _initial_step(client: SwarmClient, job: TrainJob) -> int:
    """Return the step that the run began at. Wait while a restarted server puts the run together again."""
    if job.resume_from is None:
        return 0
    while (step := client.job().initial_step) is None:
        until_rest(client)
        time.sleep(POLL_S)
    return step


def _fault_of_all(errors: Sequence[Exception], server: SwarmError | None) -> SwarmError:
    """Return the error of a run in which nearly all episodes failed. `server` is the server's own failure, if any."""
    first = errors[0]
    reason = first.message if isinstance(first, SwarmError) else f"{type(first).__name__}: {first}"
    sentence = f"nearly all episodes failed; the first: {reason}"
    if 2 * sum(isinstance(error, EnvironmentFailure) for error in errors) > len(errors):
        return EnvironmentFailure(f"the environment failed: {sentence}")
    return ProgramFailure(sentence) if server is None else EngineFailure(f"{sentence} ({server.message})")


def _lacking(status: Status, total_steps: int, batch_size: int) -> int:
    """Return how many groups the job still needs, at least 1, so that no further tasks are taken from the order."""
    complete = 0 if status.pool is None else status.pool.tasks
    return max(1, (total_steps - status.step) * batch_size - complete)


def _last_step(client: SwarmClient) -> int:
    """Wait until the server has trained the batches it has, and return its number of steps."""
    while True:
        status = until_rest(client)
        # On the other servers of a team, the last episodes may still have to be committed.
        if status.state is EngineState.COMPLETE or status.pool is None or not status.pool.running_train:
            return status.step
        time.sleep(POLL_S)


def measure(
    servers: Servers,
    environment: Environment,
    program: Program = PLAIN,
    *,
    split: Split = Split.VALIDATION,
    episodes: int = 200,
    skip: int = 0,
    attempts: int = 1,
    max_workers: int = 64,
    worst: float = 0.0,
    seed: int | None = None,
    attempt_calls: int | None = None,
    attempt_tokens: int | None = None,
    fixed_sampling: bool = False,
    wait_timeout: float = DEFAULT_WAIT_S,
    on_attempt: Callable[[Task, Credentials], None] | None = None,
    on_end: Callable[[EndedAttempt], None] | None = None,
    faults: FaultLog | None = None,
) -> Evaluation:
    """Return the score of the served weights on held-out tasks, by the environment's grades.

    The tasks are the `episodes` of the split after the first `skip`. Each is attempted `attempts` times. The program's
    own reward is not used. An attempt that fails because of the program scores `worst`. An attempt that fails because
    of the system is repeated. `seed` fixes the sampling seeds of all attempts. `attempt_calls` and `attempt_tokens`
    limit the model calls and the sampled tokens of each. With `fixed_sampling` the program cannot ask for other
    sampling.

    `on_attempt` is called from the thread of each attempt when it begins, and `on_end` when it has ended. `faults` logs
    and counts what attempts failed by. With a team, the weight versions are those of the first role.
    """
    clients = clients_of(servers)
    if len(clients) > 1 and attempts > 1:
        raise BadRequest("several attempts at a task are measured on one server: name one", param="attempts")
    _refuse_second_agent(program, environment, clients)
    items = list(islice(environment.tasks(split), skip, skip + episodes))
    # The limits and the temperature go to the server, because the program must not see that it is evaluated.
    sampling = EpisodeSampling(
        temperature=EVAL_TEMPERATURE,
        max_calls=attempt_calls,
        max_tokens=attempt_tokens,
        fixed_sampling=fixed_sampling,
    )
    with open_http(ConnectionStack()) as http:
        scorer = _Scorer(
            player=_Player.of(program, environment, http, clients),
            clients=clients,
            watches={role: ServerWatch(client) for role, client in clients.items()},
            items={each.task.task_id: each for each in items},
            sampling=sampling,
            seed=seed,
            on_attempt=on_attempt,
            on_end=on_end,
        )
        return evaluate(
            next(iter(clients.values())),
            [each.task for each in items for _ in range(attempts)],
            scorer.attempt,
            max_workers,
            worst=worst,
            seed=seed,
            sampling=sampling,
            discard_episode_timeout=_idle_limit(environment),
            wait_timeout=wait_timeout,
            on_interrupt=environment.interrupt if isinstance(environment, DrivenEnvironment) else None,
            faults=faults,
        )


def _idle_limit(environment: Environment) -> float:
    """Return the idle timeout of an attempt, in which its environment must give one reply and the grade."""
    return min(MAX_IDLE_S, max(IDLE_S, 2 * environment.time_limit_s + IDLE_S / 2))


@dataclass(frozen=True, slots=True)
class _Player:
    """The program, its environment and the connections to servers, for all attempts of a training or a score.

    If the environment has an agent of its own, no program takes part. `limits` are the most tokens of a reply, by role.
    """

    program: Program
    environment: Environment
    http: httpx.Client
    limits: Mapping[str, int]

    @classmethod
    def of(
        cls, program: Program, environment: Environment, http: httpx.Client, clients: Mapping[str, SwarmClient]
    ) -> _Player:
        """Return the player with the limits of the jobs that are in force now."""
        limits = {role: reply_limit(client, environment) for role, client in clients.items()}
        return cls(program, environment, http, limits)

    def trained(self, item: EnvironmentTask, credentials: Mapping[str, Credentials]) -> dict[str, WorkflowOutput]:
        """Make one attempt with the episode of each role, and return the output of each episode."""
        transcript, grade = self.played(item, credentials)
        rewards: Mapping[str, float] = {}
        if self.program.reward is not None:
            with named_exits(self.program.name, "reward"):
                reward = self.program.reward(item.task, transcript, grade)
            rewards = rewards_of(reward, tuple(credentials), self.program.name)
        return _outputs(credentials, grade, rewards, None)

    def judged(
        self,
        item: EnvironmentTask,
        keys: Mapping[str, Credentials],
        watches: Mapping[str, ServerWatch],
        on_end: Callable[[EndedAttempt], None] | None,
    ) -> dict[str, WorkflowOutput]:
        """Make one attempt of a score. Raises ProgramFailure if the program failed, else the error of the system."""
        ended = EndedAttempt(item.task, next(iter(keys.values())).episode_id, ())
        session = None
        try:
            if isinstance(self.environment, DrivenEnvironment):
                with _of_the_environment():
                    transcript, grade = self.played(item, keys)
            else:
                with _of_the_environment():
                    session = open_session(self.environment, item)
                self._answer_or_blame(item, keys, session, watches)
                with _of_the_environment():
                    transcript, grade = session.transcript, self.environment.grade(item, session.transcript)
        except SwarmError as error:
            if on_end is not None:
                on_end(replace(ended, transcript=() if session is None else session.transcript, error=error))
            raise
        if on_end is not None:
            on_end(replace(ended, transcript=transcript, grade=grade))
        return _outputs(keys, grade, {}, _replies(transcript))

    def played(
        self, item: EnvironmentTask, credentials: Mapping[str, Credentials], session: RecordedSession | None = None
    ) -> tuple[Transcript, Grade]:
        """Make one attempt and return its transcript and grade; `session` records its messages."""
        environment = self.environment
        if isinstance(environment, DrivenEnvironment):
            [(role, key)] = credentials.items()
            return environment.run(item, key.base_url, key.api_key, key.model, self.limits[role])
        session = session or open_session(environment, item)
        self._answer(item, credentials, session)
        return session.transcript, environment.grade(item, session.transcript)

    def _answer_or_blame(
        self,
        item: EnvironmentTask,
        keys: Mapping[str, Credentials],
        session: RecordedSession,
        watches: Mapping[str, ServerWatch],
    ) -> None:
        """Run the agent of the program on the session. Raises ProgramFailure, or the error of the system at fault."""
        began = {role: watch.started_at for role, watch in watches.items()}
        try:
            self._answer(item, keys, session)
        except Exception as error:  # noqa: BLE001 - the boundary: the cause of a failure is data of the score
            failures = (watch.failure_in(keys[role], began[role]) for role, watch in watches.items())
            fault = fault_of(error, session, next(filter(None, failures), None))
            raise fault from (error.__cause__ if fault is error else error)

    def _answer(self, item: EnvironmentTask, credentials: Mapping[str, Credentials], session: RecordedSession) -> None:
        """Run the agent of the program on the session."""
        keys = {
            role: ModelKey(key.base_url, key.api_key, key.model, self.limits[role]) for role, key in credentials.items()
        }
        with named_exits(self.program.name, "agent"):
            answer = self.program.agent(item.task, model_of(keys, self.http), session)
        if answer is not None and not session.is_over:
            session.reply(answer)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scorer:
    """The attempts of a score: each is played with an episode on every server, and judged.

    `items` are the tasks by id. The score is that of the first of the `clients`.
    """

    player: _Player
    clients: Mapping[str, SwarmClient]
    watches: Mapping[str, ServerWatch]
    items: Mapping[str, EnvironmentTask]
    sampling: EpisodeSampling
    seed: int | None
    on_attempt: Callable[[Task, Credentials], None] | None
    on_end: Callable[[EndedAttempt], None] | None

    def attempt(self, task: Task, credentials: Credentials) -> WorkflowOutput:
        """Make one attempt, with `credentials` on the first server."""
        if self.on_attempt is not None:
            self.on_attempt(task, credentials)
        name, *others = self.clients
        drawn: EpisodeSampling = {**self.sampling}
        if self.seed is not None:
            drawn["sampling_seed"] = attempt_seed(self.seed, task.task_id)
        # Eval episodes need no transaction, as they never train. Only the first role has the idle timeout.
        with ExitStack() as stack:
            opened = {
                role: stack.enter_context(self.clients[role].open_episode(task, EpisodeType.EVAL, MAX_IDLE_S, **drawn))
                for role in others
            }
            keys = {name: credentials, **{role: each.credentials for role, each in opened.items()}}
            outputs = self.player.judged(self.items[task.task_id], keys, self.watches, self.on_end)
            for role, each in opened.items():
                each.output = outputs[role]
        return outputs[name]


@contextmanager
def _of_the_environment() -> Generator[None]:
    try:
        yield
    except EnvironmentFailure:
        raise
    except Exception as error:
        raise EnvironmentFailure(f"the environment raised {type(error).__name__}: {error}") from error


def play(
    client: SwarmClient, environment: Environment, item: EnvironmentTask, program: Program, session: RecordedSession
) -> WorkflowOutput:
    """Make one attempt as an eval episode; `session` records its messages.

    Raises ProgramFailure if the program raises anything but a SwarmError.
    """
    with (
        open_http(ConnectionStack()) as http,
        client.open_episode(item.task, EpisodeType.EVAL, temperature=EVAL_TEMPERATURE) as episode,
    ):
        try:
            keys = {ONE_ROLE: episode.credentials}
            player = _Player.of(program, environment, http, {ONE_ROLE: client})
            transcript, grade = player.played(item, keys, session)
        except SwarmError:
            raise
        except Exception as error:
            raise ProgramFailure(f"the program {program.name} raised {type(error).__name__}: {error}") from error
        output = _outputs(keys, grade, {}, _replies(transcript))[ONE_ROLE]
        episode.output = output
    return output


def _outputs(
    roles: Iterable[str], grade: Grade, rewards: Mapping[str, float], replies: tuple[str, ...] | None
) -> dict[str, WorkflowOutput]:
    """Return the output of each role's episode, with the role's reward, or else the grade's score."""
    details = {"score": grade.score, **grade.details}
    return {
        role: WorkflowOutput(rewards.get(role, grade.score), grade.is_success, details, replies=replies)
        for role in roles
    }


def _replies(transcript: Transcript) -> tuple[str, ...]:
    """Return the texts and the tool arguments of the assistant messages, cut to what a server takes.

    A server compares at most MAX_REPLIES characters with the model's own text. Up to twice as many are sent. The
    characters beyond its limit count as not written by the model.
    """
    found: list[str] = []
    for message in transcript:
        if message.get("role") == "assistant":
            calls = [call["function"]["arguments"] for call in message.get("tool_calls") or ()]
            found += [text for text in (message.get("content"), *calls) if text and isinstance(text, str)]
    last = MAX_REPLY_TEXTS - 1
    found[last:] = ["\n".join(found[last:])]
    kept: list[str] = []
    left = 2 * MAX_REPLIES
    for text in found:
        kept.append(text[:left])
        left -= len(kept[-1])
    return tuple(filter(None, kept))


def _refuse_second_agent(program: Program, environment: Environment, roles: Collection[str]) -> None:
    if not isinstance(environment, DrivenEnvironment):
        return
    if program.agent is not answer_in_turn:
        raise EnvironmentInvalid(
            f"{environment.name} has an agent of its own: take the function agent out of {program.name}",
            param="program",
        )
    if len(roles) > 1:
        raise EnvironmentInvalid(
            f"{environment.name} has an agent of its own, which plays with one model: name one server", param="server"
        )
