# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportPrivateImportUsage=false
"""Supervised learning of demonstrations on a CPU, for the recipes of all bundled models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

import torch
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from recipes.nano.demos import Demo
from recipes.nano.muon import Muon
from recipes.nano.vocabulary import encode, render

DEMOS_PER_POOL = 1000
PADDING = 0
"""The id of the tokenizers' first token, which occurs in no text."""

Encoded = tuple[list[int], list[bool]]
"""Token ids of a conversation, and a mask that is True on the assistant's tokens."""


@dataclass(frozen=True, slots=True)
class LearningRates:
    """Peak learning rates, which rise over `warmup_steps` and fall to 0 over the last `decay_share` of all steps."""

    muon: float
    adamw: float
    warmup_steps: int
    decay_share: float


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress after `step`: the loss of this step, and all tokens so far, including padding."""

    step: int
    loss: float
    tokens: int


def learn(
    model: Qwen3ForCausalLM,
    batches: Iterator[list[Encoded]],
    steps: int,
    rates: LearningRates,
    report: Callable[[Progress], None],
    prompt_weight: Callable[[], float] = lambda: 0.0,
) -> None:
    """Take `steps` optimizer steps, one per batch, and report each with the loss of the assistant's tokens.

    `prompt_weight` is called before each step and returns the weight of the loss of all other tokens.
    """
    optimizers = _make_optimizers(model, rates)
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    peak_rates = [group["lr"] for group in groups]
    tokens = 0
    for step in range(steps):
        factor = _rate_factor(step, steps, rates)
        for peak, group in zip(peak_rates, groups, strict=True):
            group["lr"] = peak * factor
        ids_BT, mask_BT = _collate(next(batches))
        loss = _take_step(model, optimizers, ids_BT, mask_BT, prompt_weight())
        tokens += ids_BT.numel()
        report(Progress(step + 1, loss, tokens))


def batch_demos(
    tokenizer: PreTrainedTokenizerFast, demos: Iterator[Demo], rng: Random, tokens_per_step: int
) -> Iterator[list[Encoded]]:
    """Yield batches of demonstrations of similar length, each of about `tokens_per_step` tokens with padding."""
    while True:
        pool = encode(tokenizer, render(tokenizer, (next(demos) for _ in range(DEMOS_PER_POOL))))
        pool.sort(key=lambda encoded: len(encoded[0]))
        batches: list[list[Encoded]] = [[]]
        for encoded in pool:
            if (len(batches[-1]) + 1) * len(encoded[0]) > tokens_per_step:
                batches.append([])
            batches[-1].append(encoded)
        rng.shuffle(batches)
        yield from batches


def _make_optimizers(model: Qwen3ForCausalLM, rates: LearningRates) -> list[torch.optim.Optimizer]:
    named = list(model.named_parameters())
    matrices = [p for name, p in named if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in named if p.ndim != 2 or "embed" in name]
    return [
        Muon(matrices, lr=rates.muon),
        torch.optim.AdamW(others, lr=rates.adamw, betas=(0.9, 0.98), weight_decay=0.0, fused=True),
    ]


def _rate_factor(step: int, steps: int, rates: LearningRates) -> float:
    rise = (step + 1) / rates.warmup_steps
    fall = (steps - step) / (steps * rates.decay_share)
    return min(1.0, rise, fall)


def _collate(batch: list[Encoded]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return right-padded token ids and mask, both of shape (batch, time)."""
    longest = max(len(ids) for ids, _ in batch)
    ids_BT = torch.zeros(len(batch), longest, dtype=torch.long)
    mask_BT = torch.zeros(len(batch), longest, dtype=torch.bool)
    for row, (ids, mask) in enumerate(batch):
        ids_BT[row, : len(ids)] = torch.tensor(ids)
        mask_BT[row, : len(mask)] = torch.tensor(mask)
    return ids_BT, mask_BT


def _take_step(
    model: Qwen3ForCausalLM,
    optimizers: list[torch.optim.Optimizer],
    ids_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    prompt_weight: float,
) -> float:
    # With causal attention, no real token attends to padding on its right. A dict skips building a mask.
    hidden = model.model(
        input_ids=ids_BT[:, :-1], attention_mask={"full_attention": None}, use_cache=False
    ).last_hidden_state
    chosen = mask_BT[:, 1:]
    targets = ids_BT[:, 1:]
    loss = torch.nn.functional.cross_entropy(model.lm_head(hidden[chosen]), targets[chosen])
    total = loss
    if prompt_weight > 0:
        prompt = ~chosen & (targets != PADDING)
        total = loss + prompt_weight * torch.nn.functional.cross_entropy(model.lm_head(hidden[prompt]), targets[prompt])
    total.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()
