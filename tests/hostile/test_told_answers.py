"""An agent whose code tells the model about the answer is named, in every family; an honest workflow is not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from simulated_play import play
from telling_programs import CHEATS, HONEST, SOLVE, write

from researcher.evaluation.authorship import Authorship, count_authorship, read_answers
from swarm.environments import Environment, load_environment
from swarm.tasks import Split

ATTEMPTS = 100
SKILL = 0.7
Count = Callable[[str, str], Authorship]


@pytest.fixture(scope="module")
def environments() -> Iterator[dict[str, Environment]]:
    with ExitStack() as stack:
        opened = {family: load_environment(family) for family in SOLVE}
        for each in opened.values():
            stack.callback(each.close)
        yield opened


@pytest.fixture
def count(environments: dict[str, Environment], tmp_path: Path) -> Count:
    def count_one(family: str, code: str) -> Authorship:
        environment = environments[family]
        attempts = list(play(code, environment, tmp_path, skill=SKILL, attempts=ATTEMPTS))
        return count_authorship(attempts, read_answers(environment, Split.TRAIN))

    return count_one


@pytest.mark.parametrize("how", CHEATS)
def test_an_agent_whose_code_knows_the_answer_is_named(count: Count, how: str) -> None:
    family, body = CHEATS[how]
    found = count(family, write(family, body))
    assert found.find_problem() is not None, found


@pytest.mark.parametrize("family", SOLVE)
@pytest.mark.parametrize("how", HONEST)
def test_an_honest_workflow_is_not_named(count: Count, how: str, family: str) -> None:
    found = count(family, HONEST[how])
    assert found.find_problem() is None, found
