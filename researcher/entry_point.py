"""The entry point of the command `researcher`, which explains a missing extra.

Place in the flow: the script of the package comes here first, and cli.py has the commands.
"""

from __future__ import annotations

from swarm.extras import named_extras


def main() -> None:
    with named_extras("researcher", "researcher"):
        from researcher.cli import app

        app()
