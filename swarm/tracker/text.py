"""The conversion of sampled token ids to text as they arrive: whole characters only, and nothing of a stop string."""

from __future__ import annotations

from collections.abc import Callable, Sequence

_BROKEN = "\ufffd"
# A UTF-8 character has at most four bytes and a token at least one, so earlier tokens are already decided.
_CHARACTER_TOKENS = 4
_PENDING_TOKENS = 16


class TextStream:
    """A detokenizer of one completion. The joined text does not depend on how the ids are cut into pushes.

    With several stop strings, the first one to be complete ends the text.
    """

    def __init__(
        self, decode: Callable[[Sequence[int]], str], is_visible: Callable[[int], bool], stop: Sequence[str] = ()
    ) -> None:
        self._decode = decode
        self._is_visible = is_visible
        self._stop = tuple(stop)
        # Some tokenizers drop a leading space, so new tokens are decoded after those of the previous piece.
        self._context: list[int] = []
        self._context_text = ""
        self._pending: list[int] = []
        self._unsent = ""
        self.stopped = False

    def push(self, token_ids: Sequence[int]) -> str:
        """Return text that is now certain to be shown."""
        self._pending.extend(token for token in token_ids if self._is_visible(token))
        return self._release(self._decoded(), final=False)

    def finish(self) -> str:
        """Return the remaining text; no more tokens come. An incomplete character shows as U+FFFD."""
        return self._release(self._take(len(self._pending)), final=True)

    def whole(self, token_ids: Sequence[int]) -> str:
        """Return the text of a whole completion, decoded at once. The stream does not change."""
        text = self._decode([token for token in token_ids if self._is_visible(token)])
        return text[: self._find_stop(text)]

    def _decoded(self) -> str:
        if not self._pending:
            return ""
        if not self._pending_text(len(self._pending)).endswith(_BROKEN):
            return self._take(len(self._pending))
        if len(self._pending) <= _PENDING_TOKENS:
            return ""
        return self._take_decided()

    def _take_decided(self) -> str:
        """Return the text of waiting tokens that no later byte can change.

        Many tokens may wait for the end of one character.
        """
        count = len(self._pending) - _CHARACTER_TOKENS
        head, tail = self._pending_text(count), self._decode(self._pending[count:])
        return self._take(count) if head + tail == self._pending_text(len(self._pending)) else ""

    def _pending_text(self, count: int) -> str:
        return self._decode(self._context + self._pending[:count])[len(self._context_text) :]

    def _take(self, count: int) -> str:
        if count == 0:
            return ""
        text = self._pending_text(count)
        self._context, self._pending = self._pending[:count], self._pending[count:]
        self._context_text = self._decode(self._context)
        return text

    def _release(self, text: str, *, final: bool) -> str:
        if self.stopped:
            return ""
        if not self._stop:
            return text
        seen = self._unsent + text
        if (end := self._find_stop(seen)) is not None:
            self.stopped = True
            return seen[:end]
        kept = 0 if final else max(overlap(seen, stop) for stop in self._stop)
        self._unsent = seen[len(seen) - kept :]
        return seen[: len(seen) - kept]

    def _find_stop(self, text: str) -> int | None:
        """Return where the stop string begins that is complete first, or None."""
        ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in self._stop if stop in text]
        return min(ends)[1] if ends else None


def overlap(text: str, mark: str) -> int:
    """Return how many characters at the end of `text` may begin `mark`, without completing it."""
    for length in range(min(len(text), len(mark) - 1), 0, -1):
        if text.endswith(mark[:length]):
            return length
    return 0
