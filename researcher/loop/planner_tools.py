"""The toolbox of the planner of a running study.

Place in the flow: session.py calls it for a planner that looks before it answers. The tools read the study's database
and its environments; trials of programs run on the study's own servers. This module knows no planner.
"""

from __future__ import annotations

from pathlib import Path

from researcher.loop.trials import ProgramTrials
from researcher.planner.tools.base import Toolbox
from researcher.planner.tools.build import build_toolbox
from researcher.planner.tools.proposals import Propose
from researcher.planner.tools.sources import ToolSources


def build_study_toolbox(trials: ProgramTrials, *, notes: str | None, propose: Propose | None = None) -> Toolbox:
    """Return the tools of a running study. `notes` is the setting of that name."""
    return build_toolbox(
        ToolSources(
            store=trials.store,
            study_id=trials.log.study_id,
            open_environment=trials.environments.open,
            notes=None if notes is None else Path(notes),
            try_program=trials.try_draft,
            propose=propose,
        )
    )
