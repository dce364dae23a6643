"""The merge of turns into training samples: each sampled token is trained exactly once (docs/algorithms.md)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from swarm.types import ConstrainedTurn, FinishReason, Sample, Turn


def merge(turns: Iterable[Turn]) -> tuple[Sample, ...]:
    """Return one sample per leaf of the tree, in the order of the leaves' indices.

    A token that several leaves share is trained in the first of them and is context in the others. Aborted turns are
    context at most. Raise ValueError if a turn does not begin with its parent's tokens.
    """
    by_index = _by_index(turns)
    _check_parents(by_index)
    trained: set[int] = set()
    samples: list[Sample] = []
    for leaf in _leaves(by_index):
        path = [turn for turn in _path(leaf, by_index) if _trains(turn) and turn.index not in trained]
        trained.update(turn.index for turn in path)
        samples.append(_sample(leaf, path))
    return tuple(samples)


def _by_index(turns: Iterable[Turn]) -> dict[int, Turn]:
    """Return turns in the order of their indices, each once."""
    found: dict[int, Turn] = {}
    for turn in sorted(turns, key=lambda turn: turn.index):
        if found.setdefault(turn.index, turn) != turn:
            raise ValueError(f"two different turns have the index {turn.index}")
    return found


def _check_parents(by_index: Mapping[int, Turn]) -> None:
    for turn in by_index.values():
        if turn.parent is None:
            continue
        parent = by_index.get(turn.parent)
        if parent is None or parent.index >= turn.index:
            raise ValueError(f"turn {turn.index} has no earlier turn {turn.parent} as its parent")
        before = parent.prompt_ids + parent.output_ids_T
        if turn.prompt_ids[: len(before)] != before:
            raise ValueError(f"the prompt of turn {turn.index} does not begin with the tokens of turn {turn.parent}")


def _trains(turn: Turn) -> bool:
    finished = turn.finish_reason is not FinishReason.ABORT and turn.withheld is None
    return finished and bool(turn.output_ids_T)


def _leaves(by_index: Mapping[int, Turn]) -> list[Turn]:
    """Return the turns that train and that have no such descendant."""
    inner: set[int] = set()
    for turn in by_index.values():
        if _trains(turn):
            inner.update(ancestor.index for ancestor in _path(turn, by_index)[:-1])
    return [turn for turn in by_index.values() if _trains(turn) and turn.index not in inner]


def _path(turn: Turn, by_index: Mapping[int, Turn]) -> list[Turn]:
    """Return the turn and its ancestors, the root first."""
    path = [turn]
    while (parent := path[-1].parent) is not None:
        path.append(by_index[parent])
    return path[::-1]


def _sample(leaf: Turn, trained: Sequence[Turn]) -> Sample:
    """Return the tokens of `leaf` with its prompt; it trains the outputs of `trained`, turns on its path."""
    token_ids = leaf.prompt_ids + leaf.output_ids_T
    length = len(token_ids)
    mask, logprobs, versions, indices = [False] * length, [0.0] * length, [-1] * length, [-1] * length
    temperatures = [1.0] * length
    for turn in trained:
        start, end = len(turn.prompt_ids), len(turn.prompt_ids) + len(turn.output_ids_T)
        mask[start:end] = [True] * (end - start)
        logprobs[start:end] = turn.logprobs_T
        versions[start:end] = turn.weight_versions_T
        indices[start:end] = [turn.index] * (end - start)
        temperatures[start:end] = [turn.params.temperature or 1.0] * (end - start)
    return Sample(
        episode_id=leaf.episode_id,
        token_ids_T=token_ids,
        loss_mask_T=tuple(mask),
        logprobs_T=tuple(logprobs),
        weight_versions_T=tuple(versions),
        turn_indices_T=tuple(indices),
        temperatures_T=tuple(temperatures),
        constrained_turns=tuple(
            ConstrainedTurn(turn.index, grammar, turn.params.stop_token_ids)
            for turn in trained
            if (grammar := turn.params.grammar) is not None
        ),
    )
