"""A planner that asks in words, with recorded answers instead of a language model, in a study that explores."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from researcher.charter import Charter
from researcher.errors import LanguageModelUnavailable
from researcher.history import History
from researcher.plan import Plan
from researcher.planner.language_model.framing import parse_frame
from researcher.planner.language_model.plans import parse_round
from researcher.study.settings import read_settings
from researcher.tree import RungScore, SearchNode, SearchTree

T = TypeVar("T")


class RecordedAnswers:
    """Gives the answers to questions of a kind one after the other; without one left, nobody answers."""

    name = "llm:recorded"

    def __init__(self, **answers: list[Any]) -> None:
        self.asked: list[tuple[str, str]] = []
        self._answers: Mapping[str, list[Any]] = {node: list(given) for node, given in answers.items()}

    def ask(self, node: str, question: str, parse: Callable[[str], T]) -> T:
        self.asked.append((node, question))
        if not self._answers.get(node):
            raise LanguageModelUnavailable(f"{node}: nobody answers")
        answer = self._answers[node].pop(0)
        return parse(answer if isinstance(answer, str) else json.dumps(answer))

    @property
    def last(self) -> str:
        """The last question."""
        return self.asked[-1][1]


def framed_search(answer: Mapping[str, Any] | None = None, **flags: Any) -> Charter:
    """The charter of an optimizing study on the fake engine, as a model frames it."""
    request = read_settings({"planner": "llm", "engine": "fake", "kind": "optimize", **flags}).request("Train it well.")
    text = json.dumps({"question": "What trains reverse best?", "family": "reverse", **(answer or {})})
    charter = parse_frame(text, request, "llm:recorded")
    assert isinstance(charter, Charter)
    return charter


def arm(name: str, operator: str | None = "improve", **fields: Any) -> dict[str, Any]:
    """An arm as a model answers it."""
    return {"name": name, "operator": operator, "purpose": f"what {name} is for", **fields}


FIRST_ROUND = {
    "rationale": "Two ideas.",
    "arms": [
        arm("fast", "tune", settings={"lr": 0.003}),
        arm("twice", "draft", program="asks twice", settings={"batch_size": 8}),
    ],
}


def explored(charter: Charter, scores: Mapping[str, float | str | None]) -> History:
    """A study after its first round: each arm with its score at the first rung, or why it is out."""
    first = parse_round(json.dumps(FIRST_ROUND), charter, History(runs_left=12.0), ())
    return _history(charter, (first,), scores)


def _history(charter: Charter, plans: tuple[Plan, ...], scores: Mapping[str, float | str | None]) -> History:
    nodes = [
        _node(charter, plan, name, scores.get(name)) for plan in plans for name in (each.name for each in plan.arms)
    ]
    return replace(History(plans=plans), tree=SearchTree(tuple(nodes)), runs_left=10.0)


def _node(charter: Charter, plan: Plan, name: str, score: float | str | None) -> SearchNode:
    planned = next(each for each in plan.arms if each.name == name)
    parents = (planned.parent,) if planned.parent else ()
    node = SearchNode(name, parents, planned.operator)
    if isinstance(score, str):
        return replace(node, failure=score)
    if score is None:
        return node
    return replace(node, scores=(RungScore(0.25, plan.rungs[name], score, 0.03, base=0.1, seconds=41.0),))
