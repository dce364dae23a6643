"""The rules of a search from flags: the usual ones, those of a person, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from researcher.charter import PolicyName, ProposerName, SearchRules
from researcher.errors import TopicInvalid
from researcher.study.settings import read_settings

FLAGS: dict[str, Any] = {
    "policy": "population",
    "proposer": "grid",
    "rungs": ["0.5", "1"],
    "explore_runs": 5,
}


def test_usual_rules_follow_from_the_planner_and_the_budget() -> None:
    rules = read_settings({"kind": "optimize", "max_runs": 30})
    model = read_settings({"kind": "optimize", "planner": "llm", "eval_episodes": 50})

    assert rules.search() == SearchRules(runs=15.0)
    assert model.search() == SearchRules(policy=PolicyName.PLANNER, runs=12.0, episodes=50)
    assert read_settings({}).search() is None


def test_flags_of_a_person_stand() -> None:
    rules = read_settings({"kind": "optimize", "max_runs": 30, **FLAGS}).search()

    assert rules == SearchRules(PolicyName.POPULATION, ProposerName.GRID, (0.5, 1.0), runs=5.0)


@pytest.mark.parametrize("flag", FLAGS)
def test_flag_of_a_search_is_refused_in_a_comparison(flag: str) -> None:
    with pytest.raises(TopicInvalid, match=f"--{flag.replace('_', '-')} is about a search"):
        read_settings({"vary": ["lr=1,2"], flag: FLAGS[flag]}).request("A title")


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ({"policy": "planner"}, "--policy planner"),
        ({"rungs": [0.5]}, "--rungs 0.5"),
        ({"rungs": [0.5, 0.25, 1]}, "--rungs 0.5,0.25,1"),
        ({"explore_runs": 9, "max_runs": 9}, "leaves none of --max-runs 9"),
        ({"max_runs": 3}, "leaves 1.5 runs for exploration"),
    ],
)
def test_impossible_rules_are_refused_by_name(flags: dict[str, Any], reason: str) -> None:
    with pytest.raises(TopicInvalid, match=reason):
        read_settings({"kind": "optimize", **flags}).request("A title")


def test_value_that_is_none_of_the_known_ones_is_refused_with_its_flag() -> None:
    with pytest.raises(TopicInvalid, match="--explore-runs"):
        read_settings({"kind": "optimize", "explore_runs": 1})
    with pytest.raises(TopicInvalid, match="--policy"):
        read_settings({"kind": "optimize", "policy": "luck"})
