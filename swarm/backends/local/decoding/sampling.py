"""Sampling: from logits to one token and its log-probability per request, with the request's penalties and biases."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from swarm.backends.local.model.computing import to_device
from swarm.types import SamplingParams, TokenLogprobs

FIRST_CAPACITY = 64
# Columns of a table of edits, which has one row per token.
TOKEN, BIAS, SEEN, COUNT = range(4)


class LogitEdits:
    """The changes of one request to its logits before the next token.

    Order and meaning of the changes are those of `SamplingParams`, as in vLLM. The repetition penalty counts prompt and
    completion; the frequency and presence penalties count the completion alone.
    """

    def __init__(self, params: SamplingParams, prompt_ids: Sequence[int], end_ids: Collection[int]) -> None:
        """Create the edits. The tokens `end_ids` are forbidden until the completion has `min_tokens` tokens."""
        self.penalties = (params.repetition_penalty, params.frequency_penalty, params.presence_penalty)
        self._has_penalties = self.penalties != (1.0, 0.0, 0.0)
        self._table = np.zeros((FIRST_CAPACITY, 4))
        self._rows: dict[int, int] = {}
        for token_id, bias in params.logit_bias:
            self._row(token_id)[BIAS] = bias
        if params.repetition_penalty != 1:
            for token_id in set(prompt_ids):
                self._row(token_id)[SEEN] = 1
        self._left_of_minimum = params.min_tokens
        self._biases_of_ends: dict[int, float] = {}
        if self._left_of_minimum:
            for token_id in end_ids:
                row = self._row(token_id)
                self._biases_of_ends[token_id] = float(row[BIAS])
                row[BIAS] = -math.inf

    @staticmethod
    def are_needed(params: SamplingParams) -> bool:
        return bool(
            params.logit_bias
            or params.min_tokens
            or params.presence_penalty
            or params.frequency_penalty
            or params.repetition_penalty != 1
        )

    @property
    def table(self) -> np.ndarray:
        """One row per token: id, bias, 1 if in prompt or completion, and count in the completion."""
        return self._table[: len(self._rows)]

    def take(self, token_id: int) -> None:
        """Count a sampled token."""
        if self._has_penalties:
            row = self._row(token_id)
            row[SEEN] = 1
            row[COUNT] += 1
        if self._left_of_minimum:
            self._left_of_minimum -= 1
            if not self._left_of_minimum:
                for end_id, bias in self._biases_of_ends.items():
                    self._row(end_id)[BIAS] = bias

    def _row(self, token_id: int) -> np.ndarray:
        """Return the row of a token, to be changed in place before the next call: the table may be reallocated."""
        row = self._rows.setdefault(token_id, len(self._rows))
        if row == len(self._table):
            self._table = np.concatenate([self._table, np.zeros_like(self._table)])
        self._table[row, TOKEN] = token_id
        return self._table[row]


def apply_edits(logits: Tensor, rows: Sequence[int], edits: Sequence[LogitEdits]) -> None:
    """Change `logits` (n, vocabulary) in place: `edits[i]` belongs to row `rows[i]`."""
    device = logits.device
    tables = [each.table for each in edits]
    owners = np.repeat(np.arange(len(edits)), [len(table) for table in tables])
    table = to_device(np.concatenate(tables), device)
    penalties = to_device(np.array([each.penalties for each in edits])[owners], device)
    places = to_device(np.array(rows)[owners], device), table[:, TOKEN].long()
    values = logits[places].double() + table[:, BIAS]
    repetition = torch.where(table[:, SEEN] > 0, penalties[:, 0], 1.0)
    values = torch.where(values > 0, values / repetition, values * repetition)
    values -= penalties[:, 1] * table[:, COUNT] + penalties[:, 2] * (table[:, COUNT] > 0)
    logits[places] = values.to(logits.dtype)


@dataclass(frozen=True, slots=True)
class Draw:
    """Parameters for one token: those of the request, and a uniform number in [0, 1).

    `edits` change single logits. `allowed` has one bit per token, as `Constraint.allowed` returns them; None allows
    all.
    """

    params: SamplingParams
    uniform: float
    edits: LogitEdits | None = None
    allowed: np.ndarray | None = None


class SampledTokens(NamedTuple):
    """One token per row with its log-probability, and the likeliest tokens of the rows that asked for them."""

    token_ids: list[int]
    logprobs: list[float]
    likeliest: Mapping[int, TokenLogprobs]


def sample(logits: Tensor, draws: Sequence[Draw]) -> SampledTokens:
    """Return one token per row of `logits` (n, vocabulary), and its natural log-probability.

    The log-probability belongs to the distribution that was sampled from. That distribution has only the allowed
    tokens, with edited logits, after temperature, then min-p, top-k and top-p, renormalized. At temperature 0 the most
    likely token is taken. Its log-probability is then that at temperature 1 with no tokens dropped, because a point
    mass would carry no information. The log-probability is not finite if the logits are not, or overflow when changed.
    """
    logits, device = _change(logits.float(), draws), logits.device
    temperatures = np.array([draw.params.temperature or 1.0 for draw in draws], dtype=np.float32)
    logprobs = torch.log_softmax(logits / to_device(temperatures, device)[:, None], -1)
    cut = [row for row, draw in enumerate(draws) if _is_cut(draw.params)]
    if cut:
        rows = to_device(np.array(cut), device)
        logprobs[rows] = _cut_tail(logprobs[rows], [draws[row].params for row in cut])
    token_ids = _invert_cdf(logprobs, [draw.uniform for draw in draws])
    greedy = [row for row, draw in enumerate(draws) if draw.params.temperature == 0]
    if greedy:
        rows = to_device(np.array(greedy), device)
        token_ids[rows] = logits[rows].argmax(-1)
    chosen = logprobs.gather(1, token_ids[:, None])[:, 0]
    return SampledTokens(token_ids.tolist(), chosen.tolist(), _likeliest(logprobs, draws))


def has_finite_scores(logits: Tensor) -> bool:
    """Return whether a token of one row of logits can be sampled with neutral parameters."""
    return bool(torch.logsumexp(logits.float(), -1).isfinite())


def _change(logits: Tensor, draws: Sequence[Draw]) -> Tensor:
    """Return the logits with the edits, and minus infinity for forbidden tokens; the same tensor if unchanged."""
    masked = [row for row, draw in enumerate(draws) if draw.allowed is not None]
    edited = [row for row, draw in enumerate(draws) if draw.edits is not None]
    if masked or edited:
        logits = logits.clone()
    if masked:
        words = np.stack([allowed for draw in draws if (allowed := draw.allowed) is not None])
        bits = np.unpackbits(words.view(np.uint8), axis=1, count=logits.shape[1], bitorder="little")
        rows = to_device(np.array(masked), logits.device)
        logits[rows] = logits[rows].masked_fill(to_device(bits == 0, logits.device), -torch.inf)
    if edited:
        apply_edits(logits, edited, [edits for draw in draws if (edits := draw.edits) is not None])
    return logits


def _likeliest(logprobs: Tensor, draws: Sequence[Draw]) -> dict[int, TokenLogprobs]:
    counts = {row: draw.params.top_logprobs for row, draw in enumerate(draws) if draw.params.top_logprobs}
    if not counts:
        return {}
    values, ids = logprobs[list(counts)].topk(min(max(counts.values()), logprobs.shape[1]))
    return {
        row: tuple((token, value) for token, value in pairs[:count] if value > -torch.inf)
        for (row, count), pairs in zip(counts.items(), _pairs(ids, values), strict=True)
    }


def _pairs(ids: Tensor, values: Tensor) -> list[list[tuple[int, float]]]:
    return [list(zip(*row, strict=True)) for row in zip(ids.tolist(), values.tolist(), strict=True)]


def _is_cut(params: SamplingParams) -> bool:
    return params.temperature > 0 and (params.top_k > 0 or params.top_p < 1 or params.min_p > 0)


def _cut_tail(logprobs: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Drop unlikely tokens by min_p, top_k and top_p in this order, and renormalize.

    min_p keeps the tokens that are at least min_p times as likely as the likeliest. top_k keeps the likeliest of these.
    top_p keeps the fewest of these that together have probability top_p.
    """
    vocabulary, device = logprobs.shape[1], logprobs.device
    top_k = to_device(np.array([each.top_k or vocabulary for each in params]), device)[:, None]
    top_p = to_device(np.array([each.top_p for each in params], dtype=np.float64), device)[:, None]
    ordered, order = logprobs.sort(stable=True, dim=-1, descending=True)
    outside = torch.arange(vocabulary, device=device) >= top_k
    if any(each.min_p for each in params):
        min_p = to_device(np.array([each.min_p for each in params], dtype=np.float32), device)[:, None]
        outside |= ordered < ordered[:, :1] + min_p.log()
    kept = torch.softmax(ordered.double().masked_fill(outside, -torch.inf), -1)
    outside |= kept.cumsum(-1) - kept >= top_p
    # The likeliest token stays even where top_p is so small that rounding would drop it.
    outside[:, 0] = False
    dropped = torch.zeros_like(outside).scatter(1, order, outside)
    return torch.log_softmax(logprobs.masked_fill(dropped, -torch.inf), -1)


def _invert_cdf(logprobs: Tensor, uniforms: Sequence[float]) -> Tensor:
    """Return the first token whose cumulative probability exceeds the uniform number, in double precision.

    The uniform number is scaled by the total, which corrects rounding. It stays so far below 1 that the product is
    below the total.
    """
    cumulative = logprobs.double().exp().cumsum(-1)
    thresholds = to_device(np.array(uniforms, dtype=np.float64), logprobs.device)[:, None] * cumulative[:, -1:]
    return (cumulative <= thresholds).sum(-1).clamp(max=logprobs.shape[1] - 1)
