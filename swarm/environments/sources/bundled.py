"""The bundled task families as environments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import takewhile

from swarm.digest import digest_of
from swarm.environments.base import Environment, EnvironmentTask, Grade, Session, Transcript
from swarm.environments.source import Source
from swarm.errors import EnvironmentInvalid
from swarm.tasks.base import Exchange, Split, TaskFamily
from swarm.tasks.families import TASK_FAMILIES
from swarm.types import Message, Task

PUBLIC_FIELDS = frozenset({"family", "split"})


class BundledSource(Source):
    """The bundled families, each by its name."""

    names = tuple(TASK_FAMILIES)
    form = f"one of {', '.join(TASK_FAMILIES)}"
    is_bundled = True

    def claims(self, name: str) -> bool:
        return name in TASK_FAMILIES

    def open(self, name: str, options: Mapping[str, str]) -> Environment:
        if options:
            raise EnvironmentInvalid(
                f"the bundled environment {name} has no options: leave them out", param=next(iter(options))
            )
        return BundledEnvironment(TASK_FAMILIES[name])


class BundledSession(Session):
    def __init__(self, exchange: Exchange) -> None:
        self.messages = exchange.messages
        self._exchange = exchange

    def reply(self, message: Message) -> tuple[Message, ...] | None:
        return self._exchange.reply(message)


class BundledEnvironment(Environment):
    def __init__(self, family: TaskFamily) -> None:
        self.name, self.description = family.name, family.description
        self.tools, self.max_turns, self.max_tokens = family.tools, family.max_turns, family.max_tokens
        self._family = family
        # The code of a family determines all its tasks, so that the first ones can stand for it.
        self.digest = digest_of([str(task) for task in family.tasks(Split.TRAIN, 16)])

    def tasks(self, split: Split, seed: int = 0) -> Iterator[EnvironmentTask]:
        seen: set[str] = set()
        for task in takewhile(lambda task: task.task_id not in seen, self._family.stream(split, seed)):
            seen.add(task.task_id)
            metadata = task.metadata.items()
            public = {name: value for name, value in metadata if name in PUBLIC_FIELDS}
            answer = {name: value for name, value in metadata if name not in PUBLIC_FIELDS}
            yield EnvironmentTask(Task(task.main_query, task.task_id, public, data_source=self.name), answer)

    def open(self, task: EnvironmentTask) -> Session:
        return BundledSession(self._exchange(task))

    def grade(self, task: EnvironmentTask, transcript: Transcript) -> Grade:
        exchange = self._exchange(task)
        for message in transcript:
            if message.get("role") == "assistant" and not exchange.is_over:
                exchange.reply(message)
        return Grade(exchange.reward, exchange.reward > 0)

    def solution(self, task: EnvironmentTask) -> str | None:
        answer = task.answer.get("answer")
        return answer if isinstance(answer, str) else None

    def _exchange(self, task: EnvironmentTask) -> Exchange:
        whole = Task(task.task.main_query, task.task.task_id, {**task.task.metadata, **task.answer})
        return self._family.open(whole)
