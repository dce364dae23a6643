"""The tool `notebook`: what was predicted, tried, failed, read and learned in this study."""

from __future__ import annotations

from pydantic import Field

from experiments_db import NotebookEntry, NoteKind
from researcher.planner.tools.base import PlannerTool, ToolArguments
from researcher.planner.tools.sources import ToolSources
from researcher.planner.tools.texts import page


class NotebookArguments(ToolArguments):
    kind: NoteKind | None = Field(default=None, description="Only entries of this kind.")
    offset: int = Field(default=0, ge=0, description="The character to begin with, for the next page.")


def notebook_tool(sources: ToolSources) -> PlannerTool:
    """Return the tool."""

    def call(arguments: NotebookArguments) -> str:
        entries = sources.store.list_notes(sources.study_id, kind=arguments.kind)
        if not entries:
            return "no such entry yet"
        return page("\n".join(map(_show, entries)), arguments.offset)

    return PlannerTool("notebook", "Read the whole notebook, oldest entry first.", NotebookArguments, call)


def _show(entry: NotebookEntry) -> str:
    return f"[{entry.iteration + 1}] {entry.kind} ({entry.author}): {' '.join(entry.text.split())}"
