"""The tools `code` and `diff`: the program and the settings of an arm, and what differs between two arms."""

from __future__ import annotations

import difflib
from typing import Any

from pydantic import Field

from experiments_db import Experiment
from researcher.planner.tools.base import PlannerTool, ToolArguments
from researcher.planner.tools.sources import ToolSources
from researcher.planner.tools.texts import page, settings_as_text


class CodeArguments(ToolArguments):
    arm: str
    offset: int = Field(default=0, ge=0, description="The character to begin with, for the next page of a long text.")


class DiffArguments(ToolArguments):
    arm: str
    against: str = Field(description="The arm that it is compared with, such as its parent.")
    offset: int = Field(default=0, ge=0)


def code_tool(sources: ToolSources) -> PlannerTool:
    """Return the tool `code`."""

    def call(arguments: CodeArguments) -> str:
        arm = sources.arm(arguments.arm)
        head = f"{arm.name} ({arm.status}): {arm.purpose}" if arm.purpose else f"{arm.name} ({arm.status})"
        environment = f"\ntrains on: {arm.train_environment}" if arm.train_environment else ""
        settings = f"\nsettings:\n{settings_as_text(arm.job)}\nprogram:" if not arguments.offset else ""
        return f"{head}{environment}{settings}\n{page(arm.program_code or '(not written yet)', arguments.offset)}"

    return PlannerTool("code", "Read the whole program and the settings of an arm.", CodeArguments, call)


def diff_tool(sources: ToolSources) -> PlannerTool:
    """Return the tool `diff`."""

    def call(arguments: DiffArguments) -> str:
        new, old = sources.arm(arguments.arm), sources.arm(arguments.against)
        changed = "\n".join(_changed_settings(old, new)) or "none"
        program = "\n".join(
            difflib.unified_diff(
                old.program_code.splitlines(), new.program_code.splitlines(), old.name, new.name, lineterm=""
            )
        )
        settings = f"settings that differ:\n{changed}\nprogram:\n" if not arguments.offset else ""
        return settings + (page(program, arguments.offset) if program else "the same to the last byte")

    return PlannerTool("diff", "Show what differs between the programs and settings of two arms.", DiffArguments, call)


def _changed_settings(old: Experiment, new: Experiment) -> list[str]:
    names = sorted(old.job.keys() | new.job.keys())
    lines = [f"{name}: {_value(old.job, name)} -> {_value(new.job, name)}" for name in names
             if _value(old.job, name) != _value(new.job, name)]  # fmt: skip
    if old.train_environment != new.train_environment:
        lines.append(f"train environment: {old.train_environment} -> {new.train_environment}")
    return lines


def _value(job: Any, name: str) -> Any:
    return job.get(name, "(default)")
