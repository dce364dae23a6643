"""The decision whether the rows of a minibatch are computed as trees, and the check of the results.

Place in the flow: the learner makes one `PrefixSharing` for the model that it trains. The updater asks it for a plan,
and to check each microbatch. Attention over a tree is tried once on a few tokens, and checked against plain passes
whenever samples of a new shape come. If it is impossible or wrong, rows are computed one by one, and this is counted
with its reason. This module knows nothing of losses or optimizers.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence, Set
from enum import StrEnum
from typing import Any

import numpy as np
import torch

from swarm.backends.local.learning.metrics import Meter
from swarm.backends.local.learning.microbatches import MicroBatch, collate, plan_microbatches
from swarm.backends.local.learning.sharing.attention import attention_along, lay_out_for
from swarm.backends.local.learning.sharing.layout import SampleShape
from swarm.backends.local.learning.sharing.planning import SMALLEST_GAIN, MicrobatchPlan, padded_tokens, plan_trees
from swarm.backends.local.learning.sharing.tree import build_tree
from swarm.backends.local.model.attention_choice import PLAIN_ATTENTION
from swarm.errors import SwarmError
from swarm.trainer.token_rows import Row

logger = logging.getLogger(__name__)

TOLERANCE = 1e-3
"""Largest difference of log-probabilities. Attention to a wrong token differs by far more, rounding by far less."""
TOLERANCE_HALF = 0.5
FULL_ATTENTION = "full_attention"


class Fallback(StrEnum):
    """Reasons to compute rows one by one although they have common prefixes."""

    LAYERS = "layers"
    """The model has layers of another kind than full attention, such as a sliding window."""
    ATTENTION = "attention"
    """The model's attention cannot compute a tree: it has another implementation, or is more than a masked softmax."""
    MISMATCH = "mismatch"
    """The log-probabilities differed from those of a plain pass."""


class PrefixSharing:
    """The decision for one model, whose weights may change. Used from one thread."""

    def __init__(self, module: torch.nn.Module, *, smallest_gain: float = SMALLEST_GAIN) -> None:
        """Set the model. Trees are used if separate rows have `smallest_gain` times as many tokens, with padding."""
        self._smallest_gain = smallest_gain
        self._unable = _find_obstacle(module)
        self._tolerance = _tolerance(module)
        self._right: set[SampleShape] = set()
        self._wrong: set[SampleShape] = set()
        self._meter = Meter()

    def report_to(self, meter: Meter) -> None:
        """Count in `meter`, the meter of one step, from now on."""
        self._meter = meter

    def count(self, rows: Sequence[Row], numbers: Sequence[int], micro: MicroBatch) -> None:
        """Count the tokens that a forward and backward pass computes, without padding."""
        unshared = float(sum(sample.inputs for number in numbers for sample in rows[number].samples))
        tokens = unshared if micro.tree is None else float(micro.input_ids_ST.numel())
        self._meter.add({"sharing/tokens": tokens, "sharing/tokens_unshared": unshared, "sharing/fallbacks": 0.0})

    def plan(self, rows: Sequence[Row], chosen: Sequence[int], max_tokens: int | None) -> MicrobatchPlan | None:
        """Return microbatches as trees, or None if the rows are to be computed one by one.

        The reason is a model that cannot share prefixes, or too small a gain.
        """
        if not chosen:
            return None
        plan = plan_trees(rows, chosen, max_tokens)
        padded = padded_tokens(rows, plan_microbatches(rows, chosen, max_tokens))
        if padded < self._smallest_gain * plan.tokens:
            return None
        if self._unable is not None:
            self._fall_back(self._unable)
            return None
        return plan

    def accepts(self, rows: Sequence[Row], numbers: Sequence[int], shared: MicroBatch, score: Score) -> bool:
        """Return whether the microbatch of the rows numbered `numbers` may be computed as a tree.

        It is scored only if some sample has a new shape. For each new shape, the row of one such sample is compared
        with a plain pass.
        """
        assert shared.tree is not None
        new = shared.tree.shapes.keys() - self._right
        agree = not new & self._wrong and (not new or self._compare(rows, numbers, shared, new, score))
        (self._right if agree else self._wrong).update(new)
        if not agree:
            self._fall_back(Fallback.MISMATCH)
        return agree

    @torch.no_grad()
    def _compare(
        self, rows: Sequence[Row], numbers: Sequence[int], shared: MicroBatch, new: Set[SampleShape], score: Score
    ) -> bool:
        assert shared.tree is not None
        line_of_sample = [line for line, number in enumerate(numbers) for _ in rows[number].samples]
        lines = sorted({line_of_sample[shared.tree.shapes[shape]] for shape in new})
        picked = [numbers[line] for line in lines]
        plain = collate(rows, picked, torch.zeros(len(rows), shared.mask_RL.shape[1]), shared.mask_RL.device)
        expected_RL = plain.spread(score(plain))
        found_RL = shared.spread(score(shared))[lines, : expected_RL.shape[1]]
        if torch.allclose(found_RL, expected_RL, rtol=0.0, atol=self._tolerance, equal_nan=True):
            return True
        logger.warning(
            "prefixes are not shared in samples of %d shapes: logprobs are off by up to %.2g",
            len(new),
            (found_RL - expected_RL).abs().max().item(),
        )
        return False

    def _fall_back(self, reason: Fallback) -> None:
        self._meter.count("sharing/fallbacks")
        self._meter.count(f"sharing/fallbacks/{reason}")


