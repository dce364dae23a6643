"""What the text of a program shows of held-out tasks, and what it reaches for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from researcher.history import Objection, ObjectionKind
from researcher.program_code import ProgramCode
from swarm.environments import Environment
from swarm.tasks import Split

HELD_OUT = (Split.VALIDATION, Split.TEST)
MOST_TASKS = 500
"""The tasks of each held-out split that are compared with the text."""
LEAST_CHARS = 6
"""A question or an answer with fewer characters may stand in any text."""
LONG_TABLE = 20
"""A literal list or mapping with so many entries may be a table of answers."""
SHARE_OF_TABLE = 0.3
OPAQUE_CHARS = 400
"""A literal with so many characters and no space is nothing that a person wrote to be read."""
_DIGEST = re.compile(r"[0-9a-f]{8,}")


@dataclass(frozen=True, slots=True)
class _HeldOut:
    """The questions and the answers of held-out tasks that are long enough to be recognized."""

    questions: frozenset[str]
    answers: frozenset[str]


def look_at_text(code: ProgramCode, environment: Environment) -> Iterator[Objection]:
    """Yield the objections to the text of a program."""
    held_out = _read_held_out(environment)
    yield from _literals(code, held_out)
    yield from _tables(code, held_out)
    first = {each.is_leak: each for each in reversed(list(code.reaches())) if each.is_beyond}
    for is_leak, reach in first.items():
        kind = ObjectionKind.LEAK if is_leak else ObjectionKind.OTHER
        yield Objection(kind, f"Line {reach.line}: {reach.what}.", is_grave=True)
    yield from _metadata(code, environment)


def _read_held_out(environment: Environment) -> _HeldOut:
    items = [item for split in HELD_OUT for item in islice(environment.tasks(split), MOST_TASKS)]
    solutions = (environment.solution(item) for item in items)
    return _HeldOut(
        frozenset(item.task.main_query for item in items if len(item.task.main_query) >= LEAST_CHARS),
        frozenset(answer for answer in solutions if answer is not None),
    )


def _literals(code: ProgramCode, held_out: _HeldOut) -> Iterator[Objection]:
    """Yield objections to literals with held-out questions, and to those that nobody can read."""
    texts = code.literals
    leaked = {question for question in held_out.questions if any(question in text for text in texts)}
    long_answers = {answer for answer in held_out.answers if len(answer) >= 2 * LEAST_CHARS}
    leaked |= {answer for answer in long_answers if answer in texts}
    if leaked:
        yield Objection(
            ObjectionKind.LEAK,
            f"Its text contains {len(leaked)} held-out question(s) or answer(s), such as {min(leaked)[:60]!r}.",
            is_grave=len(leaked) > 1,
        )
    opaque = next((text for text in texts if len(text) >= OPAQUE_CHARS and not re.search(r"\s", text)), None)
    if opaque is not None:
        yield Objection(
            ObjectionKind.LEAK,
            f"It holds a literal of {len(opaque)} characters that nobody can read, which may be a table of answers.",
            is_grave=True,
        )


def _tables(code: ProgramCode, held_out: _HeldOut) -> Iterator[Objection]:
    """Yield objections to long literal tables that match held-out tasks, or whose keys are digests."""
    words = {word for question in held_out.questions for word in question.split()} | held_out.answers
    for line, entries in code.tables(LONG_TABLE):
        matching = sum(entry in held_out.questions or (len(entry) > 2 and entry in words) for entry in entries)
        digests = sum(_DIGEST.fullmatch(entry) is not None for entry in entries)
        if max(matching, digests) >= SHARE_OF_TABLE * len(entries):
            what = "match held-out tasks" if matching >= digests else "are digests, under which answers can be hidden"
            yield Objection(
                ObjectionKind.LEAK,
                f"Line {line}: {max(matching, digests)} of the {len(entries)} entries of a literal table {what}.",
                is_grave=True,
            )


def _metadata(code: ProgramCode, environment: Environment) -> Iterator[Objection]:
    """Yield an objection if the program uses metadata of tasks, and these contain the answers."""
    line = code.find_metadata()
    if line is None:
        return
    for item in islice(environment.tasks(Split.TRAIN), 20):
        answer = environment.solution(item)
        if answer is not None and any(str(value) == answer for value in item.task.metadata.values()):
            yield Objection(
                ObjectionKind.LEAK,
                f"Line {line}: it uses the metadata of its tasks, and these contain the answers.",
                is_grave=True,
            )
            return
