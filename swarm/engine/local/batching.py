# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
"""Continuous batching: which requests run in the next forward pass, and what each has sampled so far.

Place in the flow: the worker submits and aborts requests and calls `step` as long as there is work. Rows 0..n-1 of the
slot cache always belong to the running requests, so attention reads plain views; a freed row is filled by the last one.
A prompt's last token is not prefilled but fed to the first decoding step, so tokens are sampled in one place only.
Knows nothing of processes, clients or training.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from swarm.engine.local.forward import Piece, SlotForward
from swarm.engine.local.prefixes import Prefix, PrefixStore
from swarm.engine.local.sampling import Draw, sample
from swarm.engine.stopping import Decode, StopRule
from swarm.errors import BadRequest, ContextLengthExceeded, EngineFailure
from swarm.types import FinishReason, SamplingParams

PREFILL_TOKENS = 2048
"""Prompt tokens computed in one step. More would make running requests wait longer for their next token."""
PADDING_LIMIT = 1.25
"""Padded tokens per real token in one prefill pass; sequences of more different lengths go in passes of their own."""
LARGEST_UNIFORM = 1 - 2**-32
"""Scale of the uniform numbers: keeps them clear of 1, see `sampling`."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """What one step gave one request: a token, unless the request was aborted or failed."""

    handle: int
    token_id: int | None
    logprob: float
    finish_reason: FinishReason | None
    error: EngineFailure | None = None


@dataclass(slots=True, eq=False)
class _Request:
    """`tokens` is prompt plus output; `cached` counts those whose keys and values are in the request's row.

    `prefix` is what the row will begin with, from admission until it has one.
    """

    handle: int
    tokens: list[int]
    params: SamplingParams
    rule: StopRule
    generator: np.random.Generator
    output_ids: list[int] = field(default_factory=list[int])
    cached: int = 0
    prefix: Prefix | None = None

    @property
    def missing(self) -> int:
        """Tokens to prefill: all but the last, which the next decoding step feeds."""
        return len(self.tokens) - 1 - self.cached


@dataclass(frozen=True, slots=True)
class Limits:
    context_length: int
    vocabulary: int
    max_running: int


class BatchSampler:
    """Samples many completions at once from one module. Used from one thread.

    Unseeded requests draw from generators seeded by `seed` in order of arrival.
    """

    def __init__(
        self, module: torch.nn.Module, limits: Limits, stop_ids: Collection[int], decode: Decode, *, seed: int = 0
    ) -> None:
        self.weight_version = 0
        self._module = module
        self._limits = limits
        self._stop_ids = frozenset(stop_ids)
        self._decode = decode
        self._seeds = np.random.default_rng(seed)
        self._forward = SlotForward(module, limits.context_length)
        self._prefixes = PrefixStore()
        self._waiting: deque[_Request] = deque()
        self._rows: list[_Request] = []
        # The last row may hold a prompt that is prefilled over several steps; it does not decode yet.
        self._partial = False

    @property
    def idle(self) -> bool:
        return not self._rows and not self._waiting

    @property
    def running(self) -> int:
        return len(self._rows)

    def submit(self, handle: int, prompt_ids: Sequence[int], params: SamplingParams) -> None:
        """Queue a request. Raises ContextLengthExceeded or BadRequest; `handle` must be new."""
        room = self._limits.context_length - len(prompt_ids)
        if room < 1:
            raise ContextLengthExceeded(
                f"the prompt has {len(prompt_ids)} tokens and the context holds {self._limits.context_length}: "
                "shorten it so that at least one token fits"
            )
        if not prompt_ids:
            raise BadRequest("the prompt is empty: send at least one token")
        if min(prompt_ids) < 0 or max(prompt_ids) >= self._limits.vocabulary:
            raise BadRequest(f"the prompt has token ids outside the vocabulary of {self._limits.vocabulary}")
        seed = self._seeds.integers(2**63) if params.seed is None else params.seed % 2**63
        self._waiting.append(
            _Request(
                handle,
                list(prompt_ids),
                params,
                StopRule(params, self._stop_ids, room, self._decode),
                np.random.default_rng(seed),
            )
        )

    @torch.inference_mode()
    def abort(self, handle: int) -> None:
        """Forget a request and free its row at once. Unknown handles are ignored: it may just have finished."""
        for request in self._waiting:
            if request.handle == handle:
                self._waiting.remove(request)
                return
        for row, request in enumerate(self._rows):
            if request.handle == handle:
                self._free(row)
                return

    def abort_all(self) -> list[int]:
        """Forget everything; the handles of what was forgotten."""
        handles = [request.handle for request in (*self._rows, *self._waiting)]
        self._rows.clear()
        self._waiting.clear()
        self._partial = False
        return handles

    def publish(self, weight_version: int) -> None:
        """Sample with changed weights from now on.

        What old weights left in the cache is useless: running requests queue up first, keep what they have sampled,
        and have it all prefilled again.
        """
        self.weight_version = weight_version
        for request in reversed(self._rows):
            request.cached = 0
            self._waiting.appendleft(request)
        self._rows.clear()
        self._partial = False
        self._forward = SlotForward(self._module, self._limits.context_length)
        self._prefixes = PrefixStore()

    @torch.inference_mode()
    def step(self) -> list[Sampled]:
        """Prefill what fits, then sample one token for every request whose prompt is in the cache."""
        self._prefill()
        decoding = self._rows[: len(self._rows) - self._partial]
        if not decoding:
            return []
        logits = self._forward.decode([r.tokens[-1] for r in decoding], [len(r.tokens) - 1 for r in decoding])
        draws = [Draw(r.params, r.generator.random() * LARGEST_UNIFORM) for r in decoding]
        token_ids, logprobs = sample(logits, draws)
        results = [
            self._accept(request, token_id, logprob)
            for request, token_id, logprob in zip(decoding, token_ids, logprobs, strict=True)
        ]
        # Backwards, because the row that fills a gap always comes from behind it.
        for row in reversed(range(len(decoding))):
            if results[row].finish_reason is not None:
                request = decoding[row]
                self._prefixes.keep(self._forward.cache, row, request.tokens[: request.cached])
            if results[row].finish_reason is not None or results[row].error is not None:
                self._free(row)
        return results

    def _accept(self, request: _Request, token_id: int, logprob: float) -> Sampled:
        request.cached = len(request.tokens)
        if not math.isfinite(logprob):
            error = EngineFailure(
                f"the model's logits are not finite at weight version {self.weight_version}: training has diverged"
            )
            return Sampled(request.handle, None, logprob, None, error)
        request.tokens.append(token_id)
        request.output_ids.append(token_id)
        return Sampled(request.handle, token_id, logprob, request.rule.check(request.output_ids))

    def _prefill(self) -> None:
        """Admit waiting requests in order of arrival, within the token budget, and compute what their rows miss."""
        budget = PREFILL_TOKENS
        continued = self._rows[-1] if self._partial else None
        admitted: list[_Request] = []
        if continued is not None:
            budget -= continued.missing
        while self._waiting and budget > 0 and len(self._rows) + len(admitted) < self._limits.max_running:
            request = self._waiting.popleft()
            admitted.append(request)
            request.prefix = self._prefixes.match(request.tokens[:-1])
            request.cached = request.prefix.length if request.prefix else 0
            budget -= request.missing
        if continued is None and not admitted:
            return
        # A prompt that overruns the budget goes on in the next step and stays the last row until it is whole.
        self._partial = budget < 0
        tail = admitted.pop() if self._partial and admitted else None
        admitted.sort(key=lambda request: request.missing)
        if tail is not None:
            admitted.append(tail)
        first_row = len(self._rows)
        self._rows.extend(admitted)
        for row, request in enumerate(admitted, start=first_row):
            if request.prefix is not None:
                self._forward.cache.write(row, request.prefix.columns, request.cached)
                request.prefix = None
        wave = [continued, *admitted] if continued is not None else admitted
        self._fill(len(self._rows) - len(wave), wave, overrun=max(-budget, 0))

    def _fill(self, first_row: int, wave: Sequence[_Request], *, overrun: int) -> None:
        """Prefill neighbouring rows in passes of similar length. The last row leaves `overrun` tokens for later."""
        pieces: list[Piece] = []
        for request in wave:
            end = len(request.tokens) - 1 - (overrun if request is wave[-1] else 0)
            pieces.append(Piece(request.cached, request.tokens[request.cached : end]))
            request.cached = end
        row = first_row
        for group in _group_by_length(pieces):
            if any(piece.token_ids for piece in group):
                self._forward.fill(row, group)
            row += len(group)

    def _free(self, row: int) -> None:
        """Drop a row; the last decoding row fills the gap, and a partly prefilled row moves up behind it."""
        last = len(self._rows) - 1
        if row == last:
            self._rows.pop()
            self._partial = False
            return
        if self._partial:
            self._move(last - 1, row)
            self._move(last, last - 1)
        else:
            self._move(last, row)
        self._rows.pop()

    def _move(self, source: int, target: int) -> None:
        if source != target:
            self._rows[target] = self._rows[source]
            self._forward.cache.move(source, target, self._rows[source].cached)


def _group_by_length(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """Cut a sequence of pieces, in order, into groups that padding inflates by at most PADDING_LIMIT."""
    groups: list[list[Piece]] = []
    longest = total = 0
    for piece in pieces:
        size = len(piece.token_ids)
        longest, total = max(longest, size), total + size
        if groups and longest * (len(groups[-1]) + 1) <= max(PADDING_LIMIT * total, 1):
            groups[-1].append(piece)
        else:
            groups.append([piece])
            longest, total = size, size
    return groups
