"""Bundled families and procedural data sets keep the promises of an environment."""

from __future__ import annotations

from itertools import islice

import pytest

from swarm.environments import load_environment
from swarm.environments.environment_check import CheckSeverity, check_environment
from swarm.environments.registry import options_of, with_options
from swarm.errors import EnvironmentInvalid, NotFound
from swarm.tasks import TASK_FAMILIES, Split

LIBRARY = ["reasoning_gym:chain_sum?min_terms=2&max_terms=2", "reasoning_gym:spell_backward", "reasoning_gym:gcd"]


@pytest.mark.parametrize("name", [*TASK_FAMILIES, *LIBRARY])
def test_environments_pass_their_checks(name: str) -> None:
    found = list(check_environment(load_environment(name), samples=30))
    assert [result for result in found if result.severity is CheckSeverity.FAIL] == []


@pytest.mark.parametrize("name", ["reverse", "reasoning_gym:chain_sum"])
def test_programs_do_not_see_answers(name: str) -> None:
    environment = load_environment(name)
    for each in islice(environment.tasks(Split.TRAIN), 20):
        solution = environment.solution(each)
        assert solution and solution not in str(dict(each.task.metadata).values())


def test_options_are_added_to_a_name_or_take_the_place_of_those_that_it_has() -> None:
    name = "tasks.jsonl?grader=exact&max_tokens=9"
    odd = {"query": "a&b=1+1 %", "public": "[a, b]"}

    assert with_options("tasks.jsonl", {"max_tokens": "3"}) == "tasks.jsonl?max_tokens=3"
    assert with_options(name, {"max_tokens": "3"}) == "tasks.jsonl?grader=exact&max_tokens=3"
    assert options_of(with_options(name, odd)) == {"grader": "exact", "max_tokens": "9", **odd}


def test_partial_pay_for_any_answer_is_worth_nothing() -> None:
    environment = load_environment("reasoning_gym:chain_sum")
    task = next(environment.tasks(Split.TRAIN))
    assert environment.grade(task, [{"role": "assistant", "content": "?"}]).score == 0
    tagged = f"I think <answer>{environment.solution(task)}</answer>."
    assert environment.grade(task, [{"role": "assistant", "content": tagged}]).is_success


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("revers", "there is no environment 'revers': did you mean 'reverse'"),
        ("reverse?size=3", "the bundled environment reverse has no options"),
        ("reasoning_gym:chain_sun", "no data set 'chain_sun': did you mean 'chain_sum'"),
        ("reasoning_gym:chain_sum?max_term=3", "no option max_term; there are: .*max_terms.*min_digits"),
        ("reasoning_gym:chain_sum?min_terms=9", "refuses the options of chain_sum"),
        ("reasoning_gym:chain_sum?seed=3", "the environment sets the option seed itself"),
    ],
)
def test_unknown_names_and_options_are_refused(name: str, message: str) -> None:
    with pytest.raises((EnvironmentInvalid, NotFound), match=message):
        load_environment(name)
