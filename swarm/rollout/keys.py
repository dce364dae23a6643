"""The key of an episode: unguessable, and recognized by its digest alone.

Place in the flow: episodes.py hands one out for every episode and finds the episode by the digest. How a caller
presents a key is the gateway's business.
"""

from __future__ import annotations

import hashlib
import secrets

KEY_PREFIX = "sk-swarm-"


def new_key() -> str:
    """An unguessable episode key (192 bits)."""
    return KEY_PREFIX + secrets.token_urlsafe(24)


def key_digest(key: str) -> str:
    """What is kept of a key: enough to recognize it, not to use it."""
    return hashlib.sha256(key.encode()).hexdigest()
