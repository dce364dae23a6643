"""The tool `environment`: what the arms are judged on, with sample tasks of the train split."""

from __future__ import annotations

from itertools import islice

from pydantic import Field

from researcher.execution.environments import count_tasks
from researcher.planner.texts import as_data, clip, messages_as_text
from researcher.planner.tools.base import ToolArguments
from researcher.planner.tools.sources import ToolSources, study_tool
from swarm.environments import DrivenEnvironment, Environment, EnvironmentTask
from swarm.errors import SwarmError
from swarm.tasks import Split

MAX_TASKS = 10
COUNTED = 2_000
MESSAGE_CHARS = 1_500


class EnvironmentArguments(ToolArguments):
    tasks: int = Field(default=3, ge=0, le=MAX_TASKS, description="How many train tasks to show.")
    skip: int = Field(default=0, ge=0, le=1_000, description="How many train tasks to leave out first.")


@study_tool(
    "environment",
    "Look at the environment: its description, splits, tools and limits, and train tasks with opening messages and "
    "known solutions.",
)
def environment_tool(sources: ToolSources, arguments: EnvironmentArguments) -> str:
    environment = sources.environment(sources.reference())
    try:
        return _describe(environment, arguments)
    except SwarmError as error:
        return f"{environment.name}: its tasks cannot be read: {error.message}"


def _describe(environment: Environment, arguments: EnvironmentArguments) -> str:
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
