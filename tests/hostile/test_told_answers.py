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


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_study_of_agents_names_the_one_that_tells_and_keeps_it_only_for_a_person(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from experiments_db import ArmFailure, open_store, read_search_arms
    from researcher.cli.commands import app

    order = write(*CHEATS["the sorted letters, to be written backwards"])
    agents = {"plain": HONEST["lets the model choose a tool"], "order": order, "twice": HONEST["asks twice"]}
    for name, code in agents.items():
        (tmp_path / f"{name}.py").write_text(code)
    options = [
        *("--topic", "Which agent sorts letters best?", "--env", "sort", "--planner", "rules", "--train-model", "nano"),
        *("--fix", "batch_size=4", "--fix", "num_repeat=2", "--steps", "3", "--seeds", "3", "--eval-episodes", "60"),
        *("--underpowered", "--afresh", "--home", str(tmp_path)),
    ]

    def study(names: Iterable[str], *more: str) -> tuple[dict[str, Any], str]:
        programs = [word for name in names for word in ("--program", str(tmp_path / f"{name}.py"))]
        done = CliRunner().invoke(app, ["start", *options, *programs, *more])
        assert done.exit_code == 0, done.output
        with open_store(tmp_path / "research.db", read_only=True) as store:
            newest = store.list_studies(limit=1)[0]
            report = (tmp_path / "studies" / newest.id / "report" / "report.md").read_text()
            return {arm.name: arm for arm in read_search_arms(store, newest.id)}, report

    arms, report = study(agents)
    assert {name: arm.failure for name, arm in arms.items()} == {
        "plain": None, "order": ArmFailure.DISQUALIFIED, "twice": None,
    }  # fmt: skip
    assert "order is out of the ranking: its code tells the model about the answer" in report
    assert arms["order"].requests["unchanged"] < 6 and "[user] Reverse: " in report
    arms, report = study(["plain", "order"], "--accept", "order")
    assert arms["order"].failure is None
    assert "order is in by the decision of a person: its code tells the model about the answer" in report
