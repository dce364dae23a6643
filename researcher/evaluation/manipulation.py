"""The manipulation check of an arm: whether its transcripts show what the arm claims to be."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python

from researcher.plan import ManipulationCheck, Speaker
from researcher.program_code import ProgramCode
from swarm.environments import Grade
from swarm.errors import SandboxUnavailable, SwarmError
from swarm.program import ProgramProcess, place_program
from swarm.sandbox import Sandbox
from swarm.types import Message, Task

PATTERN_LIMIT_S = 10.0
"""The time in which the pattern of a check must have been searched in all transcripts."""
MAX_REASON_CHARS = 300
_MATCHES_ALL = frozenset({".*", ".*?", "(.*)", "[\\s\\S]*", "(?s).*", "^", "$", ""})

_SEARCH = """
import json, re, sys
given = json.load(sys.stdin)
pattern = re.compile(given["pattern"])
print(json.dumps([sum(1 for text in texts for _ in pattern.finditer(text)) for texts in given["texts"]]))
"""
_AS_PROGRAM = """

def reward(task, transcript, grade):
    return float(bool(check([dict(message) for message in transcript])))
"""
_ADAPTER = TypeAdapter(ManipulationCheck)


@dataclass(frozen=True, slots=True)
class AttemptTranscript:
    """The messages of one attempt's session, and the model's replies to the agent's requests."""

    messages: tuple[Message, ...]
    replies: tuple[Message, ...] = ()

    def said_by(self, speaker: Speaker) -> tuple[str, ...]:
        """Return the texts of the messages of one speaker."""
        match speaker:
            case Speaker.MODEL:
                return tuple(map(text_of, self.replies))
            case Speaker.AGENT:
                return tuple(text_of(each) for each in self.messages if each.get("role") == "assistant")
            case Speaker.ENVIRONMENT:
                return tuple(text_of(each) for each in self.messages if each.get("role") != "assistant")


@dataclass(frozen=True, slots=True)
class PassCount:
    """The number of transcripts that pass a check.

    `passes` says of each transcript whether it does. `error` is why the check itself could not be carried out, and then
    no transcript passes; None if it could.
    """

    passes: tuple[bool, ...]
    error: str | None = None

    @property
    def passed(self) -> int:
        return sum(self.passes)

    def to_json(self) -> dict[str, Any]:
        """Return the count in the form in which the details of an evaluation have it."""
        counted = {"passed": self.passed, "total": len(self.passes)}
        return counted if self.error is None else {**counted, "error": self.error}


def count_passing(
    check: ManipulationCheck,
    transcripts: Sequence[AttemptTranscript],
    *,
    folder: Path,
    server_url: str,
    sandbox: Sandbox | None,
) -> PassCount:
    """Return which transcripts pass a check.

    A function runs in the sandbox, with its log in `folder`; there it can reach nothing but `server_url`. Raises
    SandboxUnavailable.
    """
    if check.code:
        return _call_function(check.code, transcripts, folder, server_url, sandbox)
    said = [transcript.said_by(check.speaker) for transcript in transcripts]
    try:
        counts = [len(texts) for texts in said] if not check.pattern else _search(check.pattern, said)
    except _CheckFailed as failure:
        return PassCount((False,) * len(said), str(failure)[:MAX_REASON_CHARS])
    most = sys.maxsize if check.at_most is None else check.at_most
    return PassCount(tuple(check.at_least <= count <= most for count in counts))


def is_true_of_all(check: ManipulationCheck) -> bool:
    """Return whether a check passes whatever was said, as far as its definition alone shows it."""
    if check.share <= 0:
        return True
    if check.code:
        return ProgramCode(check.code).ignores_arguments("check")
    is_empty = not check.pattern or check.pattern in _MATCHES_ALL
    return check.at_most is None and check.at_least <= (1 if is_empty else 0)


def check_to_json(check: ManipulationCheck) -> dict[str, Any]:
    return to_jsonable_python(check)


def check_from_json(document: Mapping[str, Any]) -> ManipulationCheck:
    return _ADAPTER.validate_python(document)


def text_of(message: Message) -> str:
    """Return the text of a message, and the arguments of its tool calls after it."""
    content: Any = message.get("content")
    text = content if isinstance(content, str) else "" if content is None else json.dumps(content, ensure_ascii=False)
    calls: Any = message.get("tool_calls") or ()
    named = [f"{call['function']['name']}({call['function']['arguments']})" for call in calls]
    return "\n".join([*([text] if text else []), *named])


class _CheckFailed(Exception):
    """A check that cannot be carried out; the message says why."""


def _search(pattern: str, said: Sequence[Sequence[str]]) -> list[int]:
    """Return how often the pattern occurs in each list of texts, counted by a process that may take its time."""
    given = json.dumps({"pattern": pattern, "texts": said})
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", _SEARCH],
            input=given, capture_output=True, text=True, timeout=PATTERN_LIMIT_S, check=False, env={},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise _CheckFailed(
            f"its pattern {pattern[:80]!r} took longer than {PATTERN_LIMIT_S:g} s: write one that does not backtrack"
        ) from None
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise _CheckFailed(f"its pattern {pattern[:80]!r} cannot be searched: {lines[-1] if lines else 'no reason'}")
    return json.loads(done.stdout)


def _call_function(
    code: str, transcripts: Sequence[AttemptTranscript], folder: Path, server_url: str, sandbox: Sandbox | None
) -> PassCount:
    """Ask the function `check` in a process of its own, as a reward of a program that returns 1 for true."""
    passes: list[bool] = []
    task, grade = Task("", "check"), Grade(0.0, False)
    try:
        with (
            place_program(code + _AS_PROGRAM, folder, server_url, sandbox) as place,
            ProgramProcess(place, shaping=place) as program,
        ):
            assert program.reward is not None, "the code defines one"
            for transcript in transcripts:
                passes.append(program.reward(task, transcript.messages, grade) == 1.0)
    except SandboxUnavailable:
        raise
    except SwarmError as error:
        return PassCount((False,) * len(transcripts), f"its function failed: {error.message}"[:MAX_REASON_CHARS])
    return PassCount(tuple(passes))
