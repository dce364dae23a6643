"""The token tree (trie) of a set of samples: every prefix that samples have in common is one path of it.

Place in the flow: planning cuts the rows of a minibatch by the costs of their trees. Collating lays out the tree of one
microbatch for the model. This module knows nothing of tensors, losses or attention.

Array suffixes: `_T` tokens of a sample, `_P` tokens of a tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from swarm.trainer.token_rows import IntArray


@dataclass(frozen=True, slots=True)
class Path:
    """Place of one sample in the tree: token t of the sample is token `places_T[t]` of the tree.

    Tokens from `start` on belong to no earlier sample in the order of the tree; they are consecutive in the tree. A
    sample that is the beginning of another may have no such tokens.
    """

    places_T: IntArray
    start: int

    @property
    def length(self) -> int:
        return len(self.places_T)

    @property
    def own(self) -> int:
        """Number of tokens that the sample adds to the tree."""
        return len(self.places_T) - self.start


@dataclass(frozen=True, slots=True)
class TokenTree:
    """Tree with each prefix once. `paths` are in the order in which the samples were given.

    `order` is the order of the tree: samples with a common prefix are neighbours in it. `positions_P` are depths, the
    positions at which the tokens were sampled.
    """

    token_ids_P: IntArray
    positions_P: IntArray
    paths: tuple[Path, ...]
    order: tuple[int, ...]

    @property
    def tokens(self) -> int:
        return len(self.token_ids_P)


def build_tree(samples: Sequence[IntArray]) -> TokenTree:
    """Return the tree of the token ids of samples, none of which is empty.

    In lexicographic order, the tokens that a sample shares with any earlier sample are those that it shares with the
    one right before it.
    """
    # Numbers of equal width with the highest byte first compare byte by byte in the same order as the numbers.
    order = sorted(range(len(samples)), key=lambda number: (samples[number].astype(">u8").tobytes(), number))
    paths: list[Path | None] = [None] * len(samples)
    pieces: list[IntArray] = []
    depths: list[IntArray] = []
    before, places = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    tokens = 0
    for number in order:
        token_ids_T = samples[number]
        start = _shared(before, token_ids_T)
        own = len(token_ids_T) - start
        places = np.concatenate([places[:start], np.arange(tokens, tokens + own, dtype=np.int64)])
        paths[number] = Path(places, start)
        pieces.append(token_ids_T[start:])
        depths.append(np.arange(start, len(token_ids_T), dtype=np.int64))
        before, tokens = token_ids_T, tokens + own
    return TokenTree(
        token_ids_P=np.concatenate(pieces),
        positions_P=np.concatenate(depths),
        paths=tuple(path for path in paths if path is not None),
        order=tuple(order),
    )


def _shared(first: IntArray, second: IntArray) -> int:
    """Return the length of the common beginning of two sequences."""
    length = min(len(first), len(second))
    different = first[:length] != second[:length]
    return int(different.argmax()) if different.any() else length
