"""Score the weights a server serves: eval episodes on given tasks, a mean with its standard error; once, or whenever a
job that trains is due for it.

Place in the flow: on top of SwarmClient, for whoever judges a model. Nothing measured here is ever trained on. Knows
nothing of agents.
"""

from __future__ import annotations

import logging
import math
import statistics
import threading
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

from swarm.client.client import SwarmClient
from swarm.client.episode import DEFAULT_WAIT_S
from swarm.client.heartbeat import BEATS_PER_LEASE, DEFAULT_LEASE_S
from swarm.client.runner import RunAgent, backoff_s
from swarm.errors import BadRequest, Conflict, NotFound, SwarmError
from swarm.schemas import EvaluationView
from swarm.types import EpisodeType, Task

logger = logging.getLogger(__name__)

MAX_ATTEMPTS = 3
CLAIM_WAIT_S = 20.0
"""How long a server holds a call while nothing is due."""
MAX_REASON = 1000


@dataclass(frozen=True, slots=True)
class EvaluationFailure:
    """An attempt that brought no reward, however often it was tried. `error` is one line."""

    task_id: str
    error: str


@dataclass(frozen=True, slots=True)
class Evaluation:
    """`mean` of all `n` rewards and its `stderr`, over tasks; None where there are too few rewards to say. `successes`
    are the attempts that solved their task.

    `rewards` maps each task id to the rewards of its attempts, in the order they ended, and `solved` to whether each of
    them solved its task. `weight_versions` are all that answered: more than one means that the weights changed in
    between. `episode_ids` are the scored episodes. Failures are in none of these figures.
    """

    n: int
    successes: int
    mean: float | None
    stderr: float | None
    rewards: Mapping[str, tuple[float, ...]]
    weight_versions: tuple[int, ...]
    failures: tuple[EvaluationFailure, ...]
    solved: Mapping[str, tuple[bool, ...]] = field(default_factory=dict[str, tuple[bool, ...]])
    episode_ids: tuple[str, ...] = ()


def evaluate(
    client: SwarmClient,
    tasks: Sequence[Task],
    run_agent: RunAgent,
    max_workers: int = 64,
    *,
    discard_episode_timeout: float = 240.0,
    wait_timeout: float = DEFAULT_WAIT_S,
    on_interrupt: Callable[[], None] | None = None,
) -> Evaluation:
    """Run the agent once per entry of `tasks`, as eval episodes; a task given k times is attempted k times.

    A failure is never a reward: the attempt is repeated, 3 times in all, then listed under `failures`. An interrupt
    (Ctrl-C) is raised once the attempts under way have ended; `on_interrupt` is called before, to make them end.

    Raises BadRequest for an empty list; ServerUnreachable or Unauthorized if the server cannot be asked at all.
    """
    if not tasks:
        raise BadRequest("nothing to evaluate: give at least one task", param="tasks")
    client.status()
    run = _Evaluator(client, run_agent, discard_episode_timeout, wait_timeout)
    with ThreadPoolExecutor(max(1, min(max_workers, len(tasks))), thread_name_prefix="eval") as pool:
        try:
            outcomes = list(pool.map(run.attempt, tasks))
        except BaseException:
            run.stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            if on_interrupt is not None:
                on_interrupt()
            raise
    return _summarize(outcomes)


@dataclass(frozen=True, slots=True)
class _Scored:
    task_id: str
    reward: float
    is_success: bool
    weight_versions: tuple[int, ...]
    episode_id: str


