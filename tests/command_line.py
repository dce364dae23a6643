"""`swarm` commands in the process of the test: what they print and how they exit, without an interpreter of their own.

For commands that look, print and go. Where the process itself is tested, a test starts one.
"""

from __future__ import annotations

import os

from typer.testing import CliRunner, Result

from swarm.cli import app


def run_swarm(*arguments: str, **env: str) -> Result:
    """Run a command that sees no SWARM_ variable but those given as `env`. Without them, servers record nothing."""
    ours: dict[str, str | None] = {name: None for name in os.environ if name.startswith("SWARM_")}
    ours["SWARM_NO_RECORD"] = "1"
    return CliRunner().invoke(app, arguments, env={**ours, "COLUMNS": "100", **env})
