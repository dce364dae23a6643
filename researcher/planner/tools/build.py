"""The toolbox of a study: every tool that its sources allow."""

from __future__ import annotations

from typing import NoReturn

from researcher.planner.tools.base import PlannerTool, Toolbox, ToolRefused
from researcher.planner.tools.environment import environment_tool
from researcher.planner.tools.models import model_tool
from researcher.planner.tools.notes import notes_tool
from researcher.planner.tools.program_api import program_api_tool
from researcher.planner.tools.proposals import propose_tool
from researcher.planner.tools.record.episodes import episodes_tool
from researcher.planner.tools.record.findings import findings_tool
from researcher.planner.tools.record.metrics import metrics_tool
from researcher.planner.tools.record.notebook import notebook_tool
from researcher.planner.tools.record.program_code import code_tool, diff_tool
from researcher.planner.tools.record.query import query_tools
from researcher.planner.tools.sources import ToolSources
from researcher.planner.tools.trials import try_program_tool


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
    return Toolbox(
        [
            environment_tool(sources),
            model_tool(sources),
            program_api_tool(),
            code_tool(sources),
            diff_tool(sources),
            metrics_tool(sources),
            episodes_tool(sources),
            notebook_tool(sources),
            findings_tool(sources),
            *query_tools(sources),
            *optional,
        ]
    )


def _carried_out_elsewhere(*_: object) -> NoReturn:
    raise ToolRefused("the process of the study carries this out")
