# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
"""The accuracy of a model on wordings that it was trained on, on held-out wordings, and on held-out kinds of task."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from recipes.micro.kinds import HELD_OUT_KINDS, KINDS
from recipes.micro.kinds.base import Kind
from recipes.micro.wording import ask, wordings
from recipes.nano.score import sample_replies

FREE_CHOICE = frozenset({"pick", "any between"})
"""Kinds with more than one right answer, which are not scored."""
LONGEST_REPLY = 48
PARTS = ("trained", "held_out", "held_out_kinds")
_BATCH = 250

Scores = dict[str, dict[str, float]]
"""Accuracies by part and kind."""


def score(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, *, count: int, temperature: float, seed: int = 1
) -> Scores:
    """Return the accuracies over `count` single questions of each kind and part, where temperature 0 is greedy."""
    torch.manual_seed(seed)
    scored = [kind for kind in KINDS if kind.name not in FREE_CHOICE]
    parts: dict[str, tuple[str, Sequence[Kind]]] = {
        "trained": ("trained", scored),
        "held_out": ("held_out", [kind for kind in scored if "held_out" in wordings()[kind.name]]),
        "held_out_kinds": ("held_out", HELD_OUT_KINDS),
    }
    return {
        name: _score_part(model, tokenizer, kinds, part, count, temperature, Random(f"{seed} {name}"))
        for name, (part, kinds) in parts.items()
    }


def mean_score(scores: Scores, part: str) -> float:
    """Return the mean accuracy over the kinds of a part."""
    return sum(scores[part].values()) / len(scores[part])


def _score_part(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    kinds: Sequence[Kind],
    part: str,
    count: int,
    temperature: float,
    rng: Random,
) -> dict[str, float]:
    asked: list[tuple[str, dict[str, Any], str]] = []
    for kind in kinds:
        for _ in range(count):
            item = kind.draw(rng)
            question = ask(kind, item, rng, part)
            request = {"messages": [{"role": "user", "content": question.text}], "max_tokens": LONGEST_REPLY}
            asked.append((kind.name, request, question.form.write(item)))
    asked.sort(key=lambda each: len(each[1]["messages"][0]["content"]))
    right = dict.fromkeys((kind.name for kind in kinds), 0)
    for start in range(0, len(asked), _BATCH):
        batch = asked[start : start + _BATCH]
        replies = sample_replies(model, tokenizer, [request for _, request, _ in batch], temperature)
        for (name, _, answer), reply in zip(batch, replies, strict=True):
            right[name] += reply["content"] == answer
    return {name: number / count for name, number in right.items()}