class _Evaluator:
    def __init__(
        self, client: SwarmClient, run_agent: RunAgent, discard_episode_timeout: float, wait_timeout: float
    ) -> None:
        self._client = client
        self._run_agent = run_agent
        self._discard_episode_timeout = discard_episode_timeout
        self._wait_timeout = wait_timeout
        self.stop = threading.Event()

    def attempt(self, task: Task) -> _Scored | EvaluationFailure:
        reason = "stopped"
        for attempt in range(1, MAX_ATTEMPTS + 1):
            if self.stop.is_set():
                break
            try:
                return self._score(task)
            except Exception as error:  # noqa: BLE001 - the boundary: a failed attempt is data of the evaluation
                reason = f"{type(error).__name__}: {error}"
                logger.info("attempt %d at task %s failed: %s", attempt, task.task_id, reason)
            if attempt < MAX_ATTEMPTS:
                self.stop.wait(backoff_s(attempt))
        return EvaluationFailure(task.task_id, " ".join(reason.split()))

    def _score(self, task: Task) -> _Scored:
        with self._client.open_episode(
            task, EpisodeType.EVAL, self._discard_episode_timeout, wait_timeout=self._wait_timeout
        ) as episode:
            output = self._run_agent(task, episode.credentials)
            episode.output = output
        begun_at = (episode.credentials.weight_version,)
        versions = begun_at if episode.receipt is None else tuple(episode.receipt.weight_versions) or begun_at
        return _Scored(task.task_id, output.reward, bool(output.is_success), versions, episode.episode_id)


def follow_evaluations(
    client: SwarmClient,
    measure: Callable[[EvaluationView], Evaluation],
    *,
    on_score: Callable[[EvaluationView], None] | None = None,
    lease_s: float = DEFAULT_LEASE_S,
) -> None:
    """Score the weights whenever the server's job is due for it (its `eval_every`), until the job is complete.

    `measure` scores what is served, which does not change meanwhile. The server keeps an evaluation for a client that
    lives; one that was lost to another evaluator, or given up by the server, is passed over. Raises what `measure`
    raises, ServerUnreachable or EngineNotReady once the server was away for the client's `timeout`.
    """
    while True:
        claimed = client.claim_evaluation(lease_s=lease_s, wait_s=CLAIM_WAIT_S)
        if claimed.is_over:
            return
        if (due := claimed.evaluation) is None:
            continue
        with _kept(client, due.step, lease_s):
            result = measure(due)
        reason = None if result.episode_ids else _why_not(result)
        try:
            ended = client.end_evaluation(due.step, result.episode_ids, failures=len(result.failures), reason=reason)
        except (Conflict, NotFound) as error:
            logger.warning("the score of step %d does not count: %s", due.step, error.message)
        else:
            if on_score is not None:
                on_score(ended)


@contextmanager
def _kept(client: SwarmClient, step: int, lease_s: float) -> Generator[None]:
    """Renew a claimed evaluation from a thread for the length of a block."""
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(lease_s / BEATS_PER_LEASE):
            try:
                client.renew_evaluation(step)
            except Conflict as error:
                logger.warning("%s", error.message)
                return
            except SwarmError as error:
                logger.info("the evaluation of step %d is not renewed: %s", step, error.message)

    thread = threading.Thread(target=renew, name="evaluation lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()


def _why_not(result: Evaluation) -> str:
    return f"no attempt was scored; the first failure: {result.failures[0].error}"[:MAX_REASON]


def _summarize(outcomes: Sequence[_Scored | EvaluationFailure]) -> Evaluation:
    scored = [outcome for outcome in outcomes if isinstance(outcome, _Scored)]
    rewards: dict[str, list[float]] = defaultdict(list)
    solved: dict[str, list[bool]] = defaultdict(list)
    for outcome in scored:
        rewards[outcome.task_id].append(outcome.reward)
        solved[outcome.task_id].append(outcome.is_success)
    # Attempts at one task are not independent: the spread is that between tasks.
    by_task = [statistics.fmean(values) for values in rewards.values()]
    return Evaluation(
        n=len(scored),
        successes=sum(outcome.is_success for outcome in scored),
        mean=statistics.fmean(outcome.reward for outcome in scored) if scored else None,
        stderr=statistics.stdev(by_task) / math.sqrt(len(by_task)) if len(by_task) > 1 else None,
        rewards={task_id: tuple(values) for task_id, values in rewards.items()},
        weight_versions=tuple(sorted({version for outcome in scored for version in outcome.weight_versions})),
        failures=tuple(outcome for outcome in outcomes if isinstance(outcome, EvaluationFailure)),
        solved={task_id: tuple(values) for task_id, values in solved.items()},
        episode_ids=tuple(outcome.episode_id for outcome in scored),
    )
