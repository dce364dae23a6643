"""The error of a program in a process of its own has the lines of the program that led to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarm.environments import Grade
from swarm.errors import ProgramFailure
from swarm.program import ProgramProcess, place_program
from swarm.program.hosted import process
from swarm.types import Task

FAILS = """
def reward(task, transcript, grade):
    return inner(len(transcript))

def inner(number):
    return 1 / number if number < 5 else inner_again(number)

def inner_again(number):
    return inner_again(number - 1) if number else 1 / number
"""
NOWHERE = "http://127.0.0.1:9"


def failure(folder: Path, messages: int) -> ProgramFailure:
    with (
        place_program(FAILS, folder, NOWHERE, None) as place,
        ProgramProcess(place, shaping=place) as program,
        pytest.raises(ProgramFailure, match=r"program.py, line \d+: ZeroDivisionError") as raised,
    ):
        assert program.reward is not None
        program.reward(Task("q"), [{"role": "user", "content": "q"}] * messages, Grade(0.0, False))
    return raised.value


def test_the_lines_of_the_program_are_a_note_of_the_error(tmp_path: Path) -> None:
    [note] = failure(tmp_path, 0).__notes__
    assert [line.strip() for line in note.splitlines() if "^" not in line] == [
        'File "program.py", line 3, in reward',
        "return inner(len(transcript))",
        'File "program.py", line 6, in inner',
        "return 1 / number if number < 5 else inner_again(number)",
    ]


def test_a_deep_trace_is_cut_to_its_last_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "MAX_TRACE_CHARS", 500)
    [note] = failure(tmp_path, 40).__notes__
    assert len(note) == 500 and "in reward" not in note and "in inner_again" in note
