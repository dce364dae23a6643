"""Score the weights a server serves: eval episodes on given tasks, a mean with its standard error.

Place in the flow: on top of SwarmClient, for whoever judges a model. Nothing measured here is ever trained on. Knows
nothing of agents.
"""

from __future__ import annotations

import logging
import math
import statistics
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from swarm.client.client import SwarmClient
from swarm.client.episode import DEFAULT_WAIT_S
from swarm.client.runner import RunAgent, backoff_s
from swarm.errors import BadRequest
from swarm.types import EpisodeType, Task

logger = logging.getLogger(__name__)

MAX_ATTEMPTS = 3


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
    between. Failures are in none of these figures.
    """

    n: int
    successes: int
    mean: float | None
    stderr: float | None
    rewards: Mapping[str, tuple[float, ...]]
    weight_versions: tuple[int, ...]
    failures: tuple[EvaluationFailure, ...]
    solved: Mapping[str, tuple[bool, ...]] = field(default_factory=dict[str, tuple[bool, ...]])


def evaluate(
    client: SwarmClient,
    tasks: Sequence[Task],
    run_agent: RunAgent,
    max_workers: int = 32,
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
        return _Scored(task.task_id, output.reward, bool(output.is_success), versions)


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
    )
