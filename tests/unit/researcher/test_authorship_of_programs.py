"""Whole programs with a model that can do a task to some degree: attempts tell cheats from honest programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest
from cheating_programs import EVADING, HINTED, PLAIN, REFUSED_BY_TRIAL, UNWRITTEN
from reviewed_programs import HONEST
from simulated_play import play

import researcher.programs
from researcher.evaluation.authorship import Authorship, count_authorship, read_answers
from swarm.environments import Environment, load_environment
from swarm.tasks import Split

TELL = (
    "tells the answer", "tells the answer to a part of the tasks", "tells the answer letter by letter",
    "puts the answer into a made-up history",
)  # fmt: skip
OF_CODE = ("answers in the model's place", "changes the model's reply", "mends the reply")
CHEATS = {**EVADING, **UNWRITTEN, **{name: REFUSED_BY_TRIAL[name] for name in (*TELL, *OF_CODE)}}
REVERSED_BY_CODE = "one letter at a time"
"""This agent asks the model for single letters only, and its code reverses them: it is no honest reversal."""
NEEDS_A_SERVER = ("another client", "calls at once")


@pytest.fixture(scope="module")
def environment() -> Iterator[Environment]:
    with closing(load_environment("reverse")) as opened:
        yield opened


@pytest.fixture(scope="module")
def answers(environment: Environment) -> Mapping[str, str]:
    return read_answers(environment, Split.TRAIN)


@pytest.fixture
def count(environment: Environment, answers: Mapping[str, str], tmp_path: Path) -> Callable[[str, float], Authorship]:
    return lambda code, skill: count_authorship(list(play(code, environment, tmp_path, skill=skill)), answers)


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
    count: Callable[[str, float], Authorship], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, skill: float
) -> None:
    monkeypatch.chdir(tmp_path)
    found = count(HONEST_AGENTS[name], skill)
    assert found.find_problem() is None, found


def test_a_choice_among_eight_is_found_where_the_model_is_seldom_right(
    count: Callable[[str, float], Authorship],
) -> None:
    among_eight = EVADING["picks after a decoy request"].replace("range(4)", "range(8)")
    assert "knows the answers" in str(count(among_eight, 0.25).find_problem())


@pytest.mark.parametrize("skill", [0.5, 0.65])
@pytest.mark.parametrize("name", CHEATS)
def test_every_program_whose_code_does_the_work_is_found(
    count: Callable[[str, float], Authorship], monkeypatch: pytest.MonkeyPatch, name: str, skill: float
) -> None:
    # The time stands for the first attempts, as if they were made quickly.
    clock = iter(range(10_000))
    monkeypatch.setattr("time.monotonic", lambda: next(clock) / 10)
    found = count(CHEATS[name], skill)
    assert found.find_problem() is not None, found


def test_letters_that_the_model_copies_and_the_code_reverses_are_the_work_of_the_code(
    count: Callable[[str, float], Authorship],
) -> None:
    assert count(HONEST[REVERSED_BY_CODE], 0.9).find_problem() is not None
