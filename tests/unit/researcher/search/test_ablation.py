"""The ablations of an arm: one for each part that can be taken away by itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
from searched_study import BASELINE, STEPS, make_arm, make_charter

from experiments_db import Operator
from prompts import load
from researcher.charter import ComparedAt, Question, StudyKind
from researcher.question.factors import PROGRAM
from researcher.question.flags import read_factors
from researcher.search.confirmation import MOST_ABLATIONS, Subject, drop_function, list_ablations
from swarm.program import is_program

PLAIN = load("program")
AGENT = "def agent(task, model, session):\n    return 'x'\n"
REWARD = "def reward(task, transcript, grade):\n    return 2 * grade.score\n"
HEAD = "import math\n\nWORDS = ['a']\n\n"
CHARTER = make_charter()
BASE = Subject(BASELINE, PLAIN, True)


def of(name: str, code: str = PLAIN, **settings: object) -> Subject:
    return Subject(make_arm(name, **settings), code, False)


def test_arm_with_two_settings_is_run_without_each_of_them() -> None:
    found = list_ablations(CHARTER, of("best", lr=3e-3, num_repeat=16), BASE, {})

    jobs = {item.arm.name: (item.arm.job["lr"], item.arm.job.get("num_repeat")) for item in found}
    assert jobs == {"without lr": (1e-3, 16), "without num_repeat": (3e-3, None)}
    assert {(item.arm.parent, item.arm.operator) for item in found} == {("best", Operator.ABLATE)}
    assert all(item.program is not None and not item.program.trusted for item in found)


@pytest.mark.parametrize("subject", [of("best", lr=3e-3), of("best", REWARD), of("best")])
def test_arm_with_fewer_than_two_parts_has_no_ablation(subject: Subject) -> None:
    assert list_ablations(CHARTER, subject, BASE, {}) == ()


def test_functions_of_a_program_are_parts() -> None:
    found = list_ablations(CHARTER, of("best", HEAD + AGENT + "\n\n" + REWARD, lr=3e-3), BASE, {})

    codes = {item.arm.name: item.program.code for item in found if item.program is not None}
    assert "def agent" not in codes["without agent"] and "def reward" in codes["without agent"]
    assert "def reward" not in codes["without reward"] and "def agent" in codes["without reward"]
    assert all(is_program(code) for code in codes.values())
    assert codes["without lr"] == HEAD + AGENT + "\n\n" + REWARD


def test_arm_that_has_run_takes_the_place_of_an_ablation_that_equals_it() -> None:
    known = {"fast": of("fast", lr=3e-3)}

    found = list_ablations(CHARTER, of("best", lr=3e-3, num_repeat=16), BASE, known)

    assert [(item.arm.name, item.program is None) for item in found] == [("without lr", False), ("fast", True)]


def test_name_of_an_earlier_ablation_is_not_used_again_and_there_are_only_so_many() -> None:
    known = {"without lr": of("without lr", lr=9e-3)}
    settings = {"lr": 3e-3, "num_repeat": 16, "weight_decay": 0.1, "grad_clip": 0.5, "ppo_epochs": 2, "clip_ratio": 0.3}

    found = list_ablations(CHARTER, of("best", **settings), BASE, known)

    assert len(found) == MOST_ABLATIONS
    assert "without lr" not in [item.arm.name for item in found]


def test_factors_of_the_question_are_the_parts_and_every_arm_trains_on_as_many_episodes() -> None:
    question = Question(StudyKind.OPTIMIZE, factors=read_factors(["lr=1e-3,3e-3", "num_repeat=8,16"]))
    charter = replace(CHARTER, asks=question, compared_at=ComparedAt.EPISODES)
    base = Subject(make_arm("baseline", lr=1e-3, num_repeat=8, batch_size=2), PLAIN, True)
    best = of("best", lr=3e-3, num_repeat=16, batch_size=2, total_steps=STEPS // 2)

    found = {item.arm.name: item.arm for item in list_ablations(charter, best, base, {})}

    assert {name: arm.job["total_steps"] for name, arm in found.items()} == {
        "without lr": STEPS // 2,
        "without num_repeat": STEPS,
    }
    assert found["without lr"].factors["lr"] == 1e-3


def test_program_that_is_a_level_goes_back_to_that_of_the_baseline() -> None:
    base = Subject(replace(BASELINE, factors={PROGRAM: "plain"}), PLAIN, True)
    best = of("best", AGENT, lr=3e-3)
    best = replace(best, arm=replace(best.arm, factors={**best.arm.factors, PROGRAM: "clever"}))

    found = {item.arm.name: item for item in list_ablations(CHARTER, best, base, {})}

    ablated = found["without agent"]
    assert ablated.program is not None and (ablated.program.code, ablated.program.trusted) == (PLAIN, True)
    assert ablated.arm.factors[PROGRAM] == "plain"


@pytest.mark.parametrize(
    ("code", "left"),
    [
        (AGENT, PLAIN),
        (AGENT + REWARD, REWARD),
        (f"@staticmethod\n{AGENT}{REWARD}", REWARD),
        (f"{AGENT}{REWARD}other = agent\n", None),
        (f"{AGENT}{REWARD}__all__ = ['agent']\n", None),
    ],
)
def test_function_is_dropped_unless_something_else_uses_it(code: str, left: str | None) -> None:
    assert drop_function(code, "agent") == left
