"""A cache of the texts that a chat template rendered lately.

Place in the flow: used by codec.py. The episodes of a group begin with the same messages. Each turn of a conversation
is rendered once as a prompt and again as the beginning of the next one. This module knows nothing of tokens.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence

from pydantic_core import PydanticSerializationError, to_json

from swarm.types import Message, ToolSpec

MAX_CHARS = 4 * 2**20
"""The most characters of all cached texts together."""


class RenderedTexts:
    """The texts used last. Two requests are the same if their JSON is, down to the order of keys."""

    def __init__(self, max_chars: int = MAX_CHARS) -> None:
        self._max_chars = max_chars
        self._chars = 0
        self._texts: OrderedDict[bytes, str] = OrderedDict()
        # Episodes are decoded for display in other threads.
        self._lock = threading.Lock()

    def get(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        options: Mapping[str, object],
        *,
        generation_prompt: bool,
        render: Callable[[], str],
    ) -> str:
        """Return the cached text, or cache and return the result of `render`. Raise what `render` raises."""
        try:
            asked = to_json([list(messages), list(tools), dict(options), generation_prompt], inf_nan_mode="constants")
        except (PydanticSerializationError, ValueError):
            # JSON cannot represent everything that a request may ask a template to render.
            return render()
        key = hashlib.blake2b(asked, digest_size=16).digest()
        with self._lock:
            text = self._texts.get(key)
            if text is not None:
                self._texts.move_to_end(key)
                return text
        text = render()
        self._remember(key, text)
        return text

    def _remember(self, key: bytes, text: str) -> None:
        with self._lock:
            if key in self._texts or len(text) > self._max_chars:
                return
            self._texts[key] = text
            self._chars += len(text)
            while self._chars > self._max_chars:
                _, forgotten = self._texts.popitem(last=False)
                self._chars -= len(forgotten)
