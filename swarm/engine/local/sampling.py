# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
"""From logits to one token and its log-probability per request.

Place in the flow: batching.py calls `sample` once per decoding step for all running requests. Each request brings its
own parameters and its own uniform number, so a token does not depend on what else is in the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from swarm.types import SamplingParams


@dataclass(frozen=True, slots=True)
class Draw:
    """How to pick one token: the request's parameters and a uniform number in [0, 1)."""

    params: SamplingParams
    uniform: float


def sample(logits: Tensor, draws: Sequence[Draw]) -> tuple[list[int], list[float]]:
    """One token per row of `logits` (n, vocabulary), and its natural log-probability.

    The log-probability is that of the distribution sampled from: after temperature, then top-k, then top-p, with
    renormalisation. At temperature 0 the most likely token is taken, and its log-probability is that at temperature 1
    without top-k and top-p, since a point mass would say nothing. Not finite if the logits are not.
    """
    logits = logits.float()
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
    return token_ids.tolist(), chosen.tolist()


def _is_cut(params: SamplingParams) -> bool:
    return params.temperature > 0 and (params.top_k > 0 or params.top_p < 1)


def _cut_tail(logprobs: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Keep the top_k likeliest tokens, of these the fewest that together have top_p, and renormalise."""
    vocabulary = logprobs.shape[1]
    top_k = torch.tensor([each.top_k or vocabulary for each in params], device=logprobs.device)[:, None]
    top_p = torch.tensor([each.top_p for each in params], dtype=torch.float64, device=logprobs.device)[:, None]
    ordered, order = logprobs.sort(stable=True, dim=-1, descending=True)
    outside = torch.arange(vocabulary, device=logprobs.device) >= top_k
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
