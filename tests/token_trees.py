"""Random batches whose samples share prefixes within an episode, a group and the batch, for tests of the learner.

Their turns are merged by the product's own `merge`; edited histories, repeated calls, aborted turns, temperatures and
grammars of their own are among them.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from hypothesis import strategies as st
from turns import plain_turn

from swarm.tracker.merge import merge
from swarm.trainer.token_rows import Row, TokenMask, build_rows
from swarm.types import (
    FinishedEpisode,
    FinishReason,
    Grammar,
    GrammarKind,
    Group,
    SamplingParams,
    TrainBatch,
    Turn,
)

if TYPE_CHECKING:
    import torch

GRAMMAR = Grammar(GrammarKind.JSON_OBJECT)


@dataclass(frozen=True, slots=True)
class BatchShape:
    """`kinds` is how many different tokens there are: with few, samples share more than their prompts."""

    seed: int
    vocabulary: int
    kinds: int
    tools: int
    prompt: int
    repeats: tuple[int, ...]
    turns: int
    grammars: bool


def batch_shapes(vocabulary: int) -> st.SearchStrategy[BatchShape]:
    return st.builds(
        BatchShape,
        seed=st.integers(0, 2**16),
        vocabulary=st.just(vocabulary),
        kinds=st.sampled_from([2, 5, vocabulary - 1]),
        tools=st.sampled_from([0, 1, 9, 24]),
        prompt=st.sampled_from([1, 6, 20]),
        repeats=st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple),
        turns=st.integers(1, 4),
        grammars=st.booleans(),
    )


class _Maker:
    def __init__(self, shape: BatchShape) -> None:
        self._shape = shape
        self._random = random.Random(shape.seed)
        self._tools = self._tokens(shape.tools)
        self.masks: dict[tuple[str, int], list[TokenMask]] = {}

    def batch(self) -> TrainBatch:
        groups: list[Group] = []
        for number, repeats in enumerate(self._shape.repeats):
            prompt = self._tools + self._tokens(self._shape.prompt)
            episodes = [self._episode(f"e{number}-{n}", f"task-{number}", prompt) for n in range(repeats)]
            groups.append(Group(f"task-{number}", tuple(episodes)))
        return TrainBatch(batch_id="batch", step=1, groups=tuple(groups))

    def _episode(self, episode_id: str, task_id: str, prompt: tuple[int, ...]) -> FinishedEpisode:
        turns: list[Turn] = []
        for index in range(self._random.randint(1, self._shape.turns)):
            parent = self._random.choice([None, *turns, *turns])
            before = prompt if parent is None else parent.prompt_ids + parent.output_ids_T
            if parent is None and turns and self._random.random() < 0.5:
                before = self._edited(turns[-1].prompt_ids)
            added = self._tokens(self._random.randint(0, 4)) if index else ()
            aborted = index > 0 and self._random.random() < 0.1
            turns.append(self._turn(episode_id, index, before + added, parent, aborted=aborted))
        reward = self._random.choice([0.0, 0.5, 1.0])
        return FinishedEpisode(episode_id, task_id, "client", reward, None, merge(turns), 0.0)

    def _turn(
        self, episode_id: str, index: int, prompt: tuple[int, ...], parent: Turn | None, *, aborted: bool
    ) -> Turn:
        output = self._tokens(self._random.randint(1, 6))
        grammar = GRAMMAR if self._shape.grammars and self._random.random() < 0.5 else None
        if grammar is not None and not aborted:
            self.masks[episode_id, index] = [self._mask(token) for token in output]
        return plain_turn(
            index,
            prompt,
            output,
            episode_id=episode_id,
            finish_reason=FinishReason.ABORT if aborted else FinishReason.STOP,
            params=SamplingParams(max_tokens=8, temperature=self._random.choice([0.6, 1.0, 1.0, 1.3]), grammar=grammar),
            parent=None if parent is None else parent.index,
        )

    def _tokens(self, count: int) -> tuple[int, ...]:
        return tuple(self._random.randint(1, self._shape.kinds) for _ in range(count))

    def _edited(self, prompt: tuple[int, ...]) -> tuple[int, ...]:
        """The same prompt with one token changed."""
        place = self._random.randrange(len(prompt))
        return (*prompt[:place], *self._tokens(1), *prompt[place + 1 :])

    def _mask(self, token: int) -> TokenMask:
        """A random half of the vocabulary and the token."""
        bits = np.asarray([self._random.random() < 0.5 for _ in range(self._shape.vocabulary)])
        bits[token] = True
        return np.packbits(bits, bitorder="little").tobytes()


def make_batch(shape: BatchShape) -> tuple[TrainBatch, Mapping[tuple[str, int], Sequence[TokenMask]]]:
    """A batch, and the masks of its constrained turns."""
    maker = _Maker(shape)
    return maker.batch(), maker.masks


def distinct_prefixes(rows: Sequence[Row]) -> int:
    """Number of tokens of the tree of all samples."""
    inputs = [sample.token_ids_T[:-1].tolist() for row in rows for sample in row.samples]
    return len({tuple(tokens[: length + 1]) for tokens in inputs for length in range(len(tokens))})


def make_rows(shape: BatchShape, sampler: torch.nn.Module, noise: float = 0.2) -> list[Row]:
    """The rows of such a batch. Recorded logprobs are those of `sampler` with noise: some ratios are clipped."""
    import torch

    from swarm.backends.local.learning.microbatches import collate
    from swarm.backends.local.learning.updater import TokenScorer

    batch, masks = make_batch(shape)
    rows = build_rows(batch, masks)
    random = np.random.default_rng(shape.seed)
    recorded: list[Row] = []
    for number, row in enumerate(rows):
        micro = collate(rows, [number], torch.zeros(len(rows), row.tokens), torch.device("cpu"))
        with torch.no_grad():
            exact = micro.spread(TokenScorer(sampler)(micro).logprobs_N)[0].numpy()
        noisy = np.minimum(exact + random.normal(scale=noise, size=len(exact)), -1e-4).astype(np.float32)
        recorded.append(replace(row, rollout_logprobs_L=noisy))
    return recorded
