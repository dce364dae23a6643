"""The properties of docs/algorithms.md, on random token trees."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests_support import examples
from turns import plain_turn

from swarm.tracker.merge import merge
from swarm.types import ConstrainedTurn, FinishReason, Grammar, GrammarKind, SamplingParams

TOKENS = st.lists(st.integers(0, 5), max_size=4).map(tuple)
GRAMMARS = st.sampled_from([None, Grammar(GrammarKind.JSON_OBJECT), Grammar(GrammarKind.REGEX, "a+")])


def _turn(index, prompt_ids, output_ids, *, parent=None, finish=FinishReason.STOP, grammar=None):
    return plain_turn(
        index,
        prompt_ids,
        output_ids,
        # Distinct, so that a token that is trained with another's value is noticed.
        logprobs_T=tuple(-float(f"{index}.{position:04d}") for position in range(len(output_ids))),
        weight_versions_T=tuple(100 * index + position for position in range(len(output_ids))),
        finish_reason=finish,
        params=SamplingParams(max_tokens=8, stop_token_ids=(index,), grammar=grammar),
        parent=parent,
    )


@st.composite
def episodes(draw):
    turns = {}
    index = 0
    for _ in range(draw(st.integers(0, 8))):
        index += draw(st.integers(1, 2))
        parent = draw(st.sampled_from([None, *turns]))
        before = () if parent is None else turns[parent].prompt_ids + turns[parent].output_ids_T
        finish = draw(st.sampled_from([FinishReason.STOP, FinishReason.LENGTH, FinishReason.ABORT]))
        prompt_ids, output_ids = before + draw(TOKENS), draw(TOKENS)
        turns[index] = _turn(index, prompt_ids, output_ids, parent=parent, finish=finish, grammar=draw(GRAMMARS))
    return list(turns.values())


def _trainable(turns):
    return [turn for turn in turns if turn.finish_reason is not FinishReason.ABORT and turn.output_ids_T]


def unmerged(turns):
    """One sample per turn that trains: its whole prompt as context, its sampled tokens trained."""
    return [sample for turn in _trainable(turns) for sample in merge([replace(turn, parent=None)])]


def _tokens(samples):
    return sum(len(sample.token_ids_T) for sample in samples)


def _trained(samples):
    """For each trained token: its turn, the tokens it is predicted from, itself, its logprob and version."""
    return [
        (sample.turn_indices_T[i], sample.token_ids_T[:i], token, sample.logprobs_T[i], sample.weight_versions_T[i])
        for sample in samples
        for i, token in enumerate(sample.token_ids_T)
        if sample.loss_mask_T[i]
    ]


def _recorded(turns):
    return [
        (turn.index, turn.prompt_ids + turn.output_ids_T[:i], token, turn.logprobs_T[i], turn.weight_versions_T[i])
        for turn in _trainable(turns)
        for i, token in enumerate(turn.output_ids_T)
    ]


@settings(max_examples=examples(100), deadline=None)
@given(episodes(), st.randoms(use_true_random=False))
def test_every_sampled_token_is_trained_exactly_once_as_it_was_recorded(turns, rng: random.Random):
    """Each turn is the beginning of a sample, whatever the order and the number of mentions of turns."""
    samples, apart = merge(turns), unmerged(turns)
    assert Counter(_trained(samples)) == Counter(_trained(apart)) == Counter(_recorded(turns))
    assert len(samples) <= len(apart) == len(_trainable(turns))
    assert _tokens(samples) <= _tokens(apart)
    for turn in _trainable(turns):
        ids = turn.prompt_ids + turn.output_ids_T
        assert any(sample.token_ids_T[: len(ids)] == ids for sample in samples)
    for sample in samples:
        fields = (sample.loss_mask_T, sample.logprobs_T, sample.weight_versions_T, sample.turn_indices_T)
        assert {len(field) for field in fields} == {len(sample.token_ids_T)}
        assert sample.trained_tokens > 0
        for trained, *values in zip(*fields, strict=True):
            assert trained or values == [0.0, -1, -1]
    again = turns * 2
    rng.shuffle(again)
    assert merge(again) == samples


@settings(max_examples=examples(100), deadline=None)
@given(episodes())
def test_a_turn_sampled_under_a_grammar_stands_whole_in_the_sample_that_trains_it_and_says_so(turns):
    expected = [turn for turn in _trainable(turns) if turn.params.grammar is not None]
    for samples in (merge(turns), unmerged(turns)):
        named = [(sample, constrained) for sample in samples for constrained in sample.constrained_turns]
        assert Counter(constrained for _, constrained in named) == Counter(
            ConstrainedTurn(turn.index, turn.params.grammar, turn.params.stop_token_ids) for turn in expected
        )
        for sample, constrained in named:
            (turn,) = (turn for turn in expected if turn.index == constrained.index)
            places = [place for place, index in enumerate(sample.turn_indices_T) if index == turn.index]
            assert places == list(range(len(turn.prompt_ids), len(turn.prompt_ids) + len(turn.output_ids_T)))
            assert sample.token_ids_T[places[0] : places[-1] + 1] == turn.output_ids_T


def test_shared_tokens_are_trained_by_the_first_leaf_and_context_in_the_second():
    root = _turn(0, (1,), (2,))
    left = _turn(1, (1, 2, 3), (4,), parent=0)
    right = _turn(2, (1, 2, 5), (6,), parent=0)

    first, second = merge([right, left, root])

    assert (first.token_ids_T, first.loss_mask_T) == ((1, 2, 3, 4), (False, True, False, True))
    assert (second.token_ids_T, second.loss_mask_T) == ((1, 2, 5, 6), (False, False, False, True))


@pytest.mark.parametrize(
    ("turns", "reason"),
    [
        ([_turn(0, (1,), (2,)), _turn(1, (1, 9), (4,), parent=0)], "does not begin with the tokens"),
        ([_turn(1, (1,), (2,), parent=0)], "no earlier turn 0"),
        ([_turn(0, (1,), (2,)), _turn(0, (1,), (3,))], "two different turns"),
    ],
)
def test_an_inconsistent_record_is_refused(turns, reason):
    with pytest.raises(ValueError, match=reason):
        merge(turns)
