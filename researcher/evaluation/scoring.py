"""The measuring of scores: eval episodes of a run's agent, graded by the environment, and what is stored of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

import swarm
from experiments_db import EpisodeSample, EpisodeSummary, Experiment, ExperimentStore, Run, hash_json
from researcher.charter import Charter
from researcher.errors import RunBroken, RunRejected, ScoreIncomplete
from researcher.evaluation.authorship import MOST_TASKS, count_authorship, read_answers
from researcher.evaluation.manipulation import AttemptTranscript, check_from_json, count_passing
from researcher.evaluation.shown_request import compare_requests
from researcher.execution.background import Drained
from researcher.execution.early_stopping import step_limit_s
from researcher.execution.environments import StudyEnvironments
from researcher.phases import AUTHORSHIP, COST, FINAL, MANIPULATION, PLAIN_AGENT, REQUESTS
from researcher.plan import ManipulationCheck
from researcher.player import Player, agent_for_all, agent_of, fixes_sampling, has_other_agent, plays_its_own
from researcher.record.costs import cost_of_attempts, cost_to_json
from swarm import Credentials, Evaluation, SwarmClient, Task
from swarm.environments import Environment
from swarm.errors import ProgramFailure
from swarm.program import (
    EVAL_TEMPERATURE,
    MAX_HUNG,
    PLAIN,
    EndedAttempt,
    Program,
    ProgramProcess,
    measure,
    place_program,
    reply_limit,
)
from swarm.sandbox import Sandbox
from swarm.tasks import Split

EVAL_WORKERS = 64
SAMPLED_EPISODES = 16
"""The final attempts of a run whose conversations are stored."""
TOKEN_SAMPLES = 4
"""Those of them that are stored token by token."""
CHECKED_EPISODES = 32
"""The final attempts of a run that a manipulation check looks at."""
MAX_BROKEN = 0.02
"""The largest share of a score's attempts that a program may break if the worst score is unknown.

The score of a broken attempt cannot be told then."""
MAX_REASONS, MAX_REASON_CHARS = 20, 300
"""Bounds on the stored reasons for one score's broken and repeated attempts."""


