"""The tools for writing an arm: the contract of programs, the proposals of settings, and trials of drafts."""

from __future__ import annotations

import re
from importlib.resources import files

from pydantic import Field

from experiments_db import JsonObject, Operator, ProgramTrial
from prompts import load
from researcher.planner.language_model.answers import ManipulationAnswer
from researcher.planner.texts import as_data, clip, messages_as_text, number, settings_as_text
from researcher.planner.tools.base import PlannerTool, ToolArguments, ToolRefused
from researcher.planner.tools.sources import Propose, ToolSources, TryProgram, study_tool

PATTERNS = "skills/shipped/write-program/references/patterns.md"
EXAMPLES = ("turns.py", "review.py", "curriculum.py")
REWARD_AND_SCHEDULE = """What the functions get, in more detail:

- `reward(task, transcript, grade)`: `transcript` has all messages of the session, the opening ones first: those of the environment (system, user, tool) and the answers that the agent gave to the session. It does not have the agent's own requests to the model; what the reward should know of them, the agent must answer with. `grade.score` is what the arm is judged by on held-out tasks, `grade.details` what the grader says besides. The reward must be a finite number, and it is computed within 30 s.
- `schedule(tasks, progress)`: `tasks` are the coming train tasks, four times as many as are needed; return some of them in the order in which they are to be trained, at least one. It gets no scores.
- reward and schedule run in another process than the agent: they share no variables. No function sees a solution, or whether it is trained or scored."""  # noqa: E501
PARENTS = {Operator.DRAFT: 0, Operator.COMBINE: 2}
"""The parents of an operator, where it is not one."""
MAX_ATTEMPTS = 16
SHOWN_ATTEMPTS = 4
MESSAGE_CHARS = 500
TRANSCRIPT_CHARS = 2_000


@study_tool("program_api", "Read the contract of a program in full, with examples.")
def program_api_tool(sources: ToolSources, arguments: ToolArguments) -> str:
    contract = load("program_contract", example=load("program").strip())
    return "\n\n".join([contract, REWARD_AND_SCHEDULE, "Further whole programs:", *_examples()])


def _examples() -> list[str]:
    text = files("swarm").joinpath(PATTERNS).read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    return [f"```python\n{block}```" for name in EXAMPLES for block in blocks if block.startswith(f"# {name}\n")]


class ProposeArguments(ToolArguments):
    operator: Operator = Field(description="draft: anywhere in the space; tune: near the parent; combine: two parents.")
    parents: tuple[str, ...] = Field(default=(), description="Names of arms.")


def propose_tool(propose: Propose) -> PlannerTool:
    """Return the tool."""

    def call(arguments: ProposeArguments) -> str:
        wanted = PARENTS.get(arguments.operator, 1)
        if len(arguments.parents) != wanted:
            raise ToolRefused(f"{arguments.operator} takes {wanted} parents, not {len(arguments.parents)}")
        levels = propose(arguments.operator, arguments.parents)
        return "the space has no further settings for this move" if levels is None else settings_as_text(levels)

    return PlannerTool(
        "propose",
        "Ask the study's proposer (a statistical method that knows all scores so far) for the next settings to try.",
        ProposeArguments,
        call,
    )


class TryProgramArguments(ToolArguments):
    """A draft and how to try it."""

    code: str = Field(min_length=1, description="The whole file.")
    attempts: int = Field(default=4, ge=1, le=MAX_ATTEMPTS)
    check: ManipulationAnswer | None = None


def try_program_tool(try_program: TryProgram) -> PlannerTool:
    """Return the tool; `try_program` returns the text of a trial."""

    def call(arguments: TryProgramArguments) -> str:
        check = None if arguments.check is None else arguments.check.to_check()
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