Score = Callable[[MicroBatch], torch.Tensor]
"""The logprobs of a microbatch's trained tokens, [N]."""


def _find_obstacle(module: torch.nn.Module) -> Fallback | None:
    config: Any = getattr(module, "config", None)
    if config is None or not isinstance(getattr(module, "base_model", None), torch.nn.Module):
        return Fallback.ATTENTION
    text = config.get_text_config()
    kinds: list[str] | None = getattr(text, "layer_types", None)
    if kinds is None and getattr(text, "sliding_window", None) is not None:
        return Fallback.LAYERS
    if set(kinds or [FULL_ATTENTION]) != {FULL_ATTENTION}:
        return Fallback.LAYERS
    if getattr(text, "_attn_implementation", None) != PLAIN_ATTENTION:
        return Fallback.ATTENTION
    try:
        gap = _try(module, text.vocab_size)
    except (SwarmError, TypeError, ValueError, RuntimeError, AttributeError, LookupError) as error:
        logger.info("%s computes no token trees: %s: %s", type(module).__name__, type(error).__name__, error)
        return Fallback.ATTENTION
    return None if gap <= _tolerance(module) else Fallback.ATTENTION


@torch.no_grad()
def _try(module: torch.nn.Module, vocabulary: int) -> float:
    """Return the largest difference in log-probability between two samples as a tree and alone."""
    device = next(module.parameters()).device
    common = [7 * place % vocabulary for place in range(4)]
    samples = [np.asarray([*common, *end]) % vocabulary for end in ([3, 11, 5], [8, 2])]
    tree = build_tree(samples)
    ids = torch.from_numpy(tree.token_ids_P)[None].to(device)
    with attention_along(module, lay_out_for(tree, device)) as along:
        logits = module(input_ids=ids, use_cache=False, **along).logits[0]
    gap = 0.0
    for path, sample in zip(tree.paths, samples, strict=True):
        alone = module(input_ids=torch.from_numpy(sample)[None].to(device), use_cache=False).logits[0]
        found = torch.log_softmax(logits[torch.from_numpy(path.places_T).to(device)].float(), -1)
        gap = max(gap, (found - torch.log_softmax(alone.float(), -1)).abs().max().item())
    return gap


def _tolerance(module: torch.nn.Module) -> float:
    return TOLERANCE if next(module.parameters()).dtype == torch.float32 else TOLERANCE_HALF
