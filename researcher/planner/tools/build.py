"""The toolbox of a study: every tool that its sources allow."""

from __future__ import annotations

from typing import NoReturn

from researcher.planner.tools.base import PlannerTool, Toolbox, ToolRefused
from researcher.planner.tools.drafts import program_api_tool, propose_tool, try_program_tool
from researcher.planner.tools.environment import environment_tool
from researcher.planner.tools.findings import findings_tool
from researcher.planner.tools.models import model_tool
from researcher.planner.tools.notes import notes_tool
from researcher.planner.tools.query import query_tool, tables_tool
from researcher.planner.tools.record import (
    code_tool,
    diff_tool,
    episodes_tool,
    metrics_tool,
    notebook_tool,
    requests_tool,
)
from researcher.planner.tools.sources import ToolSources

TOOLS = (
    *(environment_tool, model_tool, program_api_tool, code_tool, diff_tool, metrics_tool, episodes_tool),
    requests_tool,
    *(notebook_tool, findings_tool, query_tool, tables_tool),
)
"""The tools that every study has."""


def tools_of_process() -> list[PlannerTool]:
    """Return the tools that only the process of a study can carry out, to list them."""
    return [try_program_tool(_carried_out_elsewhere), propose_tool(_carried_out_elsewhere)]


def build_toolbox(sources: ToolSources) -> Toolbox:
    """Return the tools of a study; a tool without a source is left out."""
    optional: list[PlannerTool] = []
    if sources.notes is not None:
        optional.append(notes_tool(sources.notes))
    if sources.try_program is not None:
        optional.append(try_program_tool(sources.try_program))
    if sources.propose is not None:
        optional.append(propose_tool(sources.propose))
    return Toolbox([*(tool(sources) for tool in TOOLS), *optional])


def _carried_out_elsewhere(*_: object) -> NoReturn:
    raise ToolRefused("the process of the study carries this out")
