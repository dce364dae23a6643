"""Held-out scores of the weights that a server serves: one score, or one whenever the training job asks for it."""

from __future__ import annotations

import logging
import math
import statistics
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from hashlib import sha256

from swarm.client.client import SwarmClient
from swarm.client.episode import DEFAULT_WAIT_S, EpisodeSampling, OpenEpisode
from swarm.client.fault_log import FaultLog
from swarm.client.heartbeat import BEATS_PER_LEASE, DEFAULT_LEASE_S
from swarm.client.pace import AttemptPace
from swarm.client.runner import RunAgent, backoff_s
from swarm.client.transient_errors import is_transient
from swarm.errors import (
    BadRequest,
    Conflict,
    EngineFailure,
    EnvironmentFailure,
    EpisodeEnded,
    FailedEngine,
    NotFound,
    ProgramFailure,
    SandboxUnavailable,
    SwarmError,
)
from swarm.intervals import Z95, wilson
from swarm.schemas import EndEpisodeResponse, EpisodeView, EvaluationView
from swarm.types import EpisodeType, Task, WorkflowOutput

logger = logging.getLogger(__name__)

ROUNDING = 1e-9

MAX_ATTEMPTS = 3
CLAIM_WAIT_S = 20.0
"""The time that a call waits on the server until an evaluation is due."""
MAX_REASON = 1000
SILENT = ("idle_timeout", "deadline")
"""The outcomes of an episode that the server aborts because its agent makes no progress."""


@dataclass(frozen=True, slots=True)
class EvaluationFailure:
    """An attempt that failed; `error` is the reason, in one line."""

    task_id: str
    error: str


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One held-out score of a model.

    `mean` is the mean of all `n` rewards. `stderr` is its standard error, computed over the means of the tasks. Each is
    None if there are too few rewards. `successes` counts the attempts that solved their task. `rewards` maps each task
    id to the rewards of its attempts, in the order of `tasks`, and `solved` to whether each of them solved it.
    `weight_versions` are the versions that were sampled. More than one means that the weights changed meanwhile.

    `episode_ids` are the scored episodes, and `receipts` the server's answers to their ends. If the server does not
    take the end of an attempt's episode, a second episode is begun and ended at once in its place. That receipt has the
    usage of the first episode.

    `broken` are the attempts that failed because of the program. They count, with the worst value. `failures` are the
    attempts that failed because of the system, also when repeated. They do not count. `repeats` are the reasons of the
    system's failures after which an attempt was repeated.
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
    broken: tuple[EvaluationFailure, ...] = ()
    repeats: tuple[str, ...] = ()
    receipts: tuple[EndEpisodeResponse, ...] = ()


def evaluate(
    client: SwarmClient,
    tasks: Sequence[Task],
    run_agent: RunAgent,
    max_workers: int = 64,
    *,
    worst: float | None = None,
    seed: int | None = None,
    sampling: EpisodeSampling | None = None,
    discard_episode_timeout: float = 240.0,
    wait_timeout: float = DEFAULT_WAIT_S,
    on_interrupt: Callable[[], None] | None = None,
    faults: FaultLog | None = None,
) -> Evaluation:
    """Run the agent in one eval episode for each entry of `tasks`, and return the score.

    A task that is given k times is attempted k times. If the system fails (the server did not answer, the environment
    failed), the same attempt is repeated, up to 3 attempts in all. After that it is listed in `failures`. If
    `run_agent` fails, the attempt is not repeated. It scores `worst`, or is listed in `failures` if `worst` is None. A
    ProgramFailure is a failure of `run_agent`, and so is every error that is not one of the system. At most
    `max_workers` attempts run at once, and fewer on a slow server (pace.py).

    `seed` fixes the sampling seed of each attempt before the first one begins. `sampling` holds further sampling
    settings of the episodes. On an interrupt (Ctrl-C), `on_interrupt` is called, which should end the attempts under
    way. The interrupt is raised when they have ended. `faults` logs and counts what attempts failed by.

    Raises BadRequest if `tasks` is empty, and ServerUnreachable or Unauthorized if the server cannot be asked. Raises
    FailedEngine as soon as the engine has failed.
    """
    if not tasks:
        raise BadRequest("nothing to evaluate: give at least one task", param="tasks")
    client.status()
    pace = AttemptPace(client, EpisodeType.EVAL, max_workers, total=len(tasks))
    run = _Evaluator(client, run_agent, worst, discard_episode_timeout, wait_timeout, faults, pace)
    attempts = list(_draw(tasks, seed, sampling or {}))
    with ThreadPoolExecutor(max(1, min(max_workers, len(tasks))), thread_name_prefix="eval") as pool:
        try:
            outcomes = list(pool.map(run.attempt, attempts))
        except BaseException:
            run.stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            if on_interrupt is not None:
                on_interrupt()
            raise
    if run.end is not None:
        raise run.end
    return _summarize(outcomes, run.repeats)


