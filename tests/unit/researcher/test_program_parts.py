"""The parts in which programs differ, by their syntax trees."""

from __future__ import annotations

import pytest

from prompts import load
from researcher.program_parts import find_differing_parts, find_varied_parts
from researcher.programs import load_program_code

PLAIN = load("program")
REWARD = "def reward(task, transcript, grade):\n    return grade.score\n"
SCALED = "def reward(task, transcript, grade):\n    return up(down(grade.score) - 1)\n"
AGENT = "def agent(task, model, session):\n    return model.chat(session.messages)\n"
SCHEDULE = "def schedule(tasks, progress):\n    return tasks\n"


@pytest.mark.parametrize(
    ("code", "other", "parts"),
    [
        (PLAIN, PLAIN, ()),
        (REWARD, PLAIN, ("reward",)),
        ("from swarm.program import answer_in_turn\nagent = answer_in_turn\n" + REWARD, PLAIN, ("agent", "reward")),
        (AGENT, PLAIN, ("agent",)),
        (AGENT + REWARD, REWARD + AGENT, ()),
        ('"""Another text."""\n# A comment.\n' + AGENT.replace("):\n", '):\n    """Play."""\n'), AGENT, ()),
        (REWARD + SCHEDULE, AGENT, ("agent", "reward", "schedule")),
        ("WEIGHT = 2\nUNUSED = 1\n" + REWARD + "weigh = len\n", REWARD, ()),
        ("import json\nimport re\n" + REWARD, REWARD, ()),
        ("from json import loads as score\n" + REWARD, REWARD, ()),
        (f"from math import exp as up, log as down\n{SCALED}", f"from math import exp as down, log as up\n{SCALED}", (
            "reward",)),
        ("agent = lambda task, model, session: 'x'\n" + REWARD, REWARD, ("agent",)),
        ("from elsewhere import play as agent\n" + REWARD, REWARD, ("agent",)),
        ("if True:\n    def agent(task, model, session):\n        return 'x'\n" + REWARD, REWARD, ("agent",)),
        ("try:\n    from elsewhere import agent\nexcept ImportError:\n    pass\n" + REWARD, REWARD, ("agent",)),
        ("match print:\n    case agent:\n        x = 1\n" + REWARD, REWARD, ("agent",)),
        # What runs without binding a name may change every part.
        ("print('hello')\n" + REWARD, REWARD, ("agent", "reward", "schedule")),
        ("if __name__ == '__main__':\n    print('hello')\n" + REWARD, REWARD, ()),
    ],
)  # fmt: skip
def test_parts_are_told_apart_by_what_their_functions_are_made_of(
    code: str, other: str, parts: tuple[str, ...]
) -> None:
    assert find_differing_parts(code, other) == parts
    assert find_differing_parts(other, code) == parts


def test_a_part_has_what_its_function_uses_through_others() -> None:
    shared = "WEIGHT = {}\ndef weigh(x):\n    return WEIGHT * x\n"
    code = shared + "def reward(task, transcript, grade):\n    return weigh(grade.score)\n" + AGENT
    assert find_differing_parts(code.format(2), code.format(3)) == ("reward",)
    used_by_both = code + "def schedule(tasks, progress):\n    return tasks[:WEIGHT]\n"
    assert find_differing_parts(used_by_both.format(2), used_by_both.format(3)) == ("reward", "schedule")


def test_programs_of_the_library_differ_from_the_plain_one_in_the_part_that_they_are_about() -> None:
    parts = {name: find_differing_parts(load_program_code(name), PLAIN) for name in (
        "answer-check-answer", "best-of-n", "scratchpad", "easy-first", "shaped-by-details",
    )}  # fmt: skip
    assert parts == {
        **dict.fromkeys(("answer-check-answer", "best-of-n", "scratchpad"), ("agent",)),
        "easy-first": ("schedule",),
        "shaped-by-details": ("reward",),
    }
    assert find_varied_parts([PLAIN, REWARD, SCHEDULE]) == ("reward", "schedule")
