# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportPrivateImportUsage=false
"""The warm-up: supervised learning of demonstrations, first right ones, then ones of a set quality.

Place in the flow: build.py calls `warm_up` once. Right demonstrations form the skills; those of a set quality decide
how often each skill is shown, so that the base model is right now and then and reinforcement learning has something to
elicit. Deterministic for a seed and a number of threads on one kind of machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from random import Random
from types import MappingProxyType

import torch
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from swarm.nano.recipe.demos import demonstrate, stream_demos
from swarm.nano.recipe.muon import Muon
from swarm.nano.recipe.vocabulary import END, MAX_LENGTH, PAD, encode, render, train_tokenizer
from swarm.tasks import TASK_FAMILIES, Split

TOKENIZER_DEMOS = 200
"""Demonstrations per family that the tokenizer's merges are learned from."""
DEMOS_PER_POOL = 1000
TOKENS_PER_STEP = 1024

# The share of right demonstrations in the noisy phase, tuned so that sampling at temperature 1 is right in about a
# fifth to two fifths of all attempts, and with tools in less than a fifth.
QUALITY: Mapping[str, float] = MappingProxyType(
    {
        "reverse": 0.38,
        "copy": 0.4,
        "sort": 0.5,
        "add": 0.4,
        "count": 0.6,
        "calc": 0.52,
        "guess": 0.5,
        "chain": 0.5,
    }
)

# Shares of the demonstrations: reversing, sorting and counting letters take the most practice, guessing the least.
SHARES: Mapping[str, float] = MappingProxyType(
    {"reverse": 2.5, "copy": 1, "sort": 2, "add": 1, "count": 2.5, "calc": 1, "guess": 0.5, "chain": 0.7}
)

Encoded = tuple[list[int], list[bool]]


@dataclass(frozen=True, slots=True)
class Recipe:
    """`clean_share` of the steps see right demonstrations only; the last `decay_share` lower the rate linearly to 0."""

    steps: int = 3600
    seed: int = 0
    clean_share: float = 0.75
    decay_share: float = 0.4
    lr_warmup_steps: int = 40
    muon_lr: float = 1e-2
    adamw_lr: float = 3e-3


@dataclass(frozen=True, slots=True)
class Progress:
    """Totals up to and including `step`; `tokens` counts padding too."""

    step: int
    loss: float
    tokens: int


def warm_up(recipe: Recipe, report: Callable[[Progress], None]) -> tuple[Qwen3ForCausalLM, PreTrainedTokenizerFast]:
    """Train tokenizer and model; `report` is called after each step."""
    rng = Random(recipe.seed)
    torch.manual_seed(recipe.seed)
    tokenizer = make_tokenizer()
    model = make_model(tokenizer)
    optimizers = _make_optimizers(model, recipe)
    peak_rates = [group["lr"] for optimizer in optimizers for group in optimizer.param_groups]
    steps_done = 0

    def quality(family: str) -> float:
        return 1.0 if steps_done < recipe.clean_share * recipe.steps else QUALITY[family]

    batches = _batch_demos(tokenizer, rng, quality)
    tokens = 0
    while steps_done < recipe.steps:
        factor = _rate_factor(steps_done, recipe)
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        for peak, group in zip(peak_rates, groups, strict=True):
            group["lr"] = peak * factor
        ids_BT, mask_BT = _collate(next(batches))
        loss = _learn(model, optimizers, ids_BT, mask_BT)
        steps_done += 1
        tokens += ids_BT.numel()
        report(Progress(steps_done, loss, tokens))
    return model.eval(), tokenizer


def make_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer depends on the families alone, not on a seed."""
    rng = Random(0)
    demos = [
        demonstrate(family, task, rng, 0.5)
        for family in TASK_FAMILIES.values()
        for task in family.tasks(Split.TRAIN, TOKENIZER_DEMOS)
    ]
    return train_tokenizer(demos)


def make_model(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """A randomly initialized Qwen3 of 0.48 M parameters, from torch's global generator."""
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=MAX_LENGTH,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.vocab[END],
        pad_token_id=tokenizer.vocab[PAD],
    )
    model = Qwen3ForCausalLM(config).float()
    model.generation_config = GenerationConfig(eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id)
    return model


def _make_optimizers(model: Qwen3ForCausalLM, recipe: Recipe) -> list[torch.optim.Optimizer]:
    named = list(model.named_parameters())
    matrices = [p for name, p in named if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in named if p.ndim != 2 or "embed" in name]
    return [
        Muon(matrices, lr=recipe.muon_lr),
        torch.optim.AdamW(others, lr=recipe.adamw_lr, betas=(0.9, 0.98), weight_decay=0.0, fused=True),
    ]


def _rate_factor(step: int, recipe: Recipe) -> float:
    rise = (step + 1) / recipe.lr_warmup_steps
    fall = (recipe.steps - step) / (recipe.steps * recipe.decay_share)
    return min(1.0, rise, fall)


def _batch_demos(
    tokenizer: PreTrainedTokenizerFast, rng: Random, quality: Callable[[str], float]
) -> Iterator[list[Encoded]]:
    """Batches of demonstrations of similar length, about TOKENS_PER_STEP tokens each with padding."""
    demos = stream_demos(SHARES, rng, quality)
    while True:
        pool = encode(tokenizer, render(tokenizer, (next(demos) for _ in range(DEMOS_PER_POOL))))
        pool.sort(key=lambda encoded: len(encoded[0]))
        batches: list[list[Encoded]] = [[]]
        for encoded in pool:
            if (len(batches[-1]) + 1) * len(encoded[0]) > TOKENS_PER_STEP:
                batches.append([])
            batches[-1].append(encoded)
        rng.shuffle(batches)
        yield from batches


def _collate(batch: list[Encoded]) -> tuple[torch.Tensor, torch.Tensor]:
    """Right-padded token ids and mask, both of shape (batch, time)."""
    longest = max(len(ids) for ids, _ in batch)
    ids_BT = torch.zeros(len(batch), longest, dtype=torch.long)
    mask_BT = torch.zeros(len(batch), longest, dtype=torch.bool)
    for row, (ids, mask) in enumerate(batch):
        ids_BT[row, : len(ids)] = torch.tensor(ids)
        mask_BT[row, : len(mask)] = torch.tensor(mask)
    return ids_BT, mask_BT


def _learn(
    model: Qwen3ForCausalLM, optimizers: list[torch.optim.Optimizer], ids_BT: torch.Tensor, mask_BT: torch.Tensor
) -> float:
    # Padding is on the right, where causal attention never looks from a real token; a dict skips building a mask.
    hidden = model.model(
        input_ids=ids_BT[:, :-1], attention_mask={"full_attention": None}, use_cache=False
    ).last_hidden_state
    chosen = mask_BT[:, 1:]
    loss = torch.nn.functional.cross_entropy(model.lm_head(hidden[chosen]), ids_BT[:, 1:][chosen])
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()
