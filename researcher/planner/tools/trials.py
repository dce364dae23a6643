"""The tool `try_program`: a few attempts of a draft with the base weights of the studied model."""

from __future__ import annotations

from collections.abc import Callable

from pydantic import Field, model_validator

from experiments_db import JsonObject, ProgramTrial
from researcher.plan import ManipulationCheck, Speaker
from researcher.planner.tools.base import PlannerTool, ToolArguments
from researcher.planner.tools.texts import as_data, clip, messages_as_text, number

TryProgram = Callable[[str, int, ManipulationCheck | None], str]

MAX_ATTEMPTS = 16
SHOWN_ATTEMPTS = 4
MESSAGE_CHARS = 500
TRANSCRIPT_CHARS = 2_000


class CheckArguments(ToolArguments):
    """A manipulation check, as plans have it."""

    statement: str = Field(min_length=1, description="What must be true of the transcripts, in words.")
    pattern: str = Field(default="", description="A regular expression; empty counts the messages themselves.")
    speaker: Speaker = Field(default=Speaker.AGENT, description="Whose messages are looked at.")
    at_least: int = Field(default=1, ge=0)
    at_most: int | None = Field(default=None, ge=0)
    code: str = Field(default="", description="Instead of a pattern: def check(transcript) -> bool")
    share: float = Field(default=0.5, gt=0, le=1, description="The share of attempts that must pass.")

    @model_validator(mode="after")
    def _one_way(self) -> CheckArguments:
        if self.pattern and self.code:
            raise ValueError("give a pattern or code, not both")
        return self

    def as_check(self) -> ManipulationCheck:
        return ManipulationCheck(**self.model_dump())


class TryProgramArguments(ToolArguments):
    """A draft and how to try it."""

    code: str = Field(min_length=1, description="The whole file.")
    attempts: int = Field(default=4, ge=1, le=MAX_ATTEMPTS)
    check: CheckArguments | None = None


def try_program_tool(try_program: TryProgram) -> PlannerTool:
    """Return the tool; `try_program` returns the text of a trial."""

    def call(arguments: TryProgramArguments) -> str:
        check = None if arguments.check is None else arguments.check.as_check()
        return try_program(arguments.code, arguments.attempts, check)

    return PlannerTool(
        "try_program",
        "Try a draft of a program: a few attempts at train tasks with the base weights of the real model. Returns "
        "transcripts, model calls, grades, the program's own rewards, errors with their lines, seconds and tokens.",
        TryProgramArguments,
        call,
    )


def describe_trial(trial: ProgramTrial, *, is_marked: bool = True) -> str:
    """Return the text of a trial: its numbers, then some attempts, broken ones first.

    With `is_marked`, the transcripts are marked as data; otherwise the reader marks the whole text.
    """
    lines = [
        f"trial {trial.id}: {trial.attempts} attempts, {trial.broken} broken, in {trial.seconds:.1f} s "
        f"({trial.seconds / max(1, trial.attempts):.2f} s per attempt)",
        f"mean grade {number(trial.mean)}, mean reward of its own {number(trial.mean_reward)}, model calls per attempt "
        f"{number(trial.calls)}, sampled tokens per attempt {number(trial.tokens)}",
    ]
    if trial.passed is not None:
        lines.append(f"{trial.passed} of {trial.attempts} attempts pass the manipulation check")
    if trial.blank_gain is not None:
        gain = number(trial.blank_gain)
        lines.append(f"with a model that writes random letters it scores {gain} more than the plain agent")
    ranked = sorted(trial.transcripts, key=lambda each: each.get("error") is None)[:SHOWN_ATTEMPTS]
    shown = "\n\n".join(_describe_attempt(each) for each in ranked)
    if trial.error:
        shown = f"error: {trial.error}\n\n{shown}"
    return "\n".join([*lines, as_data(shown) if is_marked else shown])


def _describe_attempt(attempt: JsonObject) -> str:
    calls = attempt.get("calls") or ()
    replies = "\n".join(
        f"[model call {index}] {_last_asked(call)} -> {_said(call['reply'])}" for index, call in enumerate(calls, 1)
    )
    head = (
        f"--- task {attempt.get('task')}: grade {number(attempt.get('score'))}, reward {number(attempt.get('reward'))}"
        f", {len(calls)} model calls"
    )
    parts = [head, messages_as_text(list(attempt.get("messages") or ()), MESSAGE_CHARS), replies]
    if attempt.get("error"):
        parts.append(f"error: {attempt['error']}")
    return clip("\n".join(part for part in parts if part), TRANSCRIPT_CHARS)


def _last_asked(call: JsonObject) -> str:
    """Return the end of what the agent sent to the model: an agent's own prompts are in no transcript."""
    return " ".join(f"{each.get('role')}: {_said(each)}" for each in call.get("request") or ())


def _said(message: JsonObject) -> str:
    return clip(str(message.get("content") or message.get("tool_calls") or ""), 300)
