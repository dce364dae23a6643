"""Checks of an environment's tasks and grader that need no model."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import islice

from swarm.digest import digest_of
from swarm.environments.base import DrivenEnvironment, Environment, EnvironmentTask, Grade
from swarm.tasks.base import Split
from swarm.types import Message

SAMPLES = 200
TOLERATED_CONSTANT = 0.5
"""Highest mean score for the same answer to all tasks. A choice between two answers must still pass."""
TOLERATED_JUNK = 0.1
"""Highest mean score for an empty answer. Graders with partial credit pay a little for some questions."""
JOINED = 50
TOLERATED_JOINED = 0.5
"""Highest mean score for a list of all answers. A grader may look at the last of two answers alone."""
SLOW_S = 1.0


class CheckSeverity(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check in one line, which says what to do unless all is well."""

    check: str
    severity: CheckSeverity
    message: str


@dataclass(frozen=True)
class _Sampled:
    environment: Environment
    by_split: dict[Split, list[EnvironmentTask]]
    seconds: float

    @property
    def train(self) -> list[EnvironmentTask]:
        return self.by_split[Split.TRAIN]

    @cached_property
    def solved(self) -> list[tuple[EnvironmentTask, str | None]]:
        """The train tasks with their solutions, each asked for once."""
        return [(task, self.environment.solution(task)) for task in self.train]

    def grade(self, task: EnvironmentTask, reply: str) -> Grade:
        return self.environment.grade(task, transcript_of(self.environment, task, reply))


def check_environment(environment: Environment, samples: int = SAMPLES) -> Iterator[CheckResult]:
    """Yield the result of each check.

    Raises what the environment raises: EnvironmentInvalid or EnvironmentFailure.
    """
    began = time.monotonic()
    by_split = {split: list(islice(environment.tasks(split), samples)) for split in Split}
    sampled = _Sampled(environment, by_split, time.monotonic() - began)
    of_tasks: Sequence[Callable[[_Sampled], CheckResult]] = (_tasks, _splits, _order)
    of_grades: Sequence[Callable[[_Sampled], CheckResult]] = (
        _solutions,
        _determinism,
        _empty_and_echo,
        _constant,
        _joined,
        _time,
    )
    for check in of_tasks:
        yield check(sampled)
    if isinstance(environment, DrivenEnvironment):
        message = f"skipped: {environment.refusal('grades for other agents')}; `swarm eval` runs it"
        yield CheckResult("grades", CheckSeverity.OK, message)
        return
    for check in of_grades:
        yield check(sampled)


def transcript_of(environment: Environment, task: EnvironmentTask, reply: str) -> list[Message]:
    """Return the transcript of an attempt whose first answer is `reply`."""
    session = environment.open(task)
    message: Message = {"role": "assistant", "content": reply}
    return [*session.messages, message, *(session.reply(message) or ())]


def _tasks(sampled: _Sampled) -> CheckResult:
    counts = ", ".join(f"{len(tasks)} {split}" for split, tasks in sampled.by_split.items())
    if empty := [split for split, tasks in sampled.by_split.items() if not tasks]:
        return CheckResult("tasks", CheckSeverity.FAIL, f"no tasks in {', '.join(empty)} ({counts} checked): add some")
    return CheckResult("tasks", CheckSeverity.OK, f"{counts} checked")


def _splits(sampled: _Sampled) -> CheckResult:
    first: dict[str, Split] = {}
    is_one_question = sampled.environment.max_turns == 1 and not isinstance(sampled.environment, DrivenEnvironment)
    for split, tasks in sampled.by_split.items():
        for task in tasks:
            # Tasks of several turns may begin with the same message and differ later.
            key = task.task.main_query if is_one_question else digest_of([task.task.main_query, task.answer])
            other = first.setdefault(key, split)
            if other is not split:
                question = task.task.main_query[:60]
                return CheckResult(
                    "splits", CheckSeverity.FAIL, f"{question!r} is in both {other} and {split}: keep it in one"
                )
    return CheckResult("splits", CheckSeverity.OK, "no question is in two splits")


def _order(sampled: _Sampled) -> CheckResult:
    again = islice(sampled.environment.tasks(Split.TRAIN), len(sampled.train))
    if [task.task.task_id for task in again] != [task.task.task_id for task in sampled.train]:
        return CheckResult(
            "order", CheckSeverity.FAIL, "the same seed gave other tasks: make tasks depend on split and seed alone"
        )
    return CheckResult("order", CheckSeverity.OK, "the same seed gives the same tasks")


