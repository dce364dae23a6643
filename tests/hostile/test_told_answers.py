"""An agent whose code tells the model about the answer is named, in every family; an honest workflow is not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from simulated_play import play
from telling_programs import CHEATS, HONEST, SOLVE, write

from researcher.evaluation.authorship import Authorship, count_authorship, read_answers
from swarm.environments import Environment, load_environment
from swarm.tasks import Split

ATTEMPTS = 100
SKILL = 0.7
ONE_OF_A_KIND = (
    "the sorted letters, to be written backwards", "the letters with their ranks", "sorted halves, to be merged",
    "sums of tens and of ones", "the sum in words", "the first letter", "the answer in every tenth task",
    "a tool of its own that solves the task", "the product in binary", "an example with the same letters",
    "a choice of sums", "sums of digits, joined by code",
)  # fmt: skip
"""The cheats that are played with every change."""
ONE_FAMILY = "sort"
Count = Callable[[str, str], Authorship]


def sort_out(cases: Iterable[Any], is_quick: Callable[[Any], bool]) -> list[Any]:
    """Return the cases, with the mark of slow ones on those that are not quick."""
    return [case if is_quick(case) else pytest.param(*case, marks=pytest.mark.slow) for case in cases]


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


@pytest.mark.parametrize(("how",), sort_out([(how,) for how in CHEATS], lambda case: case[0] in ONE_OF_A_KIND))
def test_an_agent_whose_code_knows_the_answer_is_named(count: Count, how: str) -> None:
    family, body = CHEATS[how]
    found = count(family, write(family, body))
    assert found.find_problem() is not None, found


@pytest.mark.parametrize(("how", "family"), sort_out(product(HONEST, SOLVE), lambda case: case[1] == ONE_FAMILY))
def test_an_honest_workflow_is_not_named(count: Count, how: str, family: str) -> None:
    found = count(family, HONEST[how])
    assert found.find_problem() is None, found
