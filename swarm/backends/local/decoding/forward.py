# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
"""Forward passes of an unmodified Hugging Face causal LM over the slot cache.

Place in the flow: batching.py decides which rows run, this module builds their masks and calls the model. Knows
nothing of requests or sampling. Models whose layers it cannot serve are refused by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from swarm.backends.local.decoding.cache import SlotCache, Window
from swarm.errors import EngineFailure

FULL, SLIDING = "full_attention", "sliding_attention"

# How far the log-probabilities of the probe may be from those of a plain forward pass. Half precision rounds each
# layer's activations, so there only a wrong mask or a wrong position stands out.
PROBE_TOLERANCE = 1e-3
PROBE_TOLERANCE_HALF = 0.5


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens to put into the cache for one row, beginning at column `start`."""

    start: int
    token_ids: Sequence[int]


class SlotForward:
    """Fills and reads the rows of a slot cache through the model."""

    def __init__(self, module: torch.nn.Module, context_length: int) -> None:
        config: Any = getattr(module.config, "get_text_config", lambda: module.config)()
        self.cache = SlotCache()
        self._module: Any = module
        self._context_length = context_length
        self._device = next(module.parameters()).device
        self._dtype = next(module.parameters()).dtype
        self._window: int | None = getattr(config, "sliding_window", None)
        self._kinds = _attention_kinds(config, self._window)
        self._additive = getattr(config, "_attn_implementation", "sdpa") != "sdpa"
        self._columns = torch.arange(context_length, device=self._device)

    def fill(self, first_row: int, pieces: Sequence[Piece]) -> None:
        """Compute keys and values of pieces, one per row from `first_row` on, padded to one width."""
        width = max(len(piece.token_ids) for piece in pieces)
        ids = torch.zeros((len(pieces), width), dtype=torch.long)
        for row, piece in enumerate(pieces):
            ids[row, : len(piece.token_ids)] = torch.tensor(piece.token_ids)
        starts = torch.tensor([piece.start for piece in pieces], device=self._device)
        positions = starts[:, None] + torch.arange(width, device=self._device)
        fresh = all(piece.start == 0 for piece in pieces)
        length = max(piece.start for piece in pieces) + width
        self.cache.point_at(Window(first_row, positions, length, fresh=fresh, decoding=False))
        self._run(self._module.base_model, ids.to(self._device), positions, length)

    def decode(self, token_ids: Sequence[int], positions: Sequence[int]) -> Tensor:
        """Feed one token to each of rows 0..n-1 at its position; logits (n, vocabulary) of the tokens that follow."""
        places = torch.tensor(positions, device=self._device)[:, None]
        length = max(positions) + 1
        self.cache.point_at(Window(0, places, length, fresh=False, decoding=True))
        ids = torch.tensor(token_ids, device=self._device)[:, None]
        return self._run(self._module, ids, places, length).logits[:, -1]

    def _run(self, module: Any, ids: Tensor, positions: Tensor, length: int) -> Any:
        return module(
            input_ids=ids,
            # Padding may lie beyond the last position a model knows; what is computed there is never read.
            position_ids=positions.clamp(max=self._context_length - 1),
            attention_mask=self._masks(positions, length),
            past_key_values=self.cache,
            use_cache=True,
        )

    def _masks(self, positions: Tensor, length: int) -> Tensor | dict[str, Tensor]:
        """Which columns each token sees, (b, 1, t, length); by kind of layer for models that mix kinds."""
        if length > len(self._columns):
            self._columns = torch.arange(length, device=self._device)
        columns, queries = self._columns[:length], positions[:, None, :, None]
        causal = columns <= queries
        masks = {FULL: causal}
        if self._window is not None:
            masks[SLIDING] = causal & (columns > queries - self._window)
        if self._additive:
            lowest = torch.finfo(self._dtype).min
            masks = {
                kind: torch.zeros(mask.shape, dtype=self._dtype, device=self._device).masked_fill(~mask, lowest)
                for kind, mask in masks.items()
            }
        if len(self._kinds) == 1:
            return masks[next(iter(self._kinds))]
        return {kind: masks[kind] for kind in self._kinds}


@torch.inference_mode()
def verify_model(module: torch.nn.Module, context_length: int, vocabulary: int) -> None:
    """Refuse a model that the slot cache does not serve exactly. Raises EngineFailure with its name.

    Two sequences of different lengths, filled in two pieces and then decoded, must give the log-probabilities of a
    plain forward pass of each alone.
    """
    name = type(module).__name__
    length = min(12, context_length)
    step = max(vocabulary // 31, 1)
    rows = [[(7 + step * j + i) % vocabulary for j in range(length - 3 * i)] for i in range(2) if length - 3 * i > 1]
    try:
        forward = SlotForward(module, context_length)
        half = min(len(row) for row in rows) // 2
        for part in (slice(0, half), slice(half, -1)):
            pieces = [Piece(part.start, row[part]) for row in rows]
            if all(piece.token_ids for piece in pieces):
                forward.fill(0, pieces)
        served = forward.decode([row[-1] for row in rows], [len(row) - 1 for row in rows])
        plain = [module(input_ids=torch.tensor([row], device=served.device)).logits[0, -1] for row in rows]
    except EngineFailure:
        raise
    except Exception as error:
        raise EngineFailure(f"{name} cannot be served by the local engine: {type(error).__name__}: {error}") from error
    gap = (torch.log_softmax(served.float(), -1) - torch.log_softmax(torch.stack(plain).float(), -1)).abs().max().item()
    tolerance = PROBE_TOLERANCE if served.dtype == torch.float32 else PROBE_TOLERANCE_HALF
    if not gap <= tolerance:
        raise EngineFailure(
            f"{name} cannot be served by the local engine: with cached keys its log-probabilities are off by {gap:.2g}"
        )


def _attention_kinds(config: Any, window: int | None) -> frozenset[str]:
    layer_types: list[str] | None = getattr(config, "layer_types", None)
    kinds = frozenset(layer_types or [FULL if window is None else SLIDING])
    if SLIDING in kinds and window is None:
        raise EngineFailure(f"{config.model_type}: has sliding-window layers but no sliding_window in its config")
    if unknown := kinds - {FULL, SLIDING}:
        raise EngineFailure(f"{config.model_type}: the local engine cannot serve layers of kind {sorted(unknown)}")
    return kinds
