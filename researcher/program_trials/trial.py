"""A trial of a program: a few attempts at train tasks with the base weights, before any training."""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

from experiments_db import ExperimentStore, ProgramTrial
from prompts import load
from researcher.evaluation.authorship import Authorship, count_authorship, read_answers
from researcher.evaluation.manipulation import AttemptTranscript, PassCount, count_passing, is_true_of_all
from researcher.evaluation.narrowing import CANDIDATES, LEAST_CANDIDATES
from researcher.plan import ManipulationCheck, ProgramProblem
from researcher.program_code import ProgramCode
from researcher.question.needs import acting
from swarm import SwarmClient
from swarm.environments import Environment
from swarm.errors import EnvironmentFailure, ProgramFailure, SwarmError
from swarm.program import PLAIN, EndedAttempt, Program, ProgramProcess, measure, place_program, rewards_of
from swarm.sandbox import Sandbox
from swarm.tasks import Split
from swarm.types import Message

BLANK_ATTEMPTS = 16
BLANK: Mapping[str, Any] = MappingProxyType({"engine": "fake", "n_gpu": 0})
"""The settings of a job whose model writes random letters."""
SOLVED_BLANK = 0.75
"""The gain over the plain agent from which on the code must have solved the tasks.

An agent that guesses one of two answers where it cannot read the model's gains a half. It gains this much in 16
attempts with a probability of 4 %."""
LEAST_NARROWED = 2
LEAST_UNWRITTEN = 2
"""The attempts from which on the code has left the model no choice, or has replied in its place."""
TRIAL_LIMIT_S = 300.0
"""The time in which the attempts of a trial must have ended. They run at once, so it limits each of them."""
MAX_HUNG = 2
"""After this number of attempts over the limit, the trial waits for no other."""
MAX_TEXT_CHARS = 4_000
MAX_MESSAGES = 60
"""Bounds on what is stored of an attempt: of one message, and of the session and the model calls each."""
MAX_ERROR_CHARS = 2_000
ONE_ROLE = ("",)


@dataclass(frozen=True, slots=True)
class TrialRequest:
    """The order for a trial: a program, the job whose base weights answer it, and the number of attempts.

    `job` is complete. `folder` gets the logs of the program. Without a `sandbox` the program is an ordinary process.
    `attempt_calls` and `attempt_tokens` limit each attempt, as in a score.
    """

    code: str
    job: Mapping[str, Any]
    environment: Environment
    folder: Path
    sandbox: Sandbox | None
    attempts: int = 8
    check: ManipulationCheck | None = None
    attempt_calls: int | None = None
    attempt_tokens: int | None = None
    boot_timeout_s: float = 600.0


@dataclass(frozen=True, slots=True)
class TriedAttempt:
    """One attempt of a trial.

    `messages` are those of the session, and `calls` the model calls of the agent, each with the last message of the
    request and the reply. `score` is the grade, None for a broken attempt. `reward` is what the program would train on,
    None if it has no reward of its own. `error` is why the attempt or its reward failed, with the lines of the program.
    """

    task_id: str
    messages: tuple[Message, ...]
    calls: tuple[Mapping[str, Any], ...] = ()
    score: float | None = None
    is_success: bool | None = None
    reward: float | None = None
    tokens: int = 0
    error: str | None = None
    passes: bool | None = None

    @property
    def is_broken(self) -> bool:
        return self.score is None

    def to_json(self) -> dict[str, Any]:
        """Return the attempt as the record of the trial has it, with capped texts."""
        return {
            "task": self.task_id,
            "messages": _capped(self.messages),
            "calls": _capped(self.calls),
            "score": self.score,
            "solved": self.is_success,
            "reward": self.reward,
            "error": self.error,
            **({} if self.passes is None else {"passes": self.passes}),
        }


@dataclass(frozen=True, slots=True)
class TrialResult:
    """The outcome of a trial: its attempts, its seconds, and what else went wrong.

    `schedule_error` is why the program's curriculum failed. `count` are the attempts that pass the manipulation check;
    None without one. `blank_gain` compares the program with the plain agent where the model writes random letters: its
    mean grade less that of the plain agent. It is None for a program without an agent, and if an attempt was broken.
    `by_code` says how the code solved tasks in the model's place; None if it did not. `limits`
    are the names of the limits on replies that depend on the task.
    """

    attempts: tuple[TriedAttempt, ...]
    seconds: float
    schedule_error: str | None = None
    count: PassCount | None = None
    blank_gain: float | None = None
    by_code: str | None = None
    limits: tuple[str, ...] = ()

    @property
    def broken(self) -> int:
        return sum(attempt.is_broken for attempt in self.attempts)

    @property
    def error(self) -> str | None:
        """The first error: of a broken attempt, a reward, the schedule or the check, else what the code solved."""
        broken = [each.error for each in self.attempts if each.is_broken]
        rewards = [each.error for each in self.attempts if not each.is_broken]
        of_check = None if self.count is None or self.count.error is None else f"manipulation check: {self.count.error}"
        return next(
            (error for error in (*broken, *rewards, self.schedule_error, of_check, self.by_code) if error), None
        )

    def store_in(self, store: ExperimentStore, study_id: str, code: str, *, experiment_id: str | None) -> ProgramTrial:
        """Append the trial to the record of a study."""
        return store.record_program_trial(
            study_id,
            code_digest=digest_code(code),
            attempts=len(self.attempts),
            broken=self.broken,
            seconds=self.seconds,
            experiment_id=experiment_id,
            mean=_mean([each.score for each in self.attempts]),
            mean_reward=_mean([each.reward for each in self.attempts]),
            calls=_mean([float(len(each.calls)) for each in self.attempts]),
            tokens=_mean([float(each.tokens) for each in self.attempts]),
            passed=None if self.count is None else self.count.passed,
            blank_gain=self.blank_gain,
            error=self.error,
            transcripts=[each.to_json() for each in self.attempts],
        )


