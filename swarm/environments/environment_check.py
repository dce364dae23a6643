"""Checks of an environment's tasks and grader that need no model."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
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


Finding = tuple[CheckSeverity, str]
OK, WARN, FAIL = CheckSeverity.OK, CheckSeverity.WARN, CheckSeverity.FAIL


def check_environment(environment: Environment, samples: int = SAMPLES) -> Iterator[CheckResult]:
    """Yield the result of each check.

    Raises what the environment raises: EnvironmentInvalid or EnvironmentFailure.
    """
    began = time.monotonic()
    by_split = {split: list(islice(environment.tasks(split), samples)) for split in Split}
    sampled = _Sampled(environment, by_split, time.monotonic() - began)
    checks = _OF_TASKS if isinstance(environment, DrivenEnvironment) else {**_OF_TASKS, **_OF_GRADES}
    for name, check in checks.items():
        yield CheckResult(name, *check(sampled))
    if isinstance(environment, DrivenEnvironment):
        message = f"skipped: {environment.refusal('grades for other agents')}; `swarm eval` runs it"
        yield CheckResult("grades", OK, message)


def transcript_of(environment: Environment, task: EnvironmentTask, reply: str) -> list[Message]:
    """Return the transcript of an attempt whose first answer is `reply`."""
    session = environment.open(task)
    message: Message = {"role": "assistant", "content": reply}
    return [*session.messages, message, *(session.reply(message) or ())]


def _tasks(sampled: _Sampled) -> Finding:
    counts = ", ".join(f"{len(tasks)} {split}" for split, tasks in sampled.by_split.items())
    if empty := [split for split, tasks in sampled.by_split.items() if not tasks]:
        return FAIL, f"no tasks in {', '.join(empty)} ({counts} checked): add some"
    return OK, f"{counts} checked"


def _splits(sampled: _Sampled) -> Finding:
    first: dict[str, Split] = {}
    is_one_question = sampled.environment.max_turns == 1 and not isinstance(sampled.environment, DrivenEnvironment)
    for split, tasks in sampled.by_split.items():
        for task in tasks:
            # Tasks of several turns may begin with the same message and differ later.
            key = task.task.main_query if is_one_question else digest_of([task.task.main_query, task.answer])
            other = first.setdefault(key, split)
            if other is not split:
                question = task.task.main_query[:60]
                return FAIL, f"{question!r} is in both {other} and {split}: keep it in one"
    return OK, "no question is in two splits"


def _order(sampled: _Sampled) -> Finding:
    again = islice(sampled.environment.tasks(Split.TRAIN), len(sampled.train))
    if [task.task.task_id for task in again] != [task.task.task_id for task in sampled.train]:
        return FAIL, "the same seed gave other tasks: make tasks depend on split and seed alone"
    return OK, "the same seed gives the same tasks"


def _solutions(sampled: _Sampled) -> Finding:
    known = [(task, solution) for task, solution in sampled.solved if solution is not None]
    if not known:
        return OK, "no solutions are known, so none was graded"
    for task, solution in known:
        grade = sampled.grade(task, solution)
        if not grade.is_success:
            return (
                FAIL,
                f"the right answer {solution[:40]!r} of {task.task.task_id} is graded {grade.score:g}: fix the grader",
            )
    return OK, f"{len(known)} right answers are graded as right"


def _determinism(sampled: _Sampled) -> Finding:
    for task, solution in sampled.solved:
        for reply in (solution or "", "?"):
            if sampled.grade(task, reply) != sampled.grade(task, reply):
                return FAIL, f"{task.task.task_id}: one attempt got two grades: fix the grader"
    return OK, "an attempt always gets the same grade"


def _empty_and_echo(sampled: _Sampled) -> Finding:
    empty = [sampled.grade(task, "").score for task in sampled.train]
    echo = [sampled.grade(task, task.task.main_query).score for task in sampled.train]
    earned = {"an empty answer": _mean(empty), "the question itself": _mean(echo)}
    message = " and ".join(f"{name} earns {score:.2f}" for name, score in earned.items())
    if max(earned.values()) > TOLERATED_JUNK:
        return FAIL, f"{message} on average: fix the grader"
    return OK, message


def _constant(sampled: _Sampled) -> Finding:
    solutions = Counter(solution for _, solution in sampled.solved if solution is not None)
    if not solutions:
        return OK, "no solutions are known, so none was tried on all tasks"
    reply, _ = solutions.most_common(1)[0]
    earned = _mean([sampled.grade(task, reply).score for task in sampled.train])
    message = f"the most common answer {reply[:40]!r} earns {earned:.2f} on average"
    if earned > TOLERATED_CONSTANT:
        return FAIL, f"{message}: a model would learn this answer alone, so vary the answers"
    return OK, message


def _joined(sampled: _Sampled) -> Finding:
    """Grade a list of answers on the tasks whose right answer is in the list.

    On other tasks, even a careless grader pays nothing for it.
    """
    known = [(task, solution) for task, solution in sampled.solved if solution is not None]
    joined = [solution for solution, _ in Counter(solution for _, solution in known).most_common(JOINED)]
    if len(joined) < 2:
        return OK, "fewer than two answers are known, so none were joined"
    reply = "\n".join(joined)
    earned = _mean([sampled.grade(task, reply).score for task, solution in known if solution in joined])
    message = f"a reply that lists {len(joined)} answers earns {earned:.2f} where the right one is among them"
    if earned > TOLERATED_JOINED:
        return FAIL, f"{message}: have the grader compare the whole answer"
    return OK, message


def _time(sampled: _Sampled) -> Finding:
    tasks = sum(map(len, sampled.by_split.values()))
    began = time.monotonic()
    for task in sampled.train:
        sampled.grade(task, "?")
    each = (time.monotonic() - began) / max(1, len(sampled.train))
    message = (
        f"{1000 * sampled.seconds / max(1, tasks):.1f} ms to make a task, {1000 * each:.1f} ms to grade an attempt"
    )
    if each > SLOW_S:
        return WARN, f"{message}: speed up the grader, because it slows training down"
    return OK, message


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


_OF_TASKS: Mapping[str, Callable[[_Sampled], Finding]] = {"tasks": _tasks, "splits": _splits, "order": _order}
_OF_GRADES: Mapping[str, Callable[[_Sampled], Finding]] = {
    "solutions": _solutions,
    "determinism": _determinism,
    "empty answers": _empty_and_echo,
    "constant answers": _constant,
    "joined answers": _joined,
    "time": _time,
}
