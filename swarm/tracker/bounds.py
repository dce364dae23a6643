"""Text that is far too long is found out before all of it is tokenized.

Place in the flow: codec.py tokenizes through it. To tokenize the largest body that a server takes costs half a minute
and gigabytes; to see that it does not fit costs milliseconds. Knows nothing of templates or requests.
"""

from __future__ import annotations

from collections.abc import Callable

from swarm.errors import ContextLengthExceeded

FIRST_LOOK = 8
"""Characters per token of the context: about twice as many as fit."""

WIDENING = 4
MARGIN = 2
"""The beginning of a text may have a few tokens more by itself than in the whole, never twice as many."""


def encode_within(encode: Callable[[str], tuple[int, ...]], text: str, context_length: int) -> tuple[int, ...]:
    """The ids of a text; 0 for a `context_length` that is not known.

    Raises ContextLengthExceeded if the beginning of the text alone has more than twice as many tokens.
    """
    if context_length:
        size = FIRST_LOOK * context_length
        while size < len(text):
            if len(encode(text[:size])) > MARGIN * context_length:
                raise ContextLengthExceeded(
                    f"the text has {len(text)} characters, far more than the context of {context_length} tokens holds:"
                    " shorten it"
                )
            size *= WIDENING
    return encode(text)
