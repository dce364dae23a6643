"""Whether an environment teaches what it is meant to: what can be found wrong without a model.

Place in the flow: `swarm env check` prints the findings. Each check looks at the first tasks of every split. This
module knows nothing of where an environment comes from.
"""

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
"""What one answer to everything may earn: a task with two answers to choose from is still one."""
TOLERATED_JUNK = 0.1
"""What no answer at all may earn on average: graders with partial credit pay a little for some questions."""
JOINED = 50
TOLERATED_JOINED = 0.5
"""What all answers at once may earn: of two answers to choose from, a grader may look at the last one alone."""
SLOW_S = 1.0


class Severity(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One line of what was found; what to do is in it unless all is well."""

    check: str
    severity: Severity
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
        """The train tasks with their solutions, for each of which the environment is asked once."""
        return [(task, self.environment.solution(task)) for task in self.train]

    def grade(self, task: EnvironmentTask, reply: str) -> Grade:
        return self.environment.grade(task, transcript_of(self.environment, task, reply))


def check_environment(environment: Environment, samples: int = SAMPLES) -> Iterator[CheckResult]:
    """Findings one by one. Raises what the environment raises: EnvironmentInvalid, EnvironmentFailure."""
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
        message = f"not looked at: {environment.refusal('grades of other attempts')}; `swarm eval` plays it"
        yield CheckResult("grades", Severity.OK, message)
        return
    for check in of_grades:
        yield check(sampled)


def transcript_of(environment: Environment, task: EnvironmentTask, reply: str) -> list[Message]:
    """The attempt in which the first answer is `reply`."""
    session = environment.open(task)
    message: Message = {"role": "assistant", "content": reply}
    return [*session.messages, message, *(session.reply(message) or ())]


def _tasks(sampled: _Sampled) -> CheckResult:
    counts = ", ".join(f"{len(tasks)} {split}" for split, tasks in sampled.by_split.items())
    if empty := [split for split, tasks in sampled.by_split.items() if not tasks]:
        return CheckResult("tasks", Severity.FAIL, f"no task in {', '.join(empty)}: {counts} looked at")
    return CheckResult("tasks", Severity.OK, f"{counts} looked at")


def _splits(sampled: _Sampled) -> CheckResult:
    first: dict[str, Split] = {}
    is_one_question = sampled.environment.max_turns == 1 and not isinstance(sampled.environment, DrivenEnvironment)
    for split, tasks in sampled.by_split.items():
        for task in tasks:
            # Tasks of several turns may begin alike and go on differently.
            key = task.task.main_query if is_one_question else digest_of([task.task.main_query, task.answer])
            other = first.setdefault(key, split)
            if other is not split:
                question = task.task.main_query[:60]
                return CheckResult("splits", Severity.FAIL, f"{question!r} is in {other} and in {split}")
    return CheckResult("splits", Severity.OK, "no question is in two splits")


def _order(sampled: _Sampled) -> CheckResult:
    again = islice(sampled.environment.tasks(Split.TRAIN), len(sampled.train))
    if [task.task.task_id for task in again] != [task.task.task_id for task in sampled.train]:
        return CheckResult(
            "order", Severity.FAIL, "the same seed gave other tasks: tasks must depend on split and seed"
        )
    return CheckResult("order", Severity.OK, "the same seed gives the same tasks")


def _solutions(sampled: _Sampled) -> CheckResult:
    known = [(task, solution) for task, solution in sampled.solved if solution is not None]
    if not known:
        return CheckResult("solutions", Severity.OK, "no solutions are known, so none was graded")
    for task, solution in known:
        grade = sampled.grade(task, solution)
        if not grade.is_success:
            return CheckResult(
                "solutions",
                Severity.FAIL,
                f"the right answer {solution[:40]!r} of {task.task.task_id} is graded {grade.score:g}: mend the grader",
            )
    return CheckResult("solutions", Severity.OK, f"{len(known)} right answers are graded as such")


def _determinism(sampled: _Sampled) -> CheckResult:
    for task, solution in sampled.solved:
        for reply in (solution or "", "?"):
            if sampled.grade(task, reply) != sampled.grade(task, reply):
                return CheckResult(
                    "determinism", Severity.FAIL, f"{task.task.task_id}: the same attempt was graded in two ways"
                )
    return CheckResult("determinism", Severity.OK, "an attempt is always graded the same")


def _empty_and_echo(sampled: _Sampled) -> CheckResult:
    empty = [sampled.grade(task, "").score for task in sampled.train]
    echo = [sampled.grade(task, task.task.main_query).score for task in sampled.train]
    earned = {"an empty answer": _mean(empty), "the question itself": _mean(echo)}
    message = " and ".join(f"{name} earns {score:.2f}" for name, score in earned.items())
    if max(earned.values()) > TOLERATED_JUNK:
        return CheckResult("empty answers", Severity.FAIL, f"{message} on average: mend the grader")
    return CheckResult("empty answers", Severity.OK, message)


def _constant(sampled: _Sampled) -> CheckResult:
    solutions = Counter(solution for _, solution in sampled.solved if solution is not None)
    if not solutions:
        return CheckResult("constant answers", Severity.OK, "no solutions are known, so none was tried on all tasks")
    reply, _ = solutions.most_common(1)[0]
    earned = _mean([sampled.grade(task, reply).score for task in sampled.train])
    message = f"the most common answer {reply[:40]!r} earns {earned:.2f} on average"
    if earned > TOLERATED_CONSTANT:
        return CheckResult("constant answers", Severity.FAIL, f"{message}: a model would learn to say nothing else")
    return CheckResult("constant answers", Severity.OK, message)


def _joined(sampled: _Sampled) -> CheckResult:
    """Graded where one of the joined answers is the right one: elsewhere a careless grader pays nothing either."""
    known = [(task, solution) for task, solution in sampled.solved if solution is not None]
    joined = [solution for solution, _ in Counter(solution for _, solution in known).most_common(JOINED)]
    if len(joined) < 2:
        return CheckResult("joined answers", Severity.OK, "fewer than two answers are known, so none were joined")
    reply = "\n".join(joined)
    earned = _mean([sampled.grade(task, reply).score for task, solution in known if solution in joined])
    message = f"a reply that lists {len(joined)} answers earns {earned:.2f} where the right one is among them"
    if earned > TOLERATED_JOINED:
        return CheckResult(
            "joined answers", Severity.FAIL, f"{message}: have the grader compare the answer, not look for it in a text"
        )
    return CheckResult("joined answers", Severity.OK, message)


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
        return CheckResult("time", Severity.WARN, f"{message}: grading will slow training down")
    return CheckResult("time", Severity.OK, message)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
