"""Demonstrations for micro's warm-up: conversations of one or several questions, with right answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random

from recipes.micro.kinds import BASIC_KINDS, KINDS
from recipes.micro.kinds.base import Kind
from recipes.micro.tool_use import demonstrate_tool
from recipes.micro.wording import WordedQuestion, ask, ask_again, instruct
from recipes.nano.demos import Demo, stream_demos
from swarm.tasks import TASK_FAMILIES
from swarm.types import Message

SHARE_OF_TOOLS = 0.05
SHARE_OF_BUNDLED_TASKS = 0.08
SHARE_OF_SINGLE_QUESTIONS = 0.35
LONGEST = 6
"""Most questions in one conversation."""

_SYSTEMS = (
    "You are a helpful assistant.", "Be brief.", "Answer the question.", "You answer with as few words as possible.",
    "You solve small tasks.", "Follow the instructions of the user exactly.", "Give only the answer.", "Think first.",
)  # fmt: skip


def stream_conversations(rng: Random, around: Callable[[], float] = lambda: 1.0) -> Iterator[Demo]:
    """Yield demonstrations without end.

    `around` is called each time and returns a probability: that a question may have text around it, and that it may be
    of any kind instead of a basic one.
    """
    bundled = stream_demos(dict.fromkeys(TASK_FAMILIES, 1.0), rng, lambda _: 1.0)
    while True:
        luck = rng.random()
        if luck < SHARE_OF_TOOLS:
            yield demonstrate_tool(rng)
        elif luck < SHARE_OF_TOOLS + SHARE_OF_BUNDLED_TASKS:
            yield next(bundled)
        else:
            chance = around()
            yield converse(KINDS if rng.random() < chance else BASIC_KINDS, rng, chance)


def converse(kinds: Sequence[Kind], rng: Random, around: float = 1.0) -> Demo:
    """Return a conversation that begins with one kind of task and mostly stays with it."""
    kind = rng.choice(kinds)
    messages: list[Message] = []
    luck = rng.random()
    if luck < 0.15 * around:
        messages.append({"role": "system", "content": rng.choice(_SYSTEMS)})
    item = kind.draw(rng)
    question = ask(kind, item, rng, around=around)
    text = question.text
    if luck > 0.94 and question.wording.needs_only_subject:
        text = item.subject
        messages.append({"role": "system", "content": instruct(kind, question.wording, question.form, rng)})
    _exchange(messages, text, question.form.write(item))
    if rng.random() >= SHARE_OF_SINGLE_QUESTIONS:
        for _ in range(rng.randint(1, LONGEST - 1)):
            kind, question = _go_on(messages, kinds, kind, question, rng, around)
    return Demo(tuple(messages), ())


def _go_on(
    messages: list[Message], kinds: Sequence[Kind], kind: Kind, question: WordedQuestion, rng: Random, around: float
) -> tuple[Kind, WordedQuestion]:
    """Add one more question: mostly the same one about another item, else another wording or another kind."""
    luck = rng.random()
    if luck < 0.6:
        item = kind.draw(rng)
        _exchange(messages, ask_again(kind, question, item, rng), question.form.write(item))
        return kind, question
    if luck > 0.8:
        kind = rng.choice(kinds)
    item = kind.draw(rng)
    question = ask(kind, item, rng, around=around)
    _exchange(messages, question.text, question.form.write(item))
    return kind, question


def _exchange(messages: list[Message], question: str, answer: str) -> None:
    messages.append({"role": "user", "content": question})
    messages.append({"role": "assistant", "content": answer})
