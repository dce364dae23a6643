"""How the rows of a minibatch are cut into microbatches whose token trees fit a budget."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from late import Late
from tests_support import examples
from token_trees import distinct_prefixes

from swarm.trainer.token_rows import Row, ScoredSample

sharing = Late("swarm.backends.local.learning.sharing.prefix_sharing")

SAMPLES = st.lists(st.lists(st.integers(0, 2), min_size=2, max_size=9), min_size=1, max_size=2)


def make_row(samples: Sequence[Sequence[int]]) -> Row:
    """A row whose samples train their last token."""
    scored = tuple(
        ScoredSample(np.asarray(ids), np.asarray([len(ids) - 1]), np.asarray([n]), np.ones(1, dtype=np.float32))
        for n, ids in enumerate(samples)
    )
    count = len(scored)
    return Row("e", 0, 0.0, None, scored, np.zeros(count, np.float32), np.arange(count), np.zeros(count, np.int64))


def fits(rows: Sequence[Row], budget: int) -> bool:
    keys = sum(sample.inputs for row in rows for sample in row.samples)
    enough = distinct_prefixes(rows) <= budget and sum(row.tokens for row in rows) <= budget
    return len(rows) == 1 or (enough and keys <= sharing.KEYS_PER_TOKEN * budget)


def cuts(rows: Sequence[Row]) -> Iterator[list[Sequence[Row]]]:
    for chosen in itertools.product([False, True], repeat=len(rows) - 1):
        ends = [place + 1 for place, cut in enumerate(chosen) if cut]
        yield [rows[first:last] for first, last in zip([0, *ends], [*ends, len(rows)], strict=True)]


@given(st.lists(SAMPLES, min_size=1, max_size=7), st.integers(4, 40))
@settings(max_examples=examples(200), deadline=None)
def test_cuts_are_the_fewest_that_fit_and_of_these_the_ones_with_the_least_squares(
    samples: list[list[list[int]]], budget: int
) -> None:
    rows = [make_row(each) for each in samples]
    plan = sharing.plan_trees(rows, range(len(rows)), budget)
    parts = [[rows[number] for number in numbers] for numbers in plan.microbatches]
    assert sorted(itertools.chain.from_iterable(plan.microbatches)) == list(range(len(rows)))
    assert all(fits(part, budget) for part in parts)
    assert plan.tokens == sum(map(distinct_prefixes, parts))
    # The order that is cut: that of the first of a row's samples.
    ordered = sorted(rows, key=lambda row: min(sample.token_ids_T[:-1].tolist() for sample in row.samples))
    possible = [cut for cut in cuts(ordered) if all(fits(part, budget) for part in cut)]
    fewest = min(map(len, possible))
    assert len(parts) == fewest
    squares = min(sum(distinct_prefixes(part) ** 2 for part in cut) for cut in possible if len(cut) == fewest)
    assert sum(distinct_prefixes(part) ** 2 for part in parts) == squares


@pytest.mark.parametrize(("budget", "expected"), [(None, 1), (16, 2)])
def test_groups_with_a_prompt_in_common_stay_together(budget: int | None, expected: int) -> None:
    prompts = [[1] * 8, [2] * 8]
    rows = [make_row([[*prompts[number % 2], number, 9]]) for number in range(8)]
    plan = sharing.plan_trees(rows, range(8), budget)
    assert plan.tokens == 2 * (8 + 4)
    if expected == 2:
        assert [{number % 2 for number in numbers} for numbers in plan.microbatches] == [{0}, {1}]


def test_rows_beyond_what_is_cut_at_a_time_are_all_planned() -> None:
    rows = [make_row([[5, number, 9]]) for number in range(1100)]
    plan = sharing.plan_trees(rows, range(1100), 400)
    assert sorted(itertools.chain.from_iterable(plan.microbatches)) == list(range(1100))
    assert max(map(len, plan.microbatches)) < 400
