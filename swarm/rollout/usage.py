"""The model use of one running episode, the limits it was begun with, and the seeds of its calls."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from swarm.errors import AttemptLimit
from swarm.ledger import MAX_SETTINGS, NO_USE, EpisodeRow, ModelUse
from swarm.types import SamplingParams


def call_seed(sampling_seed: int, number: int) -> int:
    """Return the seed of the call with this number in an episode; equal in every process and version."""
    digest = hashlib.sha256(f"call {number} of {sampling_seed}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % 2**63


SLOW_TOKENS_PER_S = 1.0
SLOW_PROMPT_TOKENS_PER_S = 16.0
"""A server that samples or reads fewer tokens per second for a single completion is slow. Else the call is long."""


@dataclass(slots=True, eq=False)
class OpenCompletion:
    """A completion that is not on record.

    `params` are its sampling parameters, `asked_tokens` is the limit that its call asked for. `sampled` are its tokens
    so far. It is `handed_over` once the ledger was given its turn. `begun` is a time of the monotonic clock.
    """

    prompt_tokens: int
    params: SamplingParams
    asked_tokens: int
    sampled: int = 0
    handed_over: bool = False
    begun: float = field(default_factory=time.monotonic)

    @property
    def use(self) -> ModelUse:
        """Model use of this completion: nothing as long as no token was sampled."""
        return ModelUse.of(self.params, self.prompt_tokens, self.sampled) if self.sampled else NO_USE

    def is_kept_waiting(self, longer_than_s: float) -> bool:
        """Return whether it takes longer than that, and longer than its tokens take on a slow server."""
        allowed_s = self.sampled / SLOW_TOKENS_PER_S + self.prompt_tokens / SLOW_PROMPT_TOKENS_PER_S
        return time.monotonic() - self.begun >= max(longer_than_s, allowed_s)

    @property
    def is_cut(self) -> bool:
        """True if the completion ended because the episode had no tokens left."""
        return self.params.max_tokens < self.asked_tokens and self.sampled >= self.params.max_tokens


@dataclass(slots=True)
class UsageMeter:
    """Use of one episode's model against its limits. Use it from one event loop.

    `calls` and `tokens` count what was sampled. `overruled` counts completions whose call asked for other sampling than
    the begin of the episode had fixed. `most_at_once` is the largest number of completions that were under way at once.

    The ledger counts recorded use. The meter counts the rest, until the end of the episode records that too.
    """

    max_calls: int | None = None
    max_tokens: int | None = None
    calls: int = 0
    tokens: int = 0
    system_failures: int = 0
    is_limited: bool = False
    overruled: int = 0
    most_at_once: int = 0
    _asked: dict[str, None] = field(default_factory=dict[str, None])
    _open: set[OpenCompletion] = field(default_factory=set[OpenCompletion])
    _unrecorded: ModelUse = NO_USE

    @classmethod
    def of(cls, row: EpisodeRow) -> UsageMeter:
        return cls(row.max_calls, row.max_tokens, row.use.calls, row.use.sampled_tokens)

    def admit(self, params: SamplingParams, count: int) -> SamplingParams:
        """Return the sampling parameters for each of the `count` completions of a new call.

        They allow no more tokens than the episode has left. Tokens that running calls may still sample count as used.
        Raise AttemptLimit where too little is left.
        """
        if self.max_calls is not None and self.calls + len(self._open) + count > self.max_calls:
            left = max(0, self.max_calls - self.calls - len(self._open))
            raise self._refuse(f"{left} of its {self.max_calls} model calls are left, and this request takes {count}")
        if self.max_tokens is None:
            return params
        reserved = sum(each.params.max_tokens for each in self._open)
        share = (self.max_tokens - self.tokens - reserved) // count
        if share < max(1, params.min_tokens):
            waiting = f", {reserved} more may be sampled by calls under way" if reserved else ""
            raise self._refuse(f"{self.tokens} of its {self.max_tokens} tokens are used{waiting}")
        return params if params.max_tokens <= share else replace(params, max_tokens=share)

    def begin(self, completions: Iterable[OpenCompletion]) -> None:
        self._open.update(completions)
        self.most_at_once = max(self.most_at_once, len(self._open))

    def keeps_waiting(self, longer_than_s: float) -> bool:
        """Return whether a completion is kept waiting for longer than that."""
        return any(each.is_kept_waiting(longer_than_s) for each in self._open)

    def overrule(self, asked: Iterable[str], completions: int) -> None:
        """Note the sampling settings that a call asked for in vain."""
        if names := dict.fromkeys(asked):
            self.overruled += completions
            self._asked.update(names)

    def settle(self, completions: Sequence[OpenCompletion], recorded: Iterable[OpenCompletion]) -> None:
        """Count the use of completions that are over.

        A completion that is not in `recorded` counts with its sampled tokens, unless the ledger refused it.
        """
        on_record = set(recorded)
        for each in completions:
            self._open.discard(each)
            if each in on_record:
                self.calls += 1
                self.tokens += each.sampled
                self.is_limited = self.is_limited or each.is_cut
            elif not each.handed_over:
                self.calls += each.use.calls
                self.tokens += each.sampled
                self._unrecorded += each.use

    @property
    def unrecorded(self) -> ModelUse:
        """Use that the ledger does not know of, with that of running completions."""
        use = replace(
            self._unrecorded,
            is_limited=self.is_limited,
            system_failures=self.system_failures,
            overruled=self.overruled,
            asked=tuple(self._asked)[:MAX_SETTINGS],
        )
        for each in self._open:
            if not each.handed_over:
                use += each.use
        return use

    def _refuse(self, why: str) -> AttemptLimit:
        self.is_limited = True
        return AttemptLimit(f"the episode is at its limit: {why}")
