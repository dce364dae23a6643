"""The sampling distribution as `SamplingParams` defines it: one token at a time, over the whole vocabulary, no tensors.

For the tests of the local engine, which hold its batched arithmetic against this.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from swarm.types import SamplingParams


def plain_logprobs(
    logits: Sequence[float] | np.ndarray,
    prompt_ids: Sequence[int],
    output_ids: Sequence[int],
    params: SamplingParams,
    *,
    end_ids: Collection[int] = (),
    allowed: Collection[int] | None = None,
) -> np.ndarray:
    """Natural log-probabilities of every token after `prompt_ids` and `output_ids`, minus infinity for none."""
    changed = _change(np.array(logits, dtype=np.float64), prompt_ids, output_ids, params)
    for token in range(len(changed)):
        held_back = token in end_ids and len(output_ids) < params.min_tokens
        if held_back or (allowed is not None and token not in allowed):
            changed[token] = -np.inf
    probabilities = np.exp((changed - changed.max()) / (params.temperature or 1.0))
    probabilities /= probabilities.sum()
    kept = _keep(probabilities, params) if params.temperature else list(range(len(changed)))
    result = np.zeros(len(changed))
    result[kept] = probabilities[kept] / probabilities[kept].sum()
    with np.errstate(divide="ignore"):
        return np.log(result)


def _change(
    logits: np.ndarray, prompt_ids: Sequence[int], output_ids: Sequence[int], params: SamplingParams
) -> np.ndarray:
    for token, bias in params.logit_bias:
        logits[token] += bias
    for token in {*prompt_ids, *output_ids}:
        logits[token] *= 1 / params.repetition_penalty if logits[token] > 0 else params.repetition_penalty
    for token in set(output_ids):
        logits[token] -= params.frequency_penalty * list(output_ids).count(token) + params.presence_penalty
    return logits


def _keep(probabilities: np.ndarray, params: SamplingParams) -> list[int]:
    order = sorted(range(len(probabilities)), key=lambda token: -probabilities[token])
    likely = [token for token in order if probabilities[token] >= params.min_p * probabilities.max()]
    likeliest = likely[: params.top_k or len(likely)]
    mass = sum(probabilities[token] for token in likeliest)
    nucleus, share = [], 0.0
    for token in likeliest:
        nucleus.append(token)
        share += probabilities[token] / mass
        if share >= params.top_p:
            break
    return nucleus
