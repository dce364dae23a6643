"""The limits of a completion: which requests can be honoured, and after which token a completion ends."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from swarm.errors import BadRequest, ContextLengthExceeded
from swarm.sampling_limits import check_sampling
from swarm.types import FinishReason, SamplingParams

Decode = Callable[[Sequence[int]], str]
"""Token ids -> text, with special tokens written out."""

LONGEST_CHARACTER = 4
"""Bytes of the longest UTF-8 character: it may take this many tokens to complete a character."""


def check_request(prompt_ids: Sequence[int], params: SamplingParams, *, vocabulary: int, context_length: int) -> None:
    """Raise BadRequest for tokens and parameters that no sampler could honour."""
    if len(prompt_ids) >= context_length:
        raise ContextLengthExceeded(
            f"the prompt has {len(prompt_ids)} tokens and the context holds {context_length}: shorten it so "
            "that at least one token fits"
        )
    if not prompt_ids:
        raise BadRequest("the prompt is empty: send at least one token")
    if min(prompt_ids) < 0 or max(prompt_ids) >= vocabulary:
        raise BadRequest(f"the prompt has token ids outside the vocabulary of {vocabulary}")
    if any(not 0 <= token_id < vocabulary for token_id, _ in params.logit_bias):
        raise BadRequest(f"logit_bias has token ids outside the vocabulary of {vocabulary}", param="logit_bias")
    if any(token_id >= vocabulary for token_id in params.stop_token_ids):
        raise BadRequest(f"stop_token_ids has token ids outside the vocabulary of {vocabulary}", param="stop_token_ids")
    check_sampling(params)
    if params.grammar is not None:
        for name in ("min_tokens", "ignore_eos"):
            if getattr(params, name):
                raise BadRequest(f"{name} cannot go with a grammar, which alone says where to end", param=name)


class EndRule:
    """Rule that decides after each token whether a completion ends. The last token belongs to the completion."""

    def __init__(self, params: SamplingParams, stop_ids: Collection[int], room: int, decode: Decode) -> None:
        """Set the rule for one completion. `stop_ids` are the model's own end tokens.

        `room` is the number of tokens that the context leaves for the completion. The limit is the lower of `room` and
        max_tokens.
        """
        own = frozenset[int]() if params.ignore_eos else frozenset(stop_ids)
        self.stop_ids = own | frozenset(params.stop_token_ids)
        self._min_tokens = params.min_tokens
        self._limit = min(params.max_tokens, room)
        self._strings = tuple(text for text in params.stop if text)
        self._decode = decode
        # Every token is at least one byte, so a string that has just been completed lies within these tokens.
        longest = max((len(text.encode()) for text in self._strings), default=0)
        self._window = longest + LONGEST_CHARACTER

    def check(self, output_ids: Sequence[int]) -> FinishReason | None:
        """Return the reason to stop after the last of `output_ids`, or None to continue."""
        may_stop = len(output_ids) > self._min_tokens
        if may_stop and (output_ids[-1] in self.stop_ids or self._completes_string(output_ids)):
            return FinishReason.STOP
        return FinishReason.LENGTH if len(output_ids) >= self._limit else None

    def _completes_string(self, output_ids: Sequence[int]) -> bool:
        if not self._strings:
            return False
        recent = output_ids[-self._window :]
        text = self._decode(recent)
        if not self._min_tokens:
            return any(stop in text for stop in self._strings)
        # A string may have been completed before min_tokens; only a string that the last token completes counts.
        before = self._decode(recent[:-1])
        return any(text.rfind(stop) > before.rfind(stop) for stop in self._strings)
