"""The tokens of a sample as HTML, coloured by the values that were recorded with them; every token is escaped."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from experiments_db import JsonObject
from ui import formats

MAX_TOKENS = 4000
# The text of a token, at most: a vocabulary has none that is longer.
MAX_CHARACTERS = 400
VISIBLE = {"\n": "⏎\n", "\t": "⇥\t"} | {chr(code): f"<0x{code:02X}>" for code in range(32) if chr(code) not in "\n\t"}

# Translucent, so that the same colours serve on light and dark backgrounds.
TRAINED, CONTEXT = "rgba(54,126,235,0.30)", "rgba(128,140,160,0.10)"
VERSION_HUES = (215, 30, 165, 320, 265, 50)
GREEN, RED = 140, 0
STRONGEST = 2.0
"""The advantage from which on the colour grows no stronger. Within a group the standard deviation is 1."""


class Coloring(StrEnum):
    MASK = "loss mask"
    LOGPROB = "logprob"
    ADVANTAGE = "advantage"
    VERSION = "weight version"


LEGENDS = {
    Coloring.MASK: "Blue: trained on. Grey: context, left out of the loss.",
    Coloring.LOGPROB: "The redder, the less likely the token was when it was sampled. Grey: not sampled.",
    Coloring.ADVANTAGE: "Green: made more likely. Red: made less likely. The stronger, the more. Grey: not trained on.",
    Coloring.VERSION: "One colour for each version of the weights that sampled. Grey: not sampled.",
}


def render(sample: JsonObject, coloring: Coloring, *, advantage: float | None = None) -> str:
    """Return a block of spans, one per token; hovering shows the token's id, logprob, version and mask.

    `advantage` is that of the episode, which all its trained tokens share.
    """
    tokens = _column(sample, "tokens") or [f"[{number}]" for number in _column(sample, "token_ids")]
    shown = tokens[:MAX_TOKENS]
    spans = [_span(sample, index, str(token), coloring, advantage) for index, token in enumerate(shown)]
    left_out = f"<i> … {len(tokens) - len(shown)} more tokens</i>" if len(tokens) > len(shown) else ""
    style = "font-family:monospace;font-size:0.85rem;line-height:1.75;white-space:pre-wrap;overflow-wrap:anywhere"
    return f'<div style="{style}">{"".join(spans)}{left_out}</div>'


def _span(sample: JsonObject, index: int, token: str, coloring: Coloring, advantage: float | None) -> str:
    facts = {
        "id": _at(sample, "token_ids", index),
        "logprob": _at(sample, "logprobs", index),
        "version": _at(sample, "weight_versions", index),
        "trained": _at(sample, "loss_mask", index),
        "turn": _at(sample, "turn_indices", index),
    }
    facts["advantage"] = advantage if facts["trained"] else None
    title = " · ".join(f"{name} {formats.setting(value)}" for name, value in facts.items() if value is not None)
    text = token.replace("\r\n", "\n")
    for character, mark in VISIBLE.items():
        text = text.replace(character, mark)
    text = formats.shortened(formats.printable(text), MAX_CHARACTERS)
    # Isolated, so that text which runs from right to left stays within its token.
    style = f"background:{_color(facts, coloring)};border-radius:3px;padding:1px;margin-right:1px;unicode-bidi:isolate"
    return f'<span style="{style}" title="{html.escape(title, quote=True)}">{html.escape(text)}</span>'


def _color(facts: dict[str, Any], coloring: Coloring) -> str:
    version, logprob = facts["version"], facts["logprob"]
    if coloring is Coloring.MASK:
        return TRAINED if facts["trained"] else CONTEXT
    if coloring is Coloring.ADVANTAGE:
        return _color_of_advantage(facts["advantage"])
    # Text that no weights sampled has version -1 and logprob 0, because it has no real logprob.
    if not isinstance(version, int) or version < 0:
        return CONTEXT
    if coloring is Coloring.VERSION:
        return f"hsla({VERSION_HUES[version % len(VERSION_HUES)]},75%,55%,0.32)"
    if not isinstance(logprob, int | float) or not math.isfinite(logprob):
        return CONTEXT
    surprise = 1.0 - math.exp(min(0.0, logprob))
    return f"hsla({120 * (1 - surprise):.0f},70%,50%,{0.18 + 0.3 * surprise:.2f})"


def _color_of_advantage(advantage: float | None) -> str:
    if advantage is None or not math.isfinite(advantage):
        return CONTEXT
    strength = min(1.0, abs(advantage) / STRONGEST)
    return f"hsla({GREEN if advantage > 0 else RED},70%,45%,{0.10 + 0.35 * strength:.2f})"


def _column(sample: JsonObject, name: str) -> Sequence[Any]:
    values = sample.get(name)
    return values if isinstance(values, list | tuple) else ()


def _at(sample: JsonObject, name: str, index: int) -> Any:
    values = _column(sample, name)
    return values[index] if index < len(values) else None
