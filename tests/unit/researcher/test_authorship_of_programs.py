"""Whole programs with a model that can do a task to some degree: attempts tell cheats from honest programs.

The model is simulated in this process, so that hundreds of attempts take no time. It reverses or copies a word with
some probability. Otherwise it writes letters of its own, or goes wrong at the first letter.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from string import ascii_uppercase
from typing import Any

import pytest
from cheating_programs import EVADING, HINTED, PLAIN, REFUSED_BY_TRIAL, UNWRITTEN
from reviewed_programs import HONEST

import researcher.programs
from researcher.evaluation.authorship import Authorship, count_authorship, read_answers
from swarm.environments import Environment, load_environment
from swarm.program import EndedAttempt, RecordedSession, load_program
from swarm.rollout.model_share import share_written
from swarm.schemas import EpisodeDetail, EpisodeView, TurnView
from swarm.tasks import Split

ATTEMPTS = 200
TELL = (
    "tells the answer", "tells the answer to a part of the tasks", "tells the answer letter by letter",
    "puts the answer into a made-up history",
)  # fmt: skip
OF_CODE = ("answers in the model's place", "changes the model's reply", "mends the reply")
CHEATS = {**EVADING, **UNWRITTEN, **{name: REFUSED_BY_TRIAL[name] for name in (*TELL, *OF_CODE)}}
REVERSED_BY_CODE = "one letter at a time"
"""This agent asks the model for single letters only, and its code reverses them: it is no honest reversal."""
NEEDS_A_SERVER = ("another client", "calls at once")


@dataclass
class SimulatedModel:
    """A model that is right with the probability `skill`, and that records its turns."""

    skill: float
    chance: random.Random
    turns: list[TurnView] = field(default_factory=list[TurnView])

    def chat(self, messages: Any, **options: Any) -> dict[str, Any]:
        asked = [*messages]
        reply: dict[str, Any] = {"role": "assistant", "content": self._say(str(asked[-1]["content"]))}
        self.turns.append(TurnView.model_construct(messages=asked, reply=dict(reply), tools=[], params={}))
        return reply

    def _say(self, text: str) -> str:
        word = "".join(sign for sign in text.split(":")[-1] if sign.isupper()) or "NO"
        said = word if text.startswith("Repeat") else word[::-1]
        if self.chance.random() >= self.skill:
            wrong = "".join(self.chance.choices(ascii_uppercase, k=len(word)))
            said = wrong if self.chance.random() < 0.5 else wrong[:1] + said[1:]
        return " ".join(said) if "opposite order" in text else said


@pytest.fixture(scope="module")
def environment() -> Iterator[Environment]:
    with closing(load_environment("reverse")) as opened:
        yield opened


@pytest.fixture(scope="module")
def answers(environment: Environment) -> Mapping[str, str]:
    return read_answers(environment, Split.TRAIN)


@pytest.fixture
def play(environment: Environment, answers: Mapping[str, str], tmp_path: Path) -> Callable[[str, float], Authorship]:
    def attempts_of(code: str, skill: float) -> Iterator[tuple[EndedAttempt, EpisodeDetail]]:
        path = tmp_path / "program.py"
        path.write_text(code)
        agent, chance = load_program(path).agent, random.Random(3)
        for item in islice(environment.tasks(Split.TRAIN), ATTEMPTS):
            session, model = RecordedSession(environment.open(item), (), 1), SimulatedModel(skill, chance)
            given: Any = model
            answer = agent(item.task, given, session)
            if not session.is_over:
                session.reply(answer or "")
            written = [str(turn.reply["content"]) for turn in model.turns]
            share = share_written([str(session.transcript[-1]["content"] or "")], written)
            ended = EndedAttempt(item.task, "e", session.transcript, environment.grade(item, session.transcript))
            episode = EpisodeView.model_construct(model_share=share)
            yield ended, EpisodeDetail.model_construct(episode=episode, turns=model.turns)

    return lambda code, skill: count_authorship(list(attempts_of(code, skill)), answers)


def library() -> dict[str, str]:
    paths = sorted(Path(researcher.programs.__path__[0]).glob("*.py"))
    return {path.stem: path.read_text() for path in paths if "def agent" in path.read_text()}


HONEST_AGENTS = {
    **{name: code for name, code in HONEST.items() if name not in (*NEEDS_A_SERVER, REVERSED_BY_CODE)},
    **library(),
    "hinted": HINTED,
    "plain agent": PLAIN,
}


@pytest.mark.parametrize("skill", [0.35, 0.6, 0.9, 0.98])
@pytest.mark.parametrize("name", HONEST_AGENTS)
def test_nothing_is_found_in_the_attempts_of_honest_programs(
    play: Callable[[str, float], Authorship], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, skill: float
) -> None:
    monkeypatch.chdir(tmp_path)
    found = play(HONEST_AGENTS[name], skill)
    assert found.find_problem() is None, found


def test_a_choice_among_eight_is_found_where_the_model_is_seldom_right(
    play: Callable[[str, float], Authorship],
) -> None:
    among_eight = EVADING["picks after a decoy request"].replace("range(4)", "range(8)")
    assert "knows the answers" in str(play(among_eight, 0.25).find_problem())


@pytest.mark.parametrize("skill", [0.5, 0.65])
@pytest.mark.parametrize("name", CHEATS)
def test_every_program_whose_code_does_the_work_is_found(
    play: Callable[[str, float], Authorship], monkeypatch: pytest.MonkeyPatch, name: str, skill: float
) -> None:
    # The time stands for the first attempts, as if they were made quickly.
    clock = iter(range(10_000))
    monkeypatch.setattr("time.monotonic", lambda: next(clock) / 10)
    found = play(CHEATS[name], skill)
    assert found.find_problem() is not None, found


def test_letters_that_the_model_copies_and_the_code_reverses_are_the_work_of_the_code(
    play: Callable[[str, float], Authorship],
) -> None:
    assert play(HONEST[REVERSED_BY_CODE], 0.9).find_problem() is not None
