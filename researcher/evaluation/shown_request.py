"""One request of an agent beside the one that the plain agent sends for the same task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from researcher.evaluation.added_text import find_added
from researcher.evaluation.authorship import RecordedAttempt, ask_tasks, read_opening
from researcher.evaluation.request_parts import limits_of, strings_in, strings_of
from swarm.schemas import TurnView
from swarm.types import ToolSpec

MOST_CHARS = 2_000
"""The characters of a text of a request that are stored."""


def compare_requests(attempts: Sequence[RecordedAttempt], tools: Sequence[ToolSpec]) -> dict[str, Any]:
    """Return the request with the most added text, and how many requests have all words of their task; empty for none.

    The plain agent sends the messages that the task begins with, and the tools of the environment.
    """
    attempts = sorted(attempts, key=lambda each: (each[0].task.task_id, each[0].episode_id))
    asked = [(attempt, detail.turns) for attempt, detail in attempts if detail.turns]
    if not asked:
        return {}
    added = find_added(ask_tasks([pair for pair in attempts if pair[1].turns], {}))
    most = max(range(len(asked)), key=lambda index: len(added[index][-1].words) if added[index] else 0)
    attempt, turns = asked[most]
    turn = turns[added[most][-1].turn if added[most] else 0]
    plain = {"messages": list(read_opening(attempt)), "tools": list(tools)}
    unchanged = [
        _has(turn, [text for message in read_opening(attempt) for text in strings_in(message.get("content"))])
        for attempt, turns in asked
        for turn in turns
    ]
    return {
        "task": attempt.task.task_id,
        "plain": _cut(plain),
        "own": _cut({"messages": turn.messages, "tools": turn.tools, "limits": _limits(turn)}),
        "unchanged": sum(unchanged),
        "requests": len(unchanged),
    }


def _limits(turn: TurnView) -> dict[str, Any]:
    """Return the limits of a request that have words; every request has limits of tokens."""
    return {name: value for name, value in limits_of(turn).items() if "token" not in name}


def _has(turn: TurnView, words: Sequence[str]) -> bool:
    """Return whether a request has all these texts, each in one of its own."""
    texts = list(strings_of(turn))
    return all(any(each in text for text in texts) for each in words)


def _cut(value: Any) -> Any:
    match value:
        case str():
            left_out = len(value) - MOST_CHARS
            return value if left_out <= 0 else f"{value[:MOST_CHARS]} [... {left_out} characters left out]"
        case Mapping():
            return {name: _cut(each) for name, each in value.items() if each not in (None, [], {})}
        case list() | tuple():
            return [_cut(each) for each in value]
        case _:
            return value
