"""The tool `environment`: what the arms are judged on, with sample tasks of the train split."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from pydantic import Field

from researcher.execution.environments import count_tasks
from researcher.planner.texts import as_data, clip, messages_as_text, page
from researcher.planner.tools.base import ToolArguments
from researcher.planner.tools.sources import ToolSources, study_tool
from researcher.program_code import ProgramCode
from swarm.environments import DrivenEnvironment, Environment, EnvironmentTask
from swarm.errors import SwarmError
from swarm.tasks import Split

MAX_TASKS = 10
COUNTED = 2_000
LOOKED_AT = 1_000
"""The tasks of each held-out split whose answers must not stand in a grader that is shown."""
MESSAGE_CHARS = 1_500
GRADER_FILE = "grade.py"


class EnvironmentArguments(ToolArguments):
    tasks: int = Field(default=3, ge=0, le=MAX_TASKS, description="How many train tasks to show.")
    skip: int = Field(default=0, ge=0, le=1_000, description="How many train tasks to leave out first.")
    with_grader: bool = Field(default=False, description="Show the source of the grader, where it is a file.")


@study_tool(
    "environment",
    "Look at the environment: its description, splits, tools and limits, train tasks with opening messages and "
    "known solutions, and the source of its grader.",
)
def environment_tool(sources: ToolSources, arguments: EnvironmentArguments) -> str:
    reference = sources.reference()
    environment = sources.environment(reference)
    try:
        return _describe(environment, reference, arguments)
    except SwarmError as error:
        return f"{environment.name}: its tasks cannot be read: {error.message}"


def _describe(environment: Environment, reference: str, arguments: EnvironmentArguments) -> str:
    counts = {split: count_tasks(environment, split, COUNTED) for split in Split}
    splits = ", ".join(f"{split} {_count(count)}" for split, count in counts.items())
    tools = ", ".join(str(tool.get("function", {}).get("name")) for tool in environment.tools) or "none"
    lines = [
        f"{environment.name}: {environment.description or 'no description'}",
        f"tasks: {splits}",
        f"at most {environment.max_turns} answers per attempt, each of at most {environment.max_tokens} tokens; "
        f"tools: {tools}",
    ]
    if isinstance(environment, DrivenEnvironment):
        lines.append("it runs an agent of its own: a program has no agent there")
    chosen = islice(environment.tasks(Split.TRAIN), arguments.skip, arguments.skip + arguments.tasks)
    shown = [_show(environment, item) for item in chosen]
    if shown:
        lines.append(as_data("\n\n".join(shown)))
    if arguments.with_grader:
        lines.append(_grader(environment, reference))
    return "\n".join(lines)


def _count(count: int) -> str:
    return f"at least {count}" if count == COUNTED else str(count)


def _show(environment: Environment, item: EnvironmentTask) -> str:
    if isinstance(environment, DrivenEnvironment):
        return clip(f"--- train task {item.task.task_id}\n{item.task.main_query}", MESSAGE_CHARS)
    opening = messages_as_text([dict(each) for each in environment.open(item).messages], MESSAGE_CHARS)
    solution = environment.solution(item)
    known = "not known" if solution is None else clip(solution, MESSAGE_CHARS)
    return f"--- train task {item.task.task_id}\n{opening}\na reply that the grader finds perfect: {known}"


def _grader(environment: Environment, reference: str) -> str:
    """Return the source of a folder's grader, unless held-out answers stand in it."""
    path = Path(reference.partition("?")[0]) / GRADER_FILE
    if not path.is_file():
        return "grader: built in, its source is not part of the environment; solutions above show what it wants"
    source = path.read_text(encoding="utf-8", errors="replace")
    if _texts_of(source) & _held_out(environment):
        return "grader: its source is not shown, because answers of held-out tasks stand in it"
    return f"grader, {GRADER_FILE}:\n{page(source, 0)}"


def _texts_of(source: str) -> set[str]:
    try:
        return {text.strip() for text in map(str, ProgramCode(source).constants)}
    except (SyntaxError, ValueError):
        return set(source.split())


def _held_out(environment: Environment) -> set[str]:
    """Return questions and answers of held-out tasks, as far as they are long enough to be no common word."""
    found: set[str] = set()
    for split in (Split.VALIDATION, Split.TEST):
        for item in islice(environment.tasks(split), LOOKED_AT):
            found.add(item.task.main_query.strip())
            if not isinstance(environment, DrivenEnvironment):
                found.add((environment.solution(item) or "").strip())
    return {text for text in found if len(text) >= 4}
