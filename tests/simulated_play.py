"""Attempts of a program with a model that is simulated in this process, so that hundreds of them take no time.

The model does what the bundled families ask, with some probability. Otherwise it writes letters or digits of its own,
or goes wrong at the first letter.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from string import ascii_uppercase, digits
from typing import Any

from swarm.environments import Environment
from swarm.program import EndedAttempt, RecordedSession, load_program
from swarm.rollout.model_share import share_written
from swarm.schemas import EpisodeDetail, EpisodeView, TurnView
from swarm.tasks import Split
from swarm.types import Message

_SUM = re.compile(r"(\d+)\s*([-+*])\s*(\d+)")
_COUNT = re.compile(r"How many ([A-Z]) in ([A-Z]+)")
_TASK = re.compile(r"(Reverse|Sort|Repeat): (\w+)")


@dataclass
class SimulatedModel:
    """A model that is right with the probability `skill`, and that records its turns.

    It solves the last task of the families that a request's last message has. If there is none, it gives the `answer`
    to a conversation that begins with the `question`, and to others the letters that it sees, backwards.
    """

    skill: float
    chance: random.Random
    question: str
    answer: str
    turns: list[TurnView] = field(default_factory=list[TurnView])

    def chat(self, messages: Any, *, tools: Any = (), **options: Any) -> dict[str, Any]:
        asked = [*messages]
        reply: dict[str, Any] = {"role": "assistant", "content": self._say(asked)}
        if tools and asked[-1]["role"] == "user" and (found := _SUM.search(str(asked[-1]["content"]))):
            function = {"name": "calculator", "arguments": f'{{"expression": "{found[0]}"}}'}
            reply = {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "function": function}]}
        choice = options.get("structured_outputs", {}).get("choice", ())
        params = {"grammar": {"kind": "regex", "text": "|".join(choice)}} if choice else {}
        tokens = [*(reply["content"] or ""), "<end>"]
        turn = TurnView.model_construct(
            messages=asked, reply=dict(reply), tools=[*tools], params=params, output_tokens=tokens,
            output_ids=[sorted(set(tokens)).index(token) for token in tokens],
        )  # fmt: skip
        self.turns.append(turn)
        return reply

    def _say(self, asked: Sequence[Message]) -> str:
        text = str(asked[-1]["content"])
        said = self._solve(text, is_asked=any(each["content"] == self.question for each in asked))
        if self.chance.random() >= self.skill:
            wrong = "".join(self.chance.choices(digits if said.isdigit() else ascii_uppercase, k=len(said)))
            said = wrong if self.chance.random() < 0.5 else wrong[:1] + said[1:]
        return " ".join(said) if "opposite order" in text else said

    def _solve(self, text: str, *, is_asked: bool) -> str:
        if found := _COUNT.findall(text):
            letter, word = found[-1]
            return str(word.count(letter))
        if found := _SUM.findall(text):
            left, sign, right = found[-1]
            return str({"+": int(left) + int(right), "-": int(left) - int(right), "*": int(left) * int(right)}[sign])
        if found := _TASK.findall(text):
            what, word = found[-1]
            return {"Reverse": word[::-1], "Sort": "".join(sorted(word)), "Repeat": word}[what]
        word = "".join(sign for sign in text.split(":")[-1] if sign.isupper()) or "NO"
        return self.answer if is_asked and "opposite order" not in text else word[::-1]


def play(
    code: str, environment: Environment, folder: Path, *, skill: float, attempts: int = 200, seed: int = 0
) -> Iterator[tuple[EndedAttempt, EpisodeDetail]]:
    """Yield the attempts of a program at train tasks in the order of `seed`, each with its record."""
    path = folder / "program.py"
    path.write_text(code)
    agent, chance = load_program(path).agent, random.Random(3 + seed)
    random.seed(seed)  # The agents that draw something draw the same in each play.
    for item in islice(environment.tasks(Split.TRAIN, seed), attempts):
        session = RecordedSession(environment.open(item), environment.tools, environment.max_turns)
        model = SimulatedModel(skill, chance, item.task.main_query, environment.solution(item) or "NO")
        given: Any = model
        answer = agent(item.task, given, session)
        if not session.is_over:
            session.reply(answer or "")
        final = [str(each["content"] or "") for each in session.transcript if each["role"] == "assistant"][-1:]
        share = share_written(final, [str(turn.reply["content"] or "") for turn in model.turns])
        ended = EndedAttempt(item.task, "e", session.transcript, environment.grade(item, session.transcript))
        episode = EpisodeView.model_construct(model_share=share)
        yield ended, EpisodeDetail.model_construct(episode=episode, turns=model.turns)