def run_trial(client: SwarmClient, request: TrialRequest, check_stop: Callable[[], None]) -> TrialResult:
    """Try a program on the server of `client`, which nothing else may use meanwhile.

    Raises EnvironmentFailure if the environment fails an attempt, another SwarmError if the server or the sandbox does,
    and what `check_stop` raises. A program that cannot be started raises ProgramFailure or EnvironmentInvalid.
    """
    client.auto_sync_train_config_and_start_engine(
        dict(request.job), force_restart=True, boot_timeout=request.boot_timeout_s
    )
    try:
        check_stop()
        with _program(request, client.url) as program:
            began = time.monotonic()
            ended = _make_attempts(client, request, program, check_stop)
            seconds = time.monotonic() - began
            tried = [_look_at(client, program, each) for each in ended]
            schedule_error = _try_schedule(program, request)
            works = ProgramCode(request.code).has_agent and not any(each.is_broken for each in tried)
            by_code, blank_gain, limits = None, None, ()
            if works:
                seen = _count(client, request, ended)
                blank_gain, of_blank = _try_blank(client, request, program, check_stop)
                by_code, limits = of_blank or find_code_at_work(seen), seen.limits
    finally:
        client.stop_engine()
    count = None
    if request.check is not None:
        said = [AttemptTranscript(each.messages, tuple(call["reply"] for call in each.calls)) for each in tried]
        count = count_passing(
            request.check, said, folder=request.folder / "check", server_url=client.url, sandbox=request.sandbox
        )
        tried = [replace(each, passes=passes) for each, passes in zip(tried, count.passes, strict=True)]
    return TrialResult(tuple(tried), seconds, schedule_error, count, blank_gain, by_code, limits)


def find_code_at_work(seen: Authorship) -> str | None:
    """Return how the code solved tasks in the model's place, as far as the attempts of a trial show it."""
    if seen.told:
        return seen.find_problem()
    if seen.narrowed >= LEAST_NARROWED:
        return (
            f"its code leaves the model fewer than {LEAST_CANDIDATES} of {CANDIDATES} other replies, in "
            f"{seen.narrowed} of {seen.attempts} attempts, by limits that depend on the task "
            f"({', '.join(seen.limits)})"
        )
    if seen.unwritten >= max(LEAST_UNWRITTEN, seen.solved / 2):
        return (
            f"in {seen.unwritten} of {seen.solved} solved attempts the model did not write the reply: let the agent "
            "reply with the model's words"
        )
    return None


def _count(client: SwarmClient, request: TrialRequest, ended: Sequence[EndedAttempt]) -> Authorship:
    answers = read_answers(request.environment, Split.TRAIN)
    details = [(each, client.episode(each.episode_id)) for each in ended]
    return count_authorship(details, answers)


def _try_blank(
    client: SwarmClient, request: TrialRequest, program: Program, check_stop: Callable[[], None]
) -> tuple[float, str | None]:
    """Return how much more than the plain agent a program scores if the model writes random letters.

    Such a model knows nothing, so a program that still solves tasks solves them in its code. It obeys
    grammars and all other limits. The second value says how the code gave the model the answer, or did without it.
    """
    blank = replace(request, attempts=BLANK_ATTEMPTS, job=acting({**request.job, **BLANK}))
    client.auto_sync_train_config_and_start_engine(
        dict(blank.job), force_restart=True, boot_timeout=blank.boot_timeout_s
    )
    ended = _make_attempts(client, blank, program, check_stop)
    of_program, of_plain = (
        statistics.fmean(0.0 if each.grade is None else each.grade.score for each in attempts)
        for attempts in (ended, _make_attempts(client, blank, PLAIN, check_stop))
    )
    by_code = find_code_at_work(_count(client, blank, ended))
    return of_program - of_plain, by_code and f"with a model of random letters, {by_code}"


@contextmanager
def _program(request: TrialRequest, url: str) -> Generator[Program]:
    if request.code == load("program"):
        yield PLAIN
        return
    with (
        place_program(request.code, request.folder, url, request.sandbox) as place,
        place_program(request.code, request.folder / "shaping", url, request.sandbox) as shaping,
        ProgramProcess(place, shaping=shaping, attempt_limit_s=TRIAL_LIMIT_S, max_hung=MAX_HUNG) as program,
    ):
        yield program


