"""The token that a command shows a server: from the environment alone, where other users of the machine cannot read it.

Place in the flow: every command that speaks to a server asks here, for the one with the least rights that is enough.
"""

from __future__ import annotations

import os


def token_of(*roles: str) -> str | None:
    """The token of the first of these roles that the environment holds."""
    variables = {"commander": "SWARM_TOKEN", "rollout": "SWARM_ROLLOUT_TOKEN", "observer": "SWARM_OBSERVER_TOKEN"}
    return next((token for role in roles if (token := os.environ.get(variables[role]))), None)
