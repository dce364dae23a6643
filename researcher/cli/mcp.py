"""The command `researcher mcp`, which serves coding agents."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from researcher.cli import lifecycle
from researcher.cli.options import DatabaseOption, HomeOption
from researcher.cli.parts import open_database
from researcher.cli.terminal import failures_in_one_line
from researcher.home import DEFAULT_HOME

if TYPE_CHECKING:
    from experiments_db import ExperimentStore, Study
    from researcher.execution.environments import StudyEnvironments
    from researcher.planner.tools.base import ToolArguments, Toolbox

OF_PLACE = ("detach", "home", "db", "json")
"""Options that the server fills in by itself."""


def serve(home: HomeOption = DEFAULT_HOME, db: DatabaseOption = None) -> None:
    """Serve the researcher to coding agents by the Model Context Protocol (MCP), over standard input and output."""
    with failures_in_one_line():
        # Imported here because the SDK takes a second to load.
        from researcher.execution.environments import StudyEnvironments
        from researcher.mcp import server

        with closing(StudyEnvironments()) as environments:
            server.serve(_study_tools(home.resolve(), db, environments))


def _study_tools(home: Path, db: str | None, environments: StudyEnvironments) -> Toolbox:
    """Return the tools of the server; commands have the options that they have on a command line."""
    from researcher.cli.option_schema import arguments_of
    from researcher.cli.start import start
    from researcher.mcp.study_tools import CommandTool, StudyTools

    offered = (
        ("start", start, "Begin a study; a process of its own works on it. Paths are read where this server runs."),
        ("resume", lifecycle.resume, "Go on with a study that was paused, stopped or cut short."),
        ("pause", lifecycle.pause, "Ask a study to stop working soon; `resume` goes on with it."),
        ("stop", lifecycle.stop, "Ask a study to stop working soon, for good."),
    )
    tools = [
        CommandTool(name, text, arguments_of(command, without=OF_PLACE), partial(_words, command))
        for name, command, text in offered
    ]
    place = ["--home", str(home), *([] if db is None else ["--db", db])]
    reading = partial(_planner_tools, environments)
    studies = StudyTools(home, partial(open_database, home, db), place, tools, reading)
    return studies.as_toolbox()


def _planner_tools(environments: StudyEnvironments, store: ExperimentStore, study: Study) -> Toolbox:
    """Return the tools of a study's planner that need nothing but its database and its environments."""
    from researcher.planner.tools.build import build_toolbox
    from researcher.planner.tools.sources import ToolSources

    notes = study.settings.get("notes")
    return build_toolbox(
        ToolSources(
            store=store,
            study_id=study.id,
            open_environment=environments.open,
            notes=None if notes is None else Path(notes),
        )
    )


def _words(command: Callable[..., Any], given: ToolArguments) -> Sequence[str]:
    """Return the words after the name of a command; work begins in a process of its own."""
    from researcher.cli.option_schema import words_of

    works = "detach" in inspect.signature(command).parameters
    return [*words_of(command, given), *(["--detach"] if works else [])]
