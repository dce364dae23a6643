"""The request that a study shows of an agent, beside the one of the plain agent for the same task."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from simulated_play import play
from telling_programs import CHEATS, HONEST, write

from researcher.evaluation.shown_request import compare_requests
from researcher.planner.texts import requests_as_text
from swarm.environments import Environment, load_environment


@pytest.fixture(scope="module")
def environment() -> Iterator[Environment]:
    with closing(load_environment("sort")) as opened:
        yield opened


def test_the_request_with_the_most_added_text_stands_beside_the_plain_one(
    environment: Environment, tmp_path: Path
) -> None:
    code = write(*CHEATS["the sorted letters, to be written backwards"])
    found = compare_requests(list(play(code, environment, tmp_path, skill=0.7, attempts=20)), environment.tools)
    (plain,), (own,) = found["plain"]["messages"], found["own"]["messages"]
    word, sent = plain["content"].removeprefix("Sort: "), own["content"].removeprefix("Reverse: ")
    assert sorted(word, reverse=True) == list(sent)
    assert found["unchanged"] <= 2 and found["requests"] == 20, "a word may be sorted by chance"
    shown = requests_as_text(found, 100)
    assert f"The plain agent asks (task {found['task']}):\n[user] Sort: {word}" in shown and f"Reverse: {sent}" in shown


@pytest.mark.parametrize("how", ["a scratchpad", "a vote", "asks twice"])
def test_requests_with_the_words_of_the_task_are_counted(environment: Environment, tmp_path: Path, how: str) -> None:
    found = compare_requests(list(play(HONEST[how], environment, tmp_path, skill=0.7, attempts=5)), environment.tools)
    assert found["unchanged"] == found["requests"] >= 10


def test_without_a_request_nothing_is_shown(environment: Environment, tmp_path: Path) -> None:
    code = "def agent(task, model, session):\n    return 'ABC'\n"
    assert compare_requests(list(play(code, environment, tmp_path, skill=0.7, attempts=3)), ()) == {}
