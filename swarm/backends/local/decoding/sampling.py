# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""From logits to one token and its log-probability per request.

Place in the flow: batching.py calls `sample` once per decoding step for all running requests. Each request brings its
own parameters and its own uniform number, so a token does not depend on what else is in the batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from swarm.backends.local.decoding.penalties import LogitEdits, apply_edits
from swarm.types import SamplingParams, TokenLogprobs


@dataclass(frozen=True, slots=True)
class Draw:
    """How to pick one token: the request's parameters and a uniform number in [0, 1).

    `edits` change single logits. `allowed` has one bit per token, as `Constraint.allowed` gives them; None allows all.
    """

    params: SamplingParams
    uniform: float
    edits: LogitEdits | None = None
    allowed: np.ndarray | None = None


class Drawn(NamedTuple):
    """One token per row with its log-probability; for the rows that asked for them, the likeliest tokens."""

    token_ids: list[int]
    logprobs: list[float]
    likeliest: Mapping[int, TokenLogprobs]


def sample(logits: Tensor, draws: Sequence[Draw]) -> Drawn:
    """One token per row of `logits` (n, vocabulary), and its natural log-probability.

    The log-probability is that of the distribution sampled from: of the allowed and edited logits, after temperature,
    then min-p, top-k and top-p, with renormalisation. At temperature 0 the most likely token is taken, and its
    log-probability is that at temperature 1 with nothing dropped, since a point mass would say nothing. Not finite if
    the logits are not.
    """
    logits = _change(logits.float(), draws)
    temperatures = torch.tensor([draw.params.temperature or 1.0 for draw in draws], device=logits.device)
    logprobs = torch.log_softmax(logits / temperatures[:, None], -1)
    cut = [row for row, draw in enumerate(draws) if _is_cut(draw.params)]
    if cut:
        logprobs[cut] = _cut_tail(logprobs[cut], [draws[row].params for row in cut])
    token_ids = _invert_cdf(logprobs, [draw.uniform for draw in draws])
    greedy = [row for row, draw in enumerate(draws) if draw.params.temperature == 0]
    if greedy:
        token_ids[greedy] = logits[greedy].argmax(-1)
    chosen = logprobs.gather(1, token_ids[:, None])[:, 0]
    return Drawn(token_ids.tolist(), chosen.tolist(), _likeliest(logprobs, draws))


def _change(logits: Tensor, draws: Sequence[Draw]) -> Tensor:
    """Logits with forbidden tokens at minus infinity and the edits made; the same tensor if there is nothing to do."""
    masked = [row for row, draw in enumerate(draws) if draw.allowed is not None]
    edited = [row for row, draw in enumerate(draws) if draw.edits is not None]
    if masked or edited:
        logits = logits.clone()
    if masked:
        words = np.stack([allowed for draw in draws if (allowed := draw.allowed) is not None])
        bits = np.unpackbits(words.view(np.uint8), axis=1, count=logits.shape[1], bitorder="little")
        logits[masked] = logits[masked].masked_fill(torch.from_numpy(bits == 0).to(logits.device), -torch.inf)
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
    """Keep what is at least min_p times as likely as the likeliest token, of that the top_k likeliest tokens, of these
    the fewest that together have top_p, and renormalise.
    """
    vocabulary = logprobs.shape[1]
    top_k = torch.tensor([each.top_k or vocabulary for each in params], device=logprobs.device)[:, None]
    top_p = torch.tensor([each.top_p for each in params], dtype=torch.float64, device=logprobs.device)[:, None]
    ordered, order = logprobs.sort(stable=True, dim=-1, descending=True)
    outside = torch.arange(vocabulary, device=logprobs.device) >= top_k
    if any(each.min_p for each in params):
        min_p = torch.tensor([each.min_p for each in params], device=logprobs.device)[:, None]
        outside |= ordered < ordered[:, :1] + min_p.log()
    kept = torch.softmax(ordered.double().masked_fill(outside, -torch.inf), -1)
    outside |= kept.cumsum(-1) - kept >= top_p
    # The likeliest token stays even where top_p is so small that rounding would drop it.
    outside[:, 0] = False
    dropped = torch.zeros_like(outside).scatter(1, order, outside)
    return torch.log_softmax(logprobs.masked_fill(dropped, -torch.inf), -1)


def _invert_cdf(logprobs: Tensor, uniforms: Sequence[float]) -> Tensor:
    """The first token whose cumulative probability exceeds the uniform number, in double precision.

    Scaling by the total makes up for rounding; uniforms stay clear of 1 so that the product stays below the total.
    """
    cumulative = logprobs.double().exp().cumsum(-1)
    thresholds = torch.tensor(uniforms, dtype=torch.float64, device=logprobs.device)[:, None] * cumulative[:, -1:]
    return (cumulative <= thresholds).sum(-1).clamp(max=logprobs.shape[1] - 1)
