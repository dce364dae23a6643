"""The token that a command sends to a server. It comes from environment variables, which other users cannot read.

Place in the flow: every command that calls a server asks here for the token with the fewest rights that is enough.
"""

from __future__ import annotations

import os


def token_of(*roles: str) -> str | None:
    """Return the token of the first of these roles that has one, or None."""
    variables = {"commander": "SWARM_TOKEN", "rollout": "SWARM_ROLLOUT_TOKEN", "observer": "SWARM_OBSERVER_TOKEN"}
    return next((token for role in roles if (token := os.environ.get(variables[role]))), None)