@dataclass(frozen=True, slots=True)
class RunScorer:
    """The measuring of scores of one study; `is_stopped` tells it to end early."""

    store: ExperimentStore
    charter: Charter
    home: Path
    sandbox: Sandbox | None
    environments: StudyEnvironments
    is_stopped: Callable[[], bool]

    def folder(self, run_id: str) -> Path:
        return self.home / "runs" / run_id

    def score(
        self,
        client: SwarmClient,
        run: Run,
        phase: str,
        split: str,
        *,
        version: int,
        details: Mapping[str, Any] = MappingProxyType({}),
    ) -> list[tuple[str, str]]:
        """Measure with the agent that plays this score, and store the score.

        Returns the ids of some of the tasks and of their episodes.
        """
        environment = self.environment()
        tasks = self.charter.tasks_of(split, explores=bool(run.rung))
        shown = islice(environment.tasks(Split(split)), tasks.start, min(tasks.start + SAMPLED_EPISODES, tasks.stop))
        first = {item.task.task_id for item in shown}
        check = self._check_of(run) if phase == FINAL else None
        player = self.player(run, phase)
        has_agent = phase == FINAL and not player.is_plain
        sampled: list[tuple[str, str]] = []
        ended: list[EndedAttempt] = []

        def on_attempt(task: Task, credentials: Credentials) -> None:
            self.check_stop()
            if task.task_id in first:
                sampled.append((task.task_id, credentials.episode_id))

        def on_end(attempt: EndedAttempt) -> None:
            if attempt.error is None or isinstance(attempt.error, ProgramFailure):
                ended.append(attempt)

        # The seed is fixed before the first attempt, and the same if the score is measured again.
        sampling_seed = int(hash_json({"run": run.id, "phase": phase, "split": split})[:12], 16)
        result = self.play(
            client,
            player,
            self.folder(run.id) / phase,
            split=split,
            tasks=tasks,
            seed=sampling_seed,
            worst=self.worst_score(run.study_id),
            wait_timeout=step_limit_s(run.job),
            on_attempt=on_attempt,
            on_end=on_end if has_agent or check is not None else None,
        )
        most = max(1, MAX_BROKEN * (tasks.stop - tasks.start))
        if self.charter.metric_range is None and len(result.broken) > most:
            raise RunRejected(
                f"the program broke {len(result.broken)} of {result.n} {phase} attempts, and the worst possible "
                f"score is unknown; the first: {result.broken[0].error}"
            )
        drawn = {**details, "sampling_seed": sampling_seed, "max_tokens": reply_limit(client, environment)}
        if check is not None:
            drawn[MANIPULATION] = self._count_passing(client, run, check, ended)
        if has_agent:
            drawn |= self._look_at_code(client, run, Split(split), tasks.start, ended)
        self.record_score(run, phase, split, result, version=version, details=drawn)
        return sampled

    def play(
        self,
        client: SwarmClient,
        player: Player,
        folder: Path,
        *,
        split: str,
        tasks: slice,
        seed: int,
        worst: float,
        wait_timeout: float,
        on_attempt: Callable[[Task, Credentials], None],
        on_end: Callable[[EndedAttempt], None] | None = None,
    ) -> Evaluation:
        """Return the score of the served weights with this agent, on these tasks of the split. Nothing is stored."""
        with _program(player, folder, client.url, None if player.is_trusted else self.sandbox) as program:
            return measure(
                client,
                self.environment(),
                program,
                split=Split(split),
                episodes=tasks.stop - tasks.start,
                skip=tasks.start,
                max_workers=EVAL_WORKERS,
                worst=worst,
                seed=seed,
                attempt_calls=self.charter.attempt_calls,
                attempt_tokens=self.charter.attempt_tokens,
                fixed_sampling=fixes_sampling(self.charter),
                wait_timeout=wait_timeout,
                on_attempt=on_attempt,
                on_end=on_end,
            )

    def _check_of(self, run: Run) -> ManipulationCheck | None:
        document = self._experiment(run).manipulation
        return None if document is None else check_from_json(document)

    def _count_passing(
        self, client: SwarmClient, run: Run, check: ManipulationCheck, ended: list[EndedAttempt]
    ) -> dict[str, Any]:
        """Return how many of the run's final attempts pass its arm's manipulation check, as JSON."""
        looked_at = sorted(ended, key=lambda attempt: attempt.task.task_id)[:CHECKED_EPISODES]
        said = [
            AttemptTranscript(
                tuple(attempt.transcript), tuple(turn.reply for turn in client.episode(attempt.episode_id).turns)
            )
            for attempt in looked_at
        ]
        folder = self.folder(run.id) / MANIPULATION
        return count_passing(check, said, folder=folder, server_url=client.url, sandbox=self.sandbox).to_json()

    def _look_at_code(
        self, client: SwarmClient, run: Run, split: Split, first: int, ended: list[EndedAttempt]
    ) -> dict[str, Any]:
        """Return in how many of the final attempts the code did the work of the model, and one request, as JSON."""
        runs = [item.id for item in self.store.list_runs(experiment_id=run.experiment_id) if item.id != run.id]
        scores = self.store.list_evaluations(run_ids=runs, phase=FINAL) if runs else []
        environment = self.environment()
        answers = read_answers(environment, split, skip=first)
        looked_at = [attempt for attempt in ended if attempt.task.task_id in answers or not answers][:MOST_TASKS]
        seen = [(attempt, client.episode(attempt.episode_id)) for attempt in looked_at]
        earlier = [score.details[AUTHORSHIP] for score in scores if AUTHORSHIP in score.details]
        return {
            AUTHORSHIP: count_authorship(seen, answers).to_json(earlier),
            REQUESTS: compare_requests(seen, environment.tools),
        }

    def worst_score(self, study_id: str) -> float:
        """Return the score of an attempt that the program breaks.

        It is the worse end of the metric's range, or the worst score of any attempt of the study.
        """
        is_minimized = self.charter.direction == "minimize"
        if self.charter.metric_range is not None:
            return self.charter.metric_range[1 if is_minimized else 0]
        scores = self.store.list_evaluations(study_id=study_id)
        rewards = [0.0, *(reward for score in scores for reward in score.details.get("rewards", ()))]
        return max(rewards) if is_minimized else min(rewards)

    def environment(self) -> Environment:
        """Open the environment of the charter.

        Raises RunBroken if its digest is not the charter's.
        """
        opened = self.environments.open(self.charter.environment)
        if opened.digest != self.charter.environment_digest:
            raise RunBroken(
                f"the environment {opened.name} was changed since the study began: its scores could not be compared"
            )
        return opened

    def player(self, run: Run, phase: str) -> Player:
        """Return the agent that plays a score of this phase of a run."""
        experiments = self.store.list_experiments(run.study_id)
        if plays_its_own(self.charter, phase):
            return agent_of(next(item for item in experiments if item.id == run.experiment_id))
        return agent_for_all(experiments)

    def phases_of(self, run: Run, phase: str) -> tuple[str, ...]:
        """Return the phases in which a run is scored at this point, `phase` last.

        A claim about an arm with an agent of its own needs the score of its weights with the baseline's agent too.
        """
        experiments = self.store.list_experiments(run.study_id)
        own = next(item for item in experiments if item.id == run.experiment_id)
        is_scored_twice = (
            phase in PLAIN_AGENT
            and not run.rung
            and plays_its_own(self.charter, phase)
            and has_other_agent(own, agent_for_all(experiments))
        )
        return (PLAIN_AGENT[phase], phase) if is_scored_twice else (phase,)

    def record_score(
        self,
        run: Run,
        phase: str,
        split: str,
        result: Evaluation,
        *,
        version: int,
        details: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """Store a score with the reward of every attempt, and the counts of broken and repeated attempts.

        Raises ScoreIncomplete if the system broke an attempt for good, and RunBroken if other weights answered.
        """
        way = self.evaluator_hash(run, phase, split)
        score = score_of(result, phase, split, self.charter.metric, way, version=version, details=details)
        self.store.record_evaluation(run.id, **score)

    def evaluator_hash(self, run: Run, phase: str, split: str) -> str:
        shared = None if plays_its_own(self.charter, phase) else self.player(run, phase)
        return evaluator_hash(self.charter, self.environment(), split, explores=bool(run.rung), shared=shared)

    def _experiment(self, run: Run) -> Experiment:
        return next(item for item in self.store.list_experiments(run.study_id) if item.id == run.experiment_id)

    def keep_episodes(self, client: SwarmClient, run: Run, sampled: Sequence[tuple[str, str]], version: int) -> None:
        """Store the conversations of attempts, given as ids of task and episode."""
        records: list[EpisodeSample] = []
        for task_id, episode_id in sampled[:SAMPLED_EPISODES]:
            detail = client.episode(episode_id)
            last = detail.turns[-1] if detail.turns else None
            summary = EpisodeSummary(
                run_id=run.id,
                episode_id=episode_id,
                kind="eval",
                split=self.charter.search_split,
                step=version,
                task_id=task_id,
                reward=detail.episode.reward,
                is_success=detail.episode.is_success,
                advantage=detail.advantage,
                weight_version=version,
                created_at=detail.episode.begun_at,
            )
            messages = (*last.messages, last.reply) if last else ()
            has_tokens = len(records) < TOKEN_SAMPLES
            samples = tuple(sample.model_dump(mode="json") for sample in detail.samples) if has_tokens else ()
            records.append(EpisodeSample(summary, messages, samples))
        self.store.record_episodes(run.id, records)

    def check_stop(self) -> None:
        if self.is_stopped():
            raise Drained


def evaluator_hash(
    charter: Charter, environment: Environment, split: str, *, explores: bool = False, shared: Player | None = None
) -> str:
    """Return a hash of the way of measuring and its tasks.

    Two scores with the same hash were measured in the same way on the same tasks. Exploring runs have tasks of their
    own. `shared` is the agent that plays for all arms; None if each arm's own agent plays.
    """
    place = charter.tasks_of(split, explores=explores)
    tasks = islice(environment.tasks(Split(split)), place.start, place.stop)
    limits = {"attempt_calls": charter.attempt_calls, "attempt_tokens": charter.attempt_tokens}
    return hash_json(
        {
            "environment_name": environment.name,
            "environment": environment.digest,
            "split": split,
            "tasks": sha256("\n".join(item.task.task_id for item in tasks).encode()).hexdigest(),
            "temperature": EVAL_TEMPERATURE,
            "fixed_sampling": fixes_sampling(charter),
            "max_turns": environment.max_turns,
            "max_tokens": environment.max_tokens,
            "version": swarm.__version__,
            **({} if shared is None else {"player": shared.digest}),
            **{name: limit for name, limit in limits.items() if limit is not None},
        }
    )


@contextmanager
def _program(player: Player, folder: Path, url: str, sandbox: Sandbox | None) -> Generator[Program]:
    """Yield the agent that plays. Unless it is the plain one, it runs in a process of its own, with files in `folder`.

    Foreign code needs a `sandbox`.
    """
    if player.is_plain:
        yield PLAIN
        return
    with (
        place_program(player.code, folder, url, sandbox) as place,
        ProgramProcess(place, max_hung=MAX_HUNG) as program,
    ):
        yield program


def score_of(
    result: Evaluation,
    phase: str,
    split: str,
    metric: str,
    way: str,
    *,
    version: int,
    details: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return a score as it is stored, with the reward of every attempt and the counts of broken and repeated ones.

    `way` is the hash of the way of measuring. Raises ScoreIncomplete if the system broke an attempt for good, and
    RunBroken if other weights answered.
    """
    if result.failures or result.mean is None:
        first = result.failures[0].error if result.failures else "no reason given"
        total = result.n + len(result.failures)
        raise ScoreIncomplete(f"{len(result.failures)} of {total} {phase} attempts have no score: {first}")
    if result.weight_versions != (version,):
        raise RunBroken(f"{phase} episodes were sampled from versions {result.weight_versions}, expected {version}")
    cost = cost_of_attempts(result.receipts, broken=len(result.broken), repeated=len(result.repeats))
    return {
        "phase": phase,
        "split": split,
        "metric": metric,
        "weight_version": version,
        "episodes": result.n,
        "successes": result.successes,
        "mean": result.mean,
        "stderr": result.stderr or 0.0,
        "evaluator_hash": way,
        "details": {
            **details,
            "temperature": EVAL_TEMPERATURE,
            **raw_rewards(result),
            COST: None if cost is None else cost_to_json(cost),
            "broken": len(result.broken),
            "repeated": len(result.repeats),
            "reasons": _counted((*(failure.error for failure in result.broken), *result.repeats)),
        },
    }


def _counted(reasons: Iterable[str]) -> dict[str, int]:
    """Return how often each reason occurs, most frequent first."""
    return dict(Counter(reason[:MAX_REASON_CHARS] for reason in reasons).most_common(MAX_REASONS))


def raw_rewards(result: Evaluation) -> dict[str, list[Any]]:
    """Return three aligned lists with one entry per episode: its task, its reward, and whether it solved the task."""
    return {
        "tasks": [task_id for task_id, rewards in result.rewards.items() for _ in rewards],
        "rewards": [reward for rewards in result.rewards.values() for reward in rewards],
        "solved": [solved for flags in result.solved.values() for solved in flags],
    }