def _make_attempts(
    client: SwarmClient, request: TrialRequest, program: Program, check_stop: Callable[[], None]
) -> list[EndedAttempt]:
    """Return the last attempt at each task. Raises the error of an attempt that the system broke for good."""
    ended: dict[str, EndedAttempt] = {}
    lock = threading.Lock()

    def keep(attempt: EndedAttempt) -> None:
        with lock:
            ended[attempt.task.task_id] = attempt

    result = measure(
        client,
        request.environment,
        program,
        split=Split.TRAIN,
        episodes=request.attempts,
        max_workers=request.attempts,
        seed=0,
        attempt_calls=request.attempt_calls,
        attempt_tokens=request.attempt_tokens,
        on_attempt=lambda _task, _credentials: check_stop(),
        on_end=keep,
    )
    if result.failures:
        lost = ended.get(result.failures[0].task_id)
        if lost is not None and lost.error is not None:
            raise lost.error
        raise EnvironmentFailure(f"an attempt could not be made: {result.failures[0].error}")
    return [ended[item] for item in result.rewards if item in ended]


def _look_at(client: SwarmClient, program: Program, ended: EndedAttempt) -> TriedAttempt:
    """Return an attempt with its model calls and its reward."""
    detail = client.episode(ended.episode_id)
    calls = tuple({"request": turn.messages[-1:], "reply": turn.reply} for turn in detail.turns)
    attempt = TriedAttempt(
        task_id=ended.task.task_id,
        messages=tuple(ended.transcript),
        calls=calls,
        tokens=detail.episode.usage.sampled_tokens,
    )
    if ended.grade is None:
        return replace(attempt, error=_in_full(ended.error))
    graded = replace(attempt, score=ended.grade.score, is_success=ended.grade.is_success)
    if program.reward is None:
        return graded
    try:
        returned = program.reward(ended.task, ended.transcript, ended.grade)
        return replace(graded, reward=rewards_of(returned, ONE_ROLE, program.name)[ONE_ROLE[0]])
    except ProgramFailure as failure:
        return replace(graded, error=f"reward: {_in_full(failure)}")


def _try_schedule(program: Program, request: TrialRequest) -> str | None:
    """Return why the program's curriculum fails on the tasks of the trial; None if it does not, or there is none."""
    if program.schedule is None:
        return None
    tasks = [item.task for item in islice(request.environment.tasks(Split.TRAIN), max(8, request.attempts))]
    try:
        chosen = program.schedule(tasks, 0.0)
    except ProgramFailure as failure:
        return f"schedule: {_in_full(failure)}"
    return None if chosen else f"schedule: it chose none of {len(tasks)} tasks; it must return at least one"


def find_problems(trial: ProgramTrial, code: str, check: ManipulationCheck | None) -> tuple[ProgramProblem, ...]:
    """Return what a trial has shown to be wrong with a program: what its author should repair before it trains."""
    found: list[str] = []
    if trial.broken:
        found.append(f"{trial.broken} of {trial.attempts} attempts were broken; the first: {trial.error}")
    elif trial.error is not None:
        found.append(trial.error)
    if ProgramCode(code).has_agent and trial.calls == 0 and not trial.broken:
        found.append(f"its agent asked the model nothing in {trial.attempts} attempts, so that nothing can be trained")
    if trial.blank_gain is not None and trial.blank_gain >= SOLVED_BLANK:
        found.append(
            f"it scores {trial.blank_gain:.2f} more than the plain agent if the model writes random letters: its code "
            "answers in the model's place"
        )
    if check is not None and is_true_of_all(check):
        found.append(f"its manipulation check is true of every transcript, so it shows nothing ({check.statement})")
    if check is not None and trial.passed is not None and trial.passed < check.share * trial.attempts:
        found.append(
            f"{trial.passed} of {trial.attempts} attempts pass its manipulation check ({check.statement}); at least "
            f"{check.share:.0%} must"
        )
    return tuple(ProgramProblem("trial", message) for message in found)


def digest_code(code: str) -> str:
    """Return the digest by which the record of a trial names a program."""
    return sha256(code.encode()).hexdigest()


def _in_full(error: SwarmError | None) -> str:
    """Return an error with the lines of the program that led to it."""
    notes = getattr(error, "__notes__", ())
    return "\n".join([str(error), *notes])[:MAX_ERROR_CHARS].rstrip()


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return statistics.fmean(known) if known else None


def _capped(messages: Sequence[Any]) -> list[Any]:
    """Return the first and last messages, with their texts cut, so that a record stays small."""
    half = MAX_MESSAGES // 2
    kept = [*messages] if len(messages) <= MAX_MESSAGES else [*messages[:half], *messages[-half:]]
    return [_cut(each) for each in kept]


def _cut(value: Any) -> Any:
    if isinstance(value, str) and len(value) > MAX_TEXT_CHARS:
        half = MAX_TEXT_CHARS // 2
        return f"{value[:half]} [... {len(value) - 2 * half} characters left out ...] {value[-half:]}"
    if isinstance(value, Mapping):
        return {str(name): _cut(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_cut(each) for each in value]
    return value
