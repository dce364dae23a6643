# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
"""Additive and multiplicative changes of single logits: logit bias, penalties, and end tokens held back.

Place in the flow: batching.py keeps one `LogitEdits` per request that needs it and tells it every sampled token;
sampling.py applies those of a batch at once. Only the tokens concerned are touched, so the cost grows with the length
of a conversation, not with the vocabulary. Knows nothing of temperature or of how tokens are drawn.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np
import torch
from torch import Tensor

from swarm.types import SamplingParams

FIRST_CAPACITY = 64
# Columns of a table of edits, one row per token.
TOKEN, BIAS, SEEN, COUNT = range(4)


class LogitEdits:
    """What one request changes in its logits before the next token.

    The order and meaning of the changes are those of `SamplingParams`, which are vLLM's: the repetition penalty looks
    at prompt and completion, the frequency and presence penalties at the completion alone.
    """

    def __init__(self, params: SamplingParams, prompt_ids: Sequence[int], end_ids: Collection[int]) -> None:
        """`end_ids` are held back until the completion has `min_tokens` tokens."""
        self.penalties = (params.repetition_penalty, params.frequency_penalty, params.presence_penalty)
        self._has_penalties = self.penalties != (1.0, 0.0, 0.0)
        self._table = np.zeros((FIRST_CAPACITY, 4))
        self._rows: dict[int, int] = {}
        for token_id, bias in params.logit_bias:
            self._row(token_id)[BIAS] = bias
        if params.repetition_penalty != 1:
            for token_id in set(prompt_ids):
                self._row(token_id)[SEEN] = 1
        self._to_hold = params.min_tokens
        self._held: dict[int, float] = {}
        if self._to_hold:
            for token_id in end_ids:
                row = self._row(token_id)
                self._held[token_id] = float(row[BIAS])
                row[BIAS] = -math.inf

    @staticmethod
    def are_needed(params: SamplingParams) -> bool:
        return bool(
            params.logit_bias
            or params.min_tokens
            or params.presence_penalty
            or params.frequency_penalty
            or params.repetition_penalty != 1
        )

    @property
    def table(self) -> np.ndarray:
        """One row per token: its id, its bias, 1 if prompt or completion hold it, how often the completion does."""
        return self._table[: len(self._rows)]

    def take(self, token_id: int) -> None:
        """Count a sampled token."""
        if self._has_penalties:
            row = self._row(token_id)
            row[SEEN] = 1
            row[COUNT] += 1
        if self._to_hold:
            self._to_hold -= 1
            if not self._to_hold:
                for held_id, bias in self._held.items():
                    self._row(held_id)[BIAS] = bias

    def _row(self, token_id: int) -> np.ndarray:
        """The row of a token, to be changed in place before the next one is asked for: the table may grow."""
        row = self._rows.setdefault(token_id, len(self._rows))
        if row == len(self._table):
            self._table = np.concatenate([self._table, np.zeros_like(self._table)])
        self._table[row, TOKEN] = token_id
        return self._table[row]


def apply_edits(logits: Tensor, rows: Sequence[int], edits: Sequence[LogitEdits]) -> None:
    """Change `logits` (n, vocabulary) in place: `edits[i]` belongs to row `rows[i]`."""
    device = logits.device
    tables = [each.table for each in edits]
    owners = torch.from_numpy(np.repeat(np.arange(len(edits)), [len(table) for table in tables])).to(device)
    table = torch.from_numpy(np.concatenate(tables)).to(device)
    penalties = torch.tensor([each.penalties for each in edits], dtype=torch.float64, device=device)[owners]
    places = torch.tensor(rows, device=device)[owners], table[:, TOKEN].long()
    values = logits[places].double() + table[:, BIAS]
    repetition = torch.where(table[:, SEEN] > 0, penalties[:, 0], 1.0)
    values = torch.where(values > 0, values / repetition, values * repetition)
    values -= penalties[:, 1] * table[:, COUNT] + penalties[:, 2] * (table[:, COUNT] > 0)
    logits[places] = values.to(logits.dtype)
