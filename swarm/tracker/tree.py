"""The token tree of one episode: where a new request continues, and the turns recorded so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from swarm.tracker.codec import Codec
from swarm.tracker.conversation import fingerprint, prefix_fingerprints
from swarm.types import ForkReason, Message, ToolSpec, Turn


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt to sample from. `index` is the index of the new turn.

    `parent` is the turn whose ids the prompt extends exactly. Without a parent, `fork_reason` tells why.
    """

    index: int
    prompt_ids: tuple[int, ...]
    parent: int | None
    fork_reason: ForkReason | None


class EpisodeTree:
    """The turns of one episode. Requests may overlap; a turn can be extended once it was added.

    Use it from one event loop, since it is not thread-safe.
    """

    def __init__(self, episode_id: str) -> None:
        self.episode_id = episode_id
        self._turns: dict[int, Turn] = {}
        self._next_index = 0
        # Maps the fingerprint of messages and reply to the turns that have them, in the order they were added.
        self._by_history: dict[str, list[int]] = {}
        self._openings: set[str] = set()
        self._replies: set[str] = set()

    @property
    def turns(self) -> tuple[Turn, ...]:
        """All added turns by index."""
        return tuple(self._turns[index] for index in sorted(self._turns))

    def locate(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        codec: Codec,
        template_options: Mapping[str, Any] = MappingProxyType({}),
        *,
        takes_place: bool = True,
    ) -> Prompt:
        """Return the prompt of a request and its place in the tree: after the longest earlier turn that it extends.

        Each call assigns the next index, unless it `takes_place` of none; a turn that is never added leaves a gap.
        Raise BadRequest if the chat template refuses the messages.
        """
        reason: ForkReason | None = None
        prefixes = prefix_fingerprints(messages)
        for candidate in self._candidates(prefixes):
            extension = codec.extend(candidate, messages, tools, template_options)
            if extension.prompt_ids is not None:
                return Prompt(self._allot(takes_place), extension.prompt_ids, candidate.index, None)
            reason = reason or extension.reason
        prompt_ids = codec.render(messages, tools, template_options)
        reason = reason or self._reason_without_candidate(messages, prefixes)
        return Prompt(self._allot(takes_place), prompt_ids, None, reason)

    def locate_raw(self, text: str | None, token_ids: Sequence[int] | None, codec: Codec) -> Prompt:
        """Return the prompt of a request with its own text or ids, after the longest earlier turn that it begins with.

        Text continues a turn if it begins with the whole text of the turn, special tokens spelled out. The rest is
        tokenized by itself, so that the tokens before it stay those that were sampled.
        """
        given = None if token_ids is None else tuple(token_ids)
        best: tuple[Turn, tuple[int, ...]] | None = None
        for turn in self._turns.values():
            before = turn.prompt_ids + turn.output_ids_T
            if best is not None and len(before) <= len(best[0].prompt_ids + best[0].output_ids_T):
                continue
            if given is not None and given[: len(before)] == before:
                best = (turn, given)
            elif text is not None and len(earlier := codec.raw_text(before)) <= len(text) and text.startswith(earlier):
                best = (turn, before + codec.encode_text(text[len(earlier) :]))
        if best is not None and best[0].output_ids_T:
            return Prompt(self._allot(), best[1], best[0].index, None)
        prompt_ids = given if given is not None else codec.encode_text(text or "")
        return Prompt(self._allot(), prompt_ids, None, ForkReason.NEW_CONVERSATION)

    def add(self, turn: Turn) -> None:
        """Record a finished turn. Raise ValueError if its index is taken or its parent was never added."""
        if turn.index in self._turns:
            raise ValueError(f"turn {turn.index} of episode {self.episode_id} was added before")
        if turn.parent is not None and turn.parent not in self._turns:
            raise ValueError(f"turn {turn.index} of episode {self.episode_id} has no parent {turn.parent}")
        self._turns[turn.index] = turn
        self._next_index = max(self._next_index, turn.index + 1)
        history = prefix_fingerprints([*turn.messages, turn.reply])
        self._by_history.setdefault(history[-1], []).append(turn.index)
        self._openings.add(_opening(turn.messages, history))
        self._replies.add(fingerprint(turn.reply))

    def _candidates(self, prefixes: Sequence[str]) -> list[Turn]:
        """Return the turns whose messages and reply match one of these prefixes.

        The longest come first, and of equal ones the latest.
        """
        found: list[Turn] = []
        for prefix in reversed(prefixes):
            found.extend(self._turns[index] for index in reversed(self._by_history.get(prefix, ())))
        return found

    def _reason_without_candidate(self, messages: Sequence[Message], prefixes: Sequence[str]) -> ForkReason:
        """Return why a request continues no turn.

        The history was edited if the request shows a reply and began like an earlier turn, or quotes an earlier reply.
        """
        replies = {fingerprint(message) for message in messages if message.get("role") == "assistant"}
        if replies and (_opening(messages, prefixes) in self._openings or replies & self._replies):
            return ForkReason.EDITED_HISTORY
        return ForkReason.NEW_CONVERSATION

    def _allot(self, takes_place: bool = True) -> int:
        index = self._next_index
        self._next_index += takes_place
        return index


def _opening(messages: Sequence[Message], prefixes: Sequence[str]) -> str:
    """Return the fingerprint of the messages up to the first that is not an instruction.

    `prefixes` begin with the fingerprints of these messages.
    """
    opening = ""
    for message, prefix in zip(messages, prefixes, strict=False):
        opening = prefix
        if message.get("role") not in {"system", "developer"}:
            break
    return opening
