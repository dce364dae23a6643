# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
"""Continuous batching: the requests of the next forward pass, and the tokens that each has sampled so far."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from swarm.backends.grammar import Constraint, GrammarCompiler
from swarm.backends.local.decoding.forward import (
    SHORTEST_MATCH,
    Prefix,
    PrefixStore,
    RowTokens,
    SlotForward,
    shared_length,
)
from swarm.backends.local.decoding.sampling import Draw, LogitEdits, has_finite_scores, sample
from swarm.backends.stopping import Decode, EndRule, check_request
from swarm.errors import BadRequest, SwarmError, WeightsNotFinite
from swarm.sampling_limits import overflow_of
from swarm.types import FinishReason, SamplingParams, TokenLogprobs

PREFILL_TOKENS = 2048
"""Prompt tokens computed in one step. More would make running requests wait longer for their next token."""
PADDING_LIMIT = 1.25
"""Most padded tokens per real token in one prefill pass; sequences of more different lengths go in separate passes."""
LARGEST_UNIFORM = 1 - 2**-32
"""Scale of the uniform numbers, which keeps them below 1 (see sampling.py)."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """Result of one step for one request: a token or an error.

    It has the likeliest tokens if the request asked for them.
    """

    handle: int
    token_id: int | None
    logprob: float
    finish_reason: FinishReason | None
    error: SwarmError | None = None
    likeliest: TokenLogprobs | None = None


@dataclass(slots=True, eq=False)
class _Request:
    """One request. `tokens` is prompt plus output; `cached` counts the tokens with keys and values in its row.

    `to_cache` are the tokens to prefill, as of the last admission of the request. Between admission and the assignment
    of a row, the first `cached` of them are still to be copied from `prefix` or from the row of `source`.
    """

    handle: int
    tokens: list[int]
    params: SamplingParams
    rule: EndRule
    generator: np.random.Generator
    edits: LogitEdits | None
    constraint: Constraint | None
    output_ids: list[int] = field(default_factory=list[int])
    cached: int = 0
    to_cache: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    prefix: Prefix | None = None
    source: int | None = None

    @property
    def missing(self) -> int:
        """Number of tokens to prefill: all but the last, which is the input of the next decoding step."""
        return len(self.tokens) - 1 - self.cached


@dataclass(frozen=True, slots=True)
class BatchingLimits:
    context_length: int
    vocabulary: int
    max_running: int


class BatchSampler:
    """Sampler of many completions at once from one module. Used from one thread.

    Unseeded requests draw from generators that are seeded by `seed` in order of arrival.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        limits: BatchingLimits,
        stop_ids: Collection[int],
        decode: Decode,
        *,
        seed: int | Sequence[int] = 0,
        grammars: GrammarCompiler | None = None,
    ) -> None:
        """Create a sampler of the module. Without `grammars`, requests that have a grammar are refused."""
        self.weight_version = 0
        self._module = module
        self._limits = limits
        self._stop_ids = frozenset(stop_ids)
        self._decode = decode
        self._grammars = grammars
        self._seeds = np.random.default_rng(seed)
        self._forward = SlotForward(module, limits.context_length)
        self._prefixes = PrefixStore()
        self._waiting: deque[_Request] = deque()
        self._rows: list[_Request] = []
        # The last row may contain a prompt that is prefilled over several steps; it does not decode yet.
        self._partial = False

    @property
    def idle(self) -> bool:
        return not self._rows and not self._waiting

    @property
    def running(self) -> int:
        return len(self._rows)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def submit(self, handle: int, prompt_ids: Sequence[int], params: SamplingParams) -> None:
        """Queue a request; `handle` must be new. Raise ContextLengthExceeded or BadRequest."""
        limits = self._limits
        check_request(prompt_ids, params, vocabulary=limits.vocabulary, context_length=limits.context_length)
        room = limits.context_length - len(prompt_ids)
        rule = EndRule(params, self._stop_ids, room, self._decode)
        constraint = self._constrain(params, rule.stop_ids)
        edits = LogitEdits(params, prompt_ids, rule.stop_ids) if LogitEdits.are_needed(params) else None
        seed = self._seeds.integers(2**63) if params.seed is None else params.seed % 2**63
        generator = np.random.default_rng(seed)
        self._waiting.append(_Request(handle, list(prompt_ids), params, rule, generator, edits, constraint))

    def _constrain(self, params: SamplingParams, end_ids: Collection[int]) -> Constraint | None:
        if params.grammar is None:
            return None
        if self._grammars is None:
            raise BadRequest("this engine cannot follow grammars: leave it out")
        return self._grammars.start(params.grammar, end_ids)

    @torch.inference_mode()
    def abort(self, handle: int) -> None:
        """Forget a request and free its row at once. Ignore unknown handles: the request may have just finished."""
        for request in self._waiting:
            if request.handle == handle:
                self._waiting.remove(request)
                return
        for row, request in enumerate(self._rows):
            if request.handle == handle:
                self._free(row)
                return

    def abort_all(self) -> list[int]:
        """Forget every request, and return the handles of the forgotten ones."""
        handles = [request.handle for request in (*self._rows, *self._waiting)]
        self._rows.clear()
        self._waiting.clear()
        self._partial = False
        return handles

    def pause(self) -> None:
        """Free the memory of the copied weights, for the code that changes the weights now."""
        self._forward.release()

    def publish(self, weight_version: int) -> None:
        """Sample with the changed weights from now on.

        Cache entries from old weights are useless. Running requests go to the front of the queue, keep their sampled
        tokens, and have all tokens prefilled again.
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
    def step(self, *, admits: bool = True) -> list[Sampled]:
        """Prefill the prompts that fit, then sample one token for every request whose prompt is in the cache.

        If `admits` is false, requests without a row continue to wait.
        """
        if admits or self._partial:
            self._prefill(admits=admits)
        decoding = self._rows[: len(self._rows) - self._partial]
        if not decoding:
            return []
        logits = self._forward.decode([r.tokens[-1] for r in decoding], [len(r.tokens) - 1 for r in decoding])
        drawn = sample(logits, [_draw(request) for request in decoding])
        results: list[Sampled] = []
        for row, request in enumerate(decoding):
            token_id, logprob = drawn.token_ids[row], drawn.logprobs[row]
            if (error := self._find_error(request, logprob, logits[row])) is not None:
                results.append(Sampled(request.handle, None, logprob, None, error))
            else:
                results.append(self._accept(request, token_id, logprob, drawn.likeliest.get(row)))
        # Backwards, because the row that fills a gap always comes from a later place.
        for row in reversed(range(len(decoding))):
            if results[row].finish_reason is not None:
                request = decoding[row]
                self._prefixes.keep(self._forward.cache, row, request.tokens[: request.cached])
            if results[row].finish_reason is not None or results[row].error is not None:
                self._free(row)
        return results

    def _find_error(self, request: _Request, logprob: float, logits: torch.Tensor) -> SwarmError | None:
        """Return why a request got no token: by its own doing, unless the logits themselves are not finite."""
        if request.constraint is not None and request.constraint.error is not None:
            return request.constraint.error
        if math.isfinite(logprob):
            return None
        if has_finite_scores(logits):
            return overflow_of(request.params)
        return WeightsNotFinite(
            f"the model's logits are not finite at weight version {self.weight_version}: training has diverged"
        )

    def _accept(self, request: _Request, token_id: int, logprob: float, likeliest: TokenLogprobs | None) -> Sampled:
        request.cached = len(request.tokens)
        request.tokens.append(token_id)
        request.output_ids.append(token_id)
        finish = request.rule.check(request.output_ids)
        if finish is None and request.edits is not None:
            request.edits.take(token_id)
        if finish is None and request.constraint is not None:
            request.constraint.take(token_id)
            finish = FinishReason.STOP if request.constraint.is_over else None
        return Sampled(request.handle, token_id, logprob, finish, likeliest=likeliest)

    def _prefill(self, *, admits: bool) -> None:
        """Admit waiting requests within the token budget, in waves, and compute the missing tokens of their rows.

        A request waits for the next wave if it shares more tokens with a request of this wave than with any cached
        sequence. There it copies the result of the other, so n requests with one prompt compute it once.
        """
        wave = [self._rows[-1]] if self._partial else []
        budget = PREFILL_TOKENS - sum(request.missing for request in wave)
        while True:
            admitted, held_back = self._admit(budget, wave) if admits else ([], [])
            budget -= sum(request.missing for request in admitted)
            if not wave and not admitted:
                return
            self._run_wave(wave, admitted, overrun=max(-budget, 0))
            if not held_back:
                return
            self._waiting.extendleft(reversed(held_back))
            wave = []

    def _admit(self, budget: int, wave: Sequence[_Request]) -> tuple[list[_Request], list[_Request]]:
        """Return the waiting requests to prefill now, beside `wave`, and those to delay, in order of arrival."""
        admitted: list[_Request] = []
        held_back: list[_Request] = []
        room = self._limits.max_running - len(self._rows)
        while self._waiting and budget > 0 and len(admitted) + len(held_back) < room:
            request = self._waiting.popleft()
            request.to_cache = np.array(request.tokens[:-1])
            self._find_beginning(request)
            worth_waiting = request.cached + SHORTEST_MATCH
            if any(
                shared_length(request.to_cache, other.to_cache, worth_waiting) >= worth_waiting
                for other in (*wave, *admitted)
            ):
                held_back.append(request)
            else:
                admitted.append(request)
                budget -= request.missing
        return admitted, held_back

    def _find_beginning(self, request: _Request) -> None:
        """Choose the longest beginning in the prefix store or in a row, unless it is too short to be worth a copy."""
        request.source = None
        request.prefix = self._prefixes.match(request.to_cache)
        request.cached = request.prefix.length if request.prefix else 0
        for row, other in enumerate(self._rows):
            wanted = max(request.cached + 1, SHORTEST_MATCH)
            shared = min(shared_length(request.to_cache, other.to_cache, wanted), other.cached)
            if shared >= wanted:
                request.cached, request.prefix, request.source = shared, None, row

    def _run_wave(self, wave: list[_Request], admitted: list[_Request], *, overrun: int) -> None:
        """Give rows to the admitted requests and prefill them, and `wave`, whose rows are the last ones so far."""
        # A prompt beyond the budget continues in the next step and stays the last row until it is complete.
        self._partial = overrun > 0
        tail = admitted.pop() if self._partial and admitted else None
        admitted.sort(key=lambda request: request.missing)
        if tail is not None:
            admitted.append(tail)
        for request in admitted:
            row = len(self._rows)
            if request.prefix is not None:
                self._forward.cache.write(row, request.prefix.columns, request.cached)
            elif request.source is not None:
                self._forward.cache.copy(request.source, row, request.cached)
            request.prefix = request.source = None
            self._rows.append(request)
        wave = [*wave, *admitted]
        self._fill(len(self._rows) - len(wave), wave, overrun=overrun)

    def _fill(self, first_row: int, wave: Sequence[_Request], *, overrun: int) -> None:
        """Prefill neighbouring rows in passes of similar length. The last row leaves `overrun` tokens for later."""
        pieces: list[RowTokens] = []
        for request in wave:
            end = len(request.tokens) - 1 - (overrun if request is wave[-1] else 0)
            pieces.append(RowTokens(request.cached, request.tokens[request.cached : end]))
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
            self._forward.cache.copy(source, target, self._rows[source].cached)


def _draw(request: _Request) -> Draw:
    allowed = None if request.constraint is None else request.constraint.allowed()
    return Draw(request.params, request.generator.random() * LARGEST_UNIFORM, request.edits, allowed)


def _group_by_length(pieces: Sequence[RowTokens]) -> list[list[RowTokens]]:
    """Return the pieces, in order, in groups that padding enlarges by at most PADDING_LIMIT."""
    groups: list[list[RowTokens]] = []
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