def _solutions(sampled: _Sampled) -> CheckResult:
    known = [(task, solution) for task, solution in sampled.solved if solution is not None]
    if not known:
        return CheckResult("solutions", CheckSeverity.OK, "no solutions are known, so none was graded")
    for task, solution in known:
        grade = sampled.grade(task, solution)
        if not grade.is_success:
            return CheckResult(
                "solutions",
                CheckSeverity.FAIL,
                f"the right answer {solution[:40]!r} of {task.task.task_id} is graded {grade.score:g}: fix the grader",
            )
    return CheckResult("solutions", CheckSeverity.OK, f"{len(known)} right answers are graded as right")


def _determinism(sampled: _Sampled) -> CheckResult:
    for task, solution in sampled.solved:
        for reply in (solution or "", "?"):
            if sampled.grade(task, reply) != sampled.grade(task, reply):
                return CheckResult(
                    "determinism",
                    CheckSeverity.FAIL,
                    f"{task.task.task_id}: one attempt got two grades: fix the grader",
                )
    return CheckResult("determinism", CheckSeverity.OK, "an attempt always gets the same grade")


def _empty_and_echo(sampled: _Sampled) -> CheckResult:
    empty = [sampled.grade(task, "").score for task in sampled.train]
    echo = [sampled.grade(task, task.task.main_query).score for task in sampled.train]
    earned = {"an empty answer": _mean(empty), "the question itself": _mean(echo)}
    message = " and ".join(f"{name} earns {score:.2f}" for name, score in earned.items())
    if max(earned.values()) > TOLERATED_JUNK:
        return CheckResult("empty answers", CheckSeverity.FAIL, f"{message} on average: fix the grader")
    return CheckResult("empty answers", CheckSeverity.OK, message)


def _constant(sampled: _Sampled) -> CheckResult:
    solutions = Counter(solution for _, solution in sampled.solved if solution is not None)
    if not solutions:
        return CheckResult(
            "constant answers", CheckSeverity.OK, "no solutions are known, so none was tried on all tasks"
        )
    reply, _ = solutions.most_common(1)[0]
    earned = _mean([sampled.grade(task, reply).score for task in sampled.train])
    message = f"the most common answer {reply[:40]!r} earns {earned:.2f} on average"
    if earned > TOLERATED_CONSTANT:
        return CheckResult(
            "constant answers",
            CheckSeverity.FAIL,
            f"{message}: a model would learn this answer alone, so vary the answers",
        )
    return CheckResult("constant answers", CheckSeverity.OK, message)


def _joined(sampled: _Sampled) -> CheckResult:
    """Grade a list of answers on the tasks whose right answer is in the list.

    On other tasks, even a careless grader pays nothing for it.
    """
    known = [(task, solution) for task, solution in sampled.solved if solution is not None]
    joined = [solution for solution, _ in Counter(solution for _, solution in known).most_common(JOINED)]
    if len(joined) < 2:
        return CheckResult("joined answers", CheckSeverity.OK, "fewer than two answers are known, so none were joined")
    reply = "\n".join(joined)
    earned = _mean([sampled.grade(task, reply).score for task, solution in known if solution in joined])
    message = f"a reply that lists {len(joined)} answers earns {earned:.2f} where the right one is among them"
    if earned > TOLERATED_JOINED:
        return CheckResult("joined answers", CheckSeverity.FAIL, f"{message}: have the grader compare the whole answer")
    return CheckResult("joined answers", CheckSeverity.OK, message)


def _time(sampled: _Sampled) -> CheckResult:
    tasks = sum(map(len, sampled.by_split.values()))
    began = time.monotonic()
    for task in sampled.train:
        sampled.grade(task, "?")
    each = (time.monotonic() - began) / max(1, len(sampled.train))
    message = (
        f"{1000 * sampled.seconds / max(1, tasks):.1f} ms to make a task, {1000 * each:.1f} ms to grade an attempt"
    )
    if each > SLOW_S:
        return CheckResult(
            "time", CheckSeverity.WARN, f"{message}: speed up the grader, because it slows training down"
        )
    return CheckResult("time", CheckSeverity.OK, message)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
