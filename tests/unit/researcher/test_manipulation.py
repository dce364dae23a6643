"""Manipulation checks: what they count, and that no pattern and no function of a planner holds anything up."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from researcher.evaluation import manipulation
from researcher.evaluation.manipulation import (
    AttemptTranscript,
    PassCount,
    check_from_json,
    check_to_json,
    count_passing,
)
from researcher.plan import ManipulationCheck, Speaker
from swarm.sandbox import choose_sandbox

NOWHERE = "http://127.0.0.1:9"
TWO_ANSWERS = AttemptTranscript(
    messages=(
        {"role": "user", "content": "What is 2 + 2?"},
        {"role": "assistant", "content": "first 5, no, 4"},
        {"role": "user", "content": "Are you sure?"},
        {"role": "assistant", "content": None,
         "tool_calls": [{"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}}]},
    ),
    replies=({"role": "assistant", "content": "draft"}, {"role": "assistant", "content": "final"},
             {"role": "assistant", "content": "vote"}),
)  # fmt: skip
ONE_ANSWER = AttemptTranscript(({"role": "user", "content": "Hi"}, {"role": "assistant", "content": "4"}))


def count(check: ManipulationCheck, folder: Path, *transcripts: AttemptTranscript) -> PassCount:
    said = transcripts or (TWO_ANSWERS, ONE_ANSWER)
    return count_passing(check, said, folder=folder, server_url=NOWHERE, sandbox=None)


@pytest.mark.parametrize(
    ("check", "expected"),
    [
        (ManipulationCheck("it says a digit", pattern=r"\d"), (True, True)),
        (ManipulationCheck("it says two digits", pattern=r"\d", at_least=2), (True, False)),
        (ManipulationCheck("it says one digit", pattern=r"\d", at_most=1), (False, True)),
        (ManipulationCheck("it answers twice", at_least=2), (True, False)),
        (ManipulationCheck("it answers once", at_most=1), (False, True)),
        (ManipulationCheck("it never apologizes", pattern="sorry", at_least=0, at_most=0), (True, True)),
        (ManipulationCheck("it adds", pattern=r"add\("), (True, False)),
        (ManipulationCheck("three calls", speaker=Speaker.MODEL, at_least=3), (True, False)),
        (ManipulationCheck("a draft", pattern="^draft$", speaker=Speaker.MODEL), (True, False)),
        (ManipulationCheck("it is asked", pattern="sure", speaker=Speaker.ENVIRONMENT), (True, False)),
        (ManipulationCheck("in code", code="def check(transcript):\n    return len(transcript) > 2"), (True, False)),
    ],
)
def test_a_check_counts_what_the_speaker_said(
    check: ManipulationCheck, expected: tuple[bool, ...], tmp_path: Path
) -> None:
    assert count(check, tmp_path) == PassCount(expected)
    assert count(check, tmp_path).to_json() == {"passed": sum(expected), "total": 2}


def test_a_check_survives_json() -> None:
    check = ManipulationCheck("s", pattern="a+", speaker=Speaker.MODEL, at_least=2, at_most=3, share=0.75)
    assert check_from_json(check_to_json(check)) == check


def test_a_pattern_without_end_is_ended_and_nothing_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manipulation, "PATTERN_LIMIT_S", 1.0)
    said = AttemptTranscript(({"role": "assistant", "content": "a" * 60 + "!"},))
    counted = count(ManipulationCheck("catastrophe", pattern="(a+)+$"), tmp_path, said)
    assert counted.passed == 0 and counted.error is not None and "took longer than 1 s" in counted.error
    assert counted.to_json()["error"] == counted.error


@pytest.mark.parametrize(
    ("check", "reason"),
    [
        (ManipulationCheck("broken", pattern="(a"), "unterminated subpattern"),
        (ManipulationCheck("broken", code="def check(transcript):\n    return 1 / 0"), "ZeroDivisionError"),
        (ManipulationCheck("broken", code="def other(transcript):\n    return True"), "NameError"),
        (ManipulationCheck("broken", code="def check(:"), "program.py"),
    ],
)
def test_a_check_that_cannot_be_carried_out_says_why(check: ManipulationCheck, reason: str, tmp_path: Path) -> None:
    counted = count(check, tmp_path)
    assert counted.passes == (False, False)
    assert counted.error is not None and reason in counted.error


def test_a_function_without_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swarm.program.hosted.process.FUNCTION_LIMIT_S", 1.0)
    began = time.monotonic()
    counted = count(ManipulationCheck("slow", code="def check(transcript):\n    while True: pass"), tmp_path)
    assert counted.passed == 0 and counted.error is not None and "took longer than 1 s" in counted.error
    assert time.monotonic() - began < 60


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
def test_a_function_runs_in_the_sandbox(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("canary")
    code = f"import os\ndef check(transcript):\n    return os.path.exists({str(secret)!r}) or len(transcript) > 2"
    counted = count_passing(
        ManipulationCheck("looks around", code=code), (TWO_ANSWERS, ONE_ANSWER),
        folder=tmp_path / "check", server_url=NOWHERE, sandbox=choose_sandbox(unsafe_no_sandbox=False),
    )  # fmt: skip
    assert counted == PassCount((True, False))
