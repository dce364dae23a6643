"""The construction of a built-in grader from its name and options."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from swarm.environments.base import TIME_LIMIT_S, EnvironmentTask, Grade, Transcript, final_reply
from swarm.environments.graders.judge import DEFAULT_PROMPT, MAX_CALLS, MAX_PAUSE_S, CallLog, ChatEndpoint, Judge
from swarm.environments.graders.python_tests.sandboxed_tests import PythonTests
from swarm.environments.graders.replies import GRADERS, ReplyGrader
from swarm.environments.sources.columns import Grader, Row
from swarm.errors import EnvironmentFailure, EnvironmentInvalid
from swarm.sandbox.sandbox import find_sandbox

PYTHON_TESTS, JUDGE = "python_tests", "judge"
"""The graders that need more than a reply and an expected value."""
TESTS_SECONDS, JUDGE_SECONDS = 10.0, 60.0
TESTS_LIMIT_S = 600.0
"""Time limit for all tests of one reply, each of which starts its own sandbox."""
CALLS_NAME = "judge_calls.jsonl"

AnswerGrader = Callable[[EnvironmentTask, str, object], Grade]
"""Task, reply and expected value -> grade. Raises ValueError for an expected value that it cannot use."""


class GraderOptions(BaseModel):
    """Options of the graders that have any."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    grader_seconds: float | None = Field(default=None, gt=0, le=3600)
    """Time limit in seconds: for each test of python_tests, default 10; for each answer of the judge, default 60."""
    judge_url: str | None = None
    """Base URL of an OpenAI-compatible API, as in http://HOST:PORT/v1. Default: OPENAI_BASE_URL."""
    judge_model: str | None = None
    """Name of the model that judges."""
    judge_key_env: str = "OPENAI_API_KEY"
    """Name of the environment variable with the API key. No key is sent if it is not set."""
    judge_prompt: str = DEFAULT_PROMPT
    """Prompt for the judge, with {question}, {answer} and {reply}."""
    judge_success: float = Field(default=0.5, gt=0, le=1)
    """Lowest score of a successful attempt."""
    judge_log: str | None = None
    """File that records every call. Default: judge_calls.jsonl in SWARM_HOME or ./runs."""


OWNERS = {name: (JUDGE,) if name.startswith("judge_") else (PYTHON_TESTS, JUDGE) for name in GraderOptions.model_fields}
"""The graders that each option applies to."""


def build_grader(name: str, options: GraderOptions, column_of: Callable[[Row], str]) -> Grader:
    """Return the grader called `name`, where `column_of` names the answer's column of a row.

    Raises EnvironmentInvalid for an unknown name and for options of other graders. Raises SandboxUnavailable if the
    grader runs programs and there is no sandbox.
    """
    refuse_options(name, options)
    grade_answer = _answer_grader(name, options)

    def grade(task: EnvironmentTask, transcript: Transcript) -> Grade:
        column = column_of(task.answer)
        try:
            return grade_answer(task, final_reply(transcript), task.answer[column])
        except ValueError as error:
            raise EnvironmentFailure(f"task {task.task.task_id}: column {column}: {error}") from error

    return grade


def refuse_options(name: str | None, options: GraderOptions) -> None:
    """Raise EnvironmentInvalid for an option of another grader; `name` is None for a user's grader."""
    for option, owners in OWNERS.items():
        if option in options.model_fields_set and name not in owners:
            grader = "a grade.py" if name is None else name
            raise EnvironmentInvalid(
                f"option {option} is for the grader {' or '.join(owners)}, not for {grader}: leave it out", param=option
            )


def time_limit_of(name: str | None, options: GraderOptions) -> float:
    """Return the seconds that one grade may take; `name` is None for a user's grader."""
    if name == PYTHON_TESTS:
        return TESTS_LIMIT_S
    if name == JUDGE:
        return MAX_CALLS * (options.grader_seconds or JUDGE_SECONDS) + (MAX_CALLS - 1) * MAX_PAUSE_S
    return TIME_LIMIT_S


def _answer_grader(name: str, options: GraderOptions) -> AnswerGrader:
    if name == PYTHON_TESTS:
        sandbox = find_sandbox(otherwise="or choose another grader than python_tests")
        return PythonTests(sandbox, options.grader_seconds or TESTS_SECONDS)
    if name == JUDGE:
        return _judge(options)
    if name not in GRADERS:
        names = ", ".join([*GRADERS, PYTHON_TESTS, JUDGE])
        raise EnvironmentInvalid(f"unknown grader {name!r}: use {names}, or a folder with a grade.py", param="grader")
    return _by_reply(GRADERS[name])


def _judge(options: GraderOptions) -> Judge:
    if not options.judge_model:
        raise EnvironmentInvalid("the grader judge needs judge_model: name the model that judges", param="judge_model")
    url = options.judge_url or os.environ.get("OPENAI_BASE_URL", "").strip()
    if not url:
        raise EnvironmentInvalid("the grader judge needs judge_url: give it, or set OPENAI_BASE_URL", param="judge_url")
    seconds = options.grader_seconds or JUDGE_SECONDS
    endpoint = ChatEndpoint(url, options.judge_model, options.judge_key_env, seconds)
    home = Path(os.environ.get("SWARM_HOME", "").strip() or "runs")
    log = CallLog(Path(options.judge_log) if options.judge_log else home / CALLS_NAME)
    return Judge(endpoint, log, prompt=options.judge_prompt, success=options.judge_success)


def _by_reply(is_right: ReplyGrader) -> AnswerGrader:
    def grade(task: EnvironmentTask, reply: str, expected: object) -> Grade:
        score = is_right(reply, expected)
        return Grade(float(score), score)

    return grade
