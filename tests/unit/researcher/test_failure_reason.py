"""A reason is one line that says what was raised."""

from __future__ import annotations

import json
import traceback

import pytest

from researcher.record.failure_reason import in_one_line, last_words


def _raised() -> str:
    try:
        json.loads("{")
    except ValueError:
        return traceback.format_exc()
    raise AssertionError


@pytest.mark.parametrize("join", ["\n", " ", " | "])
def test_traceback_becomes_its_error_however_its_lines_were_joined(join: str) -> None:
    text = f"the client ended with exit code 1 at step 2 of 30: {join.join(_raised().splitlines())}"

    line = in_one_line(text)

    assert line.startswith("the client ended with exit code 1 at step 2 of 30: json.decoder.JSONDecodeError: Expecting")
    assert "File" not in line and "Traceback" not in line and "\n" not in line


def test_of_several_tracebacks_the_last_counts() -> None:
    text = _raised() + "\nDuring handling of the above exception, another exception occurred:\n\n"
    text += 'Traceback (most recent call last):\n  File "x.py", line 1, in f\n    g()\nRuntimeError: no disk\n'

    assert in_one_line(text) == "RuntimeError: no disk"


def test_error_in_a_program_comes_with_its_line() -> None:
    text = f"{_raised()}swarm.errors.ProgramFailure: program.py, line 8: IndexError: list index out of range\n"
    assert in_one_line(text) == "program.py, line 8: IndexError: list index out of range"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("the disk\n is on  fire", "the disk is on fire"),
        ("", ""),
        ("Traceback (most recent call last)", ""),
        ("Traceback (most recent call last):\n  File 'a'\nmine.Odd", "mine.Odd"),
        ("x" * 2000, "x" * 600),
    ],
)
def test_other_text_is_put_on_one_line(text: str, line: str) -> None:
    assert in_one_line(text) == line


def test_the_end_of_a_log_is_its_last_error_or_its_last_lines() -> None:
    assert last_words("step 1\n" + _raised(), 5).startswith("json.decoder.JSONDecodeError: Expecting")
    assert last_words("a\nb\n\nc\n", 3) == "b | c"
