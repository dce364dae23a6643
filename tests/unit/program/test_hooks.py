"""A function of a program that would never be called, or could not be, is refused when the file is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarm.errors import EnvironmentInvalid
from swarm.program import load_program

AGENT = "def agent(task, model, session): ...\n"

REFUSED = {
    "plural": (AGENT + "def rewards(task, transcript, grade): ...\n", "rewards", "reward(task, transcript, grade)"),
    "only the plural": ("def agents(task, model, session): ...\n", "agents", "agent(task, model, session)"),
    "upper case": (AGENT + "def Reward(task, transcript, grade): ...\n", "Reward", "reward(task, transcript, grade)"),
    "letters swapped": (AGENT + "def rewrad(task, transcript, grade): ...\n", "rewrad", "reward("),
    "a letter missing": (AGENT + "def shedule(tasks, progress): ...\n", "shedule", "schedule(tasks, progress)"),
    "a suffix": (AGENT + "def reward_fn(task, transcript, grade): ...\n", "reward_fn", "reward("),
    "async": ("async def agent(task, model, session): ...\n", "agent", "async"),
    "a generator": ("def agent(task, model, session):\n    yield 'x'\n", "agent", "yield"),
    "too few parameters": (AGENT + "def reward(task, transcript): ...\n", "task, transcript)", "transcript, grade)"),
    "too many parameters": ("def agent(task, model, session, tools): ...\n", "agent", "agent(task, model, session)"),
    "keywords alone": (AGENT + "def schedule(*, tasks, progress): ...\n", "schedule", "schedule(tasks, progress)"),
    "another order": (AGENT + "def reward(grade, task, transcript): ...\n", "reward(grade, task, transcript)", "order"),
    "an exit": ("import sys\nsys.exit(3)\n", "line 2", "SystemExit: 3"),
    "an exit in a function": ("def fail():\n    raise SystemExit('no key')\nfail()\n", "fail", "no key"),
}  # fmt: skip

TAKEN = {
    "helpers": AGENT + "def score(reply): ...\ndef forward(x): ...\ndef rewarded(x): ...\ndef award(x): ...\n",
    "a helper beside its hook": AGENT + "def reward(task, transcript, grade): ...\ndef rewards(found): ...\n",
    "defaults": "def agent(task, model, session, tries=3): ...\n",
    "a private helper": AGENT + "def _reward(task, transcript, grade): ...\n",
    "any parameters": "def agent(*given): ...\n",
    "other names": AGENT + "def reward(t, messages, g): ...\n",
    "a class": AGENT + "class Schedule: ...\nclass Reward: ...\n",
    "an imported name": AGENT + "from email.utils import parsedate as rewards\n",
    "a partial": "from functools import partial\ndef play(n, task, model, session): ...\nagent = partial(play, 3)\n",
    "a generator of tasks": AGENT + "def schedule(tasks, progress):\n    yield from tasks\n",
}


@pytest.mark.parametrize(("code", "named", "meant"), REFUSED.values(), ids=REFUSED.keys())
def test_a_hook_that_would_not_be_called_is_refused_by_name(tmp_path: Path, code: str, named: str, meant: str) -> None:
    path = tmp_path / "program.py"
    path.write_text(code)
    with pytest.raises(EnvironmentInvalid) as refused:
        load_program(path)
    assert "program.py" in refused.value.message
    assert named in refused.value.message and meant in refused.value.message


@pytest.mark.parametrize("code", TAKEN.values(), ids=TAKEN.keys())
def test_helpers_and_every_way_to_define_a_hook_are_taken(tmp_path: Path, code: str) -> None:
    path = tmp_path / "program.py"
    path.write_text(code)
    assert load_program(path).name == "program"
