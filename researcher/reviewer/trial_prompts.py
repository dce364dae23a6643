"""A look at what an agent asked its model in a trial: whether its code had put the answer into the question.

Place in the flow: the rules reviewer calls `look_at_prompts` with the trials of an arm and the environment. A model
that is told the answer only copies it. Nothing is run here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from experiments_db import ProgramTrial
from researcher.history import Objection, ObjectionKind
from swarm.environments import Environment
from swarm.tasks import Split

SHARE = 0.5
"""The share of attempts with a handed-over answer from which on it is no chance."""
MOST_TASKS = 500
"""The train tasks among which those of a trial are looked for: a trial has the first ones."""


def look_at_prompts(trials: Sequence[ProgramTrial], environment: Environment) -> Iterator[Objection]:
    """Yield an objection if most attempts of the last trial hand the answer to the model.

    It is grave if the first question of an attempt contains the answer: nothing that the model said can be in that.
    """
    told = [trial for trial in trials if trial.transcripts]
    if not told:
        return
    attempts = told[-1].transcripts
    solutions = _solutions(environment, {str(attempt["task"]) for attempt in attempts})
    handed = [_first_handed(attempt, solutions[task]) for attempt in attempts if (task := attempt["task"]) in solutions]
    seen = [call for call in handed if call is not None]
    if not seen or len(seen) < SHARE * len(attempts):
        return
    is_first = seen.count(0) >= SHARE * len(attempts)
    where = "the first question to the model" if is_first else "a question to the model"
    yield Objection(
        ObjectionKind.SOLVED_IN_CODE,
        f"In {len(seen)} of {len(attempts)} attempts of its trial {where} contains the answer, which stands neither in "
        "the task nor in a reply before it.",
        is_grave=is_first,
    )


def _solutions(environment: Environment, wanted: set[str]) -> dict[str, str]:
    """Return the known answers of tasks by their ids."""
    items = (item for item in islice(environment.tasks(Split.TRAIN), MOST_TASKS) if item.task.task_id in wanted)
    answers = ((item.task.task_id, environment.solution(item)) for item in items)
    return {task: answer.strip() for task, answer in answers if answer and answer.strip()}


def _first_handed(attempt: Mapping[str, Any], solution: str) -> int | None:
    """Return the number of the first model call that contains the answer, without a source for it; None for none."""
    answer = re.compile(rf"(?<!\w){re.escape(solution)}(?!\w)")
    said = [_text(message) for message in attempt["messages"] if message.get("role") != "assistant"]
    for number, call in enumerate(attempt.get("calls", ())):
        if any(map(answer.search, said)):
            return None
        if any(answer.search(_text(message)) for message in call["request"]):
            return number
        said.append(_text(call["reply"]))
    return None


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
