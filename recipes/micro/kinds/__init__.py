"""The kinds of task in micro's demonstrations, and those that are held out for its score."""

from __future__ import annotations

from recipes.micro.kinds import arithmetic, decisions, letters, lists, stories
from recipes.micro.kinds.base import Kind

_ROOMS = (letters, lists, arithmetic, decisions, stories)

KINDS: tuple[Kind, ...] = tuple(kind for room in _ROOMS for kind in room.KINDS)
"""The kinds that are trained."""
_BASIC = frozenset(
    {
        "copy", "reverse", "letter at", "item at", "word at", "first letters", "append", "prepend", "spell",
        "is in list", "add", "item after", "next letter", "upper", "value of key", "repeat",
    }
)  # fmt: skip
BASIC_KINDS: tuple[Kind, ...] = tuple(kind for kind in KINDS if kind.name in _BASIC)
"""The kinds that others build upon: to copy, to find a place, to compare. The warm-up begins with them."""
HELD_OUT_KINDS: tuple[Kind, ...] = tuple(kind for room in _ROOMS for kind in room.HELD_OUT)
"""The kinds that are never trained."""
