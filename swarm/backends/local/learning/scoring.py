"""Logprobs and entropies of a microbatch's trained tokens, at the temperature and under the grammar of their sampling.

Place in the flow: the learner calls a scorer for the policy and, with a KL term, one for the reference. This module
knows nothing of rewards, losses or rows. Samples are right-padded and the models are causal, so no attention mask is
needed: padding comes after every token that is read.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from swarm.backends.local.learning.microbatches import MicroBatch

PROBE_TOKENS = 8


@dataclass(frozen=True, slots=True)
class TokenScores:
    """Natural-log probabilities of the trained tokens, and entropies in nats of the distributions they came from."""

    logprobs_N: torch.Tensor
    entropies_N: torch.Tensor


class TokenScorer:
    """A causal language model as a function from a microbatch to token scores.

    Only the positions that predict a trained token go through the output head, if the model is its base model plus
    that head and nothing else (no logit scaling or capping), which is tried once on a few tokens; otherwise logits of
    all positions are computed.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self._parts = _split(module)

    def __call__(self, micro: MicroBatch, *, entropy_gradient: bool = False) -> TokenScores:
        logits_NV = self._logits(micro).float() / micro.temperatures_N[:, None]
        if micro.masks is not None:
            micro.masks.apply(logits_NV)
        logprobs_NV = torch.log_softmax(logits_NV, dim=-1)
        with torch.set_grad_enabled(torch.is_grad_enabled() and entropy_gradient):
            # Both are the probabilities; exp is the faster one, but not where a mask makes it underflow.
            probs_NV = logprobs_NV.exp() if micro.masks is None else torch.softmax(logits_NV, dim=-1)
            entropies_N = -(probs_NV * logprobs_NV).sum(-1)
        return TokenScores(logprobs_NV.gather(1, micro.targets_N[:, None])[:, 0], entropies_N)

    def _logits(self, micro: MicroBatch) -> torch.Tensor:
        if self._parts is None:
            return self._module(input_ids=micro.input_ids_ST, use_cache=False).logits.flatten(0, 1)[micro.sources_N]
        base, head = self._parts
        hidden_STH = base(input_ids=micro.input_ids_ST, use_cache=False).last_hidden_state
        return head(hidden_STH.flatten(0, 1)[micro.sources_N])


def _split(module: torch.nn.Module) -> tuple[torch.nn.Module, torch.nn.Module] | None:
    base = getattr(module, "base_model", None)
    find_head: Callable[[], torch.nn.Module | None] | None = getattr(module, "get_output_embeddings", None)
    head = find_head() if find_head is not None else None
    if not isinstance(base, torch.nn.Module) or base is module or head is None:
        return None
    weight = next(head.parameters())
    ids = (torch.arange(PROBE_TOKENS, device=weight.device) % weight.shape[0])[None]
    with torch.no_grad():
        hidden = getattr(base(input_ids=ids, use_cache=False), "last_hidden_state", None)
        if hidden is None:
            return None
        logits, expected = head(hidden), module(input_ids=ids, use_cache=False).logits
    # The same kernels on the same shapes: anything but rounding noise means the model does more than this.
    same = logits.shape == expected.shape and torch.allclose(logits, expected, rtol=1e-6, atol=1e-6)
    return (base, head) if same else None