def attempt_seed(seed: int, task_id: str, number: int = 0) -> int:
    """Return the sampling seed of attempt `number` at a task; it is the same in every process."""
    digest = sha256(f"attempt {number} at {task_id} of {seed}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % 2**63


def _draw(tasks: Sequence[Task], seed: int | None, sampling: EpisodeSampling) -> Iterator[tuple[Task, EpisodeSampling]]:
    """Yield the attempts of a score, each with its sampling settings. They are drawn before the score begins."""
    numbers = Counter[str]()
    for task in tasks:
        drawn: EpisodeSampling = {**sampling}
        if seed is not None:
            drawn["sampling_seed"] = attempt_seed(seed, task.task_id, numbers[task.task_id])
            numbers[task.task_id] += 1
        yield task, drawn


@dataclass(frozen=True, slots=True)
class _Scored:
    """A counted attempt; `error` is the failure of the program, if it failed."""

    task_id: str
    reward: float
    is_success: bool
    weight_versions: tuple[int, ...]
    episode_id: str
    receipt: EndEpisodeResponse | None
    error: str | None = None


class _Evaluator:
    def __init__(
        self,
        client: SwarmClient,
        run_agent: RunAgent,
        worst: float | None,
        discard_episode_timeout: float,
        wait_timeout: float,
        faults: FaultLog | None,
        pace: AttemptPace,
    ) -> None:
        self._client = client
        self._faults = faults
        self._pace = pace
        self._run_agent = run_agent
        self._worst = worst
        self._discard_episode_timeout = discard_episode_timeout
        self._wait_timeout = wait_timeout
        self.stop = threading.Event()
        self.end: FailedEngine | None = None
        self.repeats: list[str] = []

    def attempt(self, drawn: tuple[Task, EpisodeSampling]) -> _Scored | EvaluationFailure:
        (task, sampling), reason = drawn, "stopped"
        for attempt in range(1, MAX_ATTEMPTS + 1):
            try:
                with self._pace:
                    if self.stop.is_set():
                        break
                    return self._score(task, sampling)
            except FailedEngine as error:
                # No other attempt can succeed either.
                self.end = error
                self.stop.set()
                break
            except Exception as error:  # noqa: BLE001 - the boundary: a failed attempt is data of the evaluation
                reason = _in_one_line(error)
                logger.info("attempt %d at task %s failed: %s", attempt, task.task_id, reason)
                if not _is_of_the_system(error) or attempt == MAX_ATTEMPTS:
                    self._count(task, error)
                    break
            self.repeats.append(reason)
            self.stop.wait(backoff_s(attempt))
        return EvaluationFailure(task.task_id, reason)

    def _score(self, task: Task, sampling: EpisodeSampling) -> _Scored:
        """Score one attempt. Raises the error of `run_agent`, unless the attempt counts with the worst value."""
        broken: str | None = None
        episode: OpenEpisode | None = None
        try:
            with self._open(task, sampling) as episode:
                try:
                    episode.output = self._run_agent(task, episode.credentials)
                except Exception as error:
                    if self._worst is None or _is_of_the_system(error):
                        raise
                    broken = _in_one_line(error)
                    self._count(task, error)
                    episode.output = _worst_output(self._worst, broken)
        except (BadRequest, EpisodeEnded) as error:
            # The agent is at fault if it is silent, or if the server refuses its result, as one that is too large.
            if episode is None or self._worst is None:
                raise
            lost = self._client.episode(episode.episode_id).episode
            if isinstance(error, EpisodeEnded) and not _was_silent(lost):
                raise
            broken = broken or _in_one_line(error)
            episode = self._end_instead(task, sampling, _worst_output(self._worst, broken), lost)
        assert episode is not None and episode.output is not None, "a begun episode has an output here"
        begun_at = (episode.credentials.weight_version,)
        receipt = episode.receipt
        versions = begun_at if receipt is None else tuple(receipt.weight_versions) or begun_at
        reward, is_success = episode.output.reward, bool(episode.output.is_success)
        return _Scored(task.task_id, reward, is_success, versions, episode.episode_id, receipt, broken)

    def _count(self, task: Task, error: Exception) -> None:
        if self._faults is not None:
            self._faults.add(f"the attempt at task {task.task_id}", error)

    def _open(self, task: Task, sampling: EpisodeSampling) -> AbstractContextManager[OpenEpisode]:
        return self._client.open_episode(
            task, EpisodeType.EVAL, self._discard_episode_timeout, wait_timeout=self._wait_timeout, **sampling
        )

    def _end_instead(
        self, task: Task, sampling: EpisodeSampling, output: WorkflowOutput, lost: EpisodeView
    ) -> OpenEpisode:
        """End a second episode in the place of a lost one. Its receipt has the usage of the lost one."""
        with self._open(task, sampling) as episode:
            episode.output = output
        assert episode.receipt is not None, "an episode that was ended has a receipt"
        used = {"usage": lost.usage, "weight_versions": lost.weight_versions}
        episode.receipt = episode.receipt.model_copy(update=used)
        return episode


def _was_silent(lost: EpisodeView) -> bool:
    """Return whether the server aborted an episode because its agent, and not a slow server, took too long."""
    return lost.outcome in SILENT and not lost.usage.system_failures


def _worst_output(worst: float, broken: str) -> WorkflowOutput:
    return WorkflowOutput(worst, False, {"broken": broken[:MAX_REASON]})


_OF_THE_SYSTEM = (EngineFailure, EnvironmentFailure, SandboxUnavailable)


def _is_of_the_system(error: Exception) -> bool:
    """Return whether the agent is not at fault."""
    return not isinstance(error, ProgramFailure) and (isinstance(error, _OF_THE_SYSTEM) or is_transient(error))


def _in_one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def follow_evaluations(
    client: SwarmClient,
    measure: Callable[[EvaluationView], Evaluation],
    *,
    on_score: Callable[[EvaluationView], None] | None = None,
    lease_s: float = DEFAULT_LEASE_S,
) -> None:
    """Score the weights whenever an evaluation of the server's job is due, until the job is complete.

    The setting `eval_every` of the job says when. `measure` scores the served weights, which do not change meanwhile.
    The claim on an evaluation is renewed until `measure` returns. If another evaluator has taken the evaluation, or the
    server has abandoned it, its score is dropped. `on_score` is called with each score that counts. Raises the errors
    of `measure`, FailedEngine if the engine has failed, and ServerUnreachable or EngineNotReady if the server does not
    serve for the client's `timeout`.
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
            logger.warning("the score of step %d was dropped: %s", due.step, error.message)
        else:
            if on_score is not None:
                on_score(ended)


@contextmanager
def _kept(client: SwarmClient, step: int, lease_s: float) -> Generator[None]:
    """Renew the claim on an evaluation from a thread until the `with` block ends."""
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(lease_s / BEATS_PER_LEASE):
            try:
                client.renew_evaluation(step)
            except Conflict as error:
                logger.warning("%s", error.message)
                return
            except SwarmError as error:
                logger.info("the claim on the evaluation of step %d was not renewed: %s", step, error.message)

    thread = threading.Thread(target=renew, name="evaluation lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()


def _why_not(result: Evaluation) -> str:
    return f"no attempt was scored; the first failure: {result.failures[0].error}"[:MAX_REASON]


def _summarize(outcomes: Sequence[_Scored | EvaluationFailure], repeats: Sequence[str]) -> Evaluation:
    scored = [outcome for outcome in outcomes if isinstance(outcome, _Scored)]
    rewards: dict[str, list[float]] = defaultdict(list)
    solved: dict[str, list[bool]] = defaultdict(list)
    for outcome in scored:
        rewards[outcome.task_id].append(outcome.reward)
        solved[outcome.task_id].append(outcome.is_success)
    # Attempts at one task are not independent, so the standard error is computed over the means of the tasks.
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
        broken=tuple(EvaluationFailure(item.task_id, item.error) for item in scored if item.error is not None),
        repeats=tuple(repeats),
        receipts=tuple(outcome.receipt for outcome in scored if outcome.receipt is not None),
    )


def interval(rewards: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the mean: Wilson's if all rewards are 0 or 1, else the normal one.

    The normal interval needs at least two rewards. Without them its ends are infinite.
    """
    number = len(rewards)
    if not number:
        return -math.inf, math.inf
    mean = statistics.fmean(rewards)
    if all(reward in (0, 1) for reward in rewards):
        return wilson(mean, number)
    return _normal(mean, statistics.stdev(rewards) / math.sqrt(number) if number > 1 else None)


def interval_on_record(score: EvaluationView) -> tuple[float, float]:
    """Return the 95 % interval of a recorded score, whose single rewards are not known.

    If the rewards add up to the successes, they are taken to be all 0 or 1. The ends are infinite without a score.
    """
    if score.mean is None or not score.scored:
        return -math.inf, math.inf
    if abs(score.mean * score.scored - (score.successes or 0)) <= ROUNDING * score.scored:
        # Attempts at one task are not independent, so the tasks are counted.
        return wilson(score.mean, math.ceil(score.scored / score.attempts))
    return _normal(score.mean, score.stderr)


def _normal(mean: float, stderr: float | None) -> tuple[float, float]:
    margin = math.inf if stderr is None else Z95 * stderr
    return mean - margin, mean + margin
