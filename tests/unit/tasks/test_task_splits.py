"""Splits never overlap, and the same seed always gives the same tasks."""

from __future__ import annotations

import subprocess
import sys
from itertools import islice
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.errors import BadRequest
from swarm.tasks import TASK_FAMILIES, Split, split_of

FAMILIES = pytest.mark.parametrize("family", TASK_FAMILIES.values(), ids=TASK_FAMILIES.keys())


def problem_of(task):
    """All that a problem is, without the name of its split."""
    facts = {name: value for name, value in task.metadata.items() if name != "split"}
    return f"{task.main_query} {facts}"


@FAMILIES
@given(seeds=st.tuples(st.integers(0, 10_000), st.integers(0, 10_000), st.integers(0, 10_000)))
@settings(max_examples=10, deadline=None)
def test_splits_share_no_problem_whatever_their_seeds(family, seeds):
    drawn = [family.tasks(split, 60, seed=seed) for split, seed in zip(Split, seeds, strict=True)]
    problems = [{problem_of(task) for task in tasks} for tasks in drawn]
    assert all(len(distinct) == 60 for distinct in problems)
    assert len(problems[0] | problems[1] | problems[2]) == 180


@given(content=st.text())
def test_every_content_belongs_to_one_split_that_never_changes(content):
    assert split_of(content) is split_of(content)


def test_about_a_tenth_of_the_problems_is_held_out_for_each_purpose():
    family, rng = TASK_FAMILIES["reverse"], Random(0)
    splits = [split_of(family.draw(rng).content) for _ in range(5000)]
    assert 0.08 < splits.count(Split.VALIDATION) / 5000 < 0.12
    assert 0.08 < splits.count(Split.TEST) / 5000 < 0.12


@FAMILIES
def test_equal_seeds_give_equal_tasks_and_others_do_not(family):
    assert family.tasks(Split.TRAIN, 40, seed=3) == family.tasks(Split.TRAIN, 40, seed=3)
    assert family.tasks(Split.TRAIN, 40, seed=3) != family.tasks(Split.TRAIN, 40, seed=4)


@FAMILIES
@given(offset=st.integers(0, 60), count=st.integers(0, 40))
@settings(max_examples=10, deadline=None)
def test_offset_continues_the_same_sequence(family, offset, count):
    assert family.tasks(Split.TRAIN, count, offset=offset) == family.tasks(Split.TRAIN, 100)[offset : offset + count]


@FAMILIES
def test_task_ids_are_unique_and_name_family_and_split(family):
    tasks = family.tasks(Split.VALIDATION, 150)
    assert len({task.task_id for task in tasks}) == 150
    assert all(task.task_id.startswith(f"{family.name}/validation/") for task in tasks)
    assert all(task.metadata["split"] == "validation" for task in tasks)


def test_a_small_split_starts_again_when_it_is_used_up():
    family = TASK_FAMILIES["add"]
    tasks = list(islice(family.stream(Split.VALIDATION), 600))
    distinct = {task.task_id for task in tasks}
    assert 200 < len(distinct) < 300
    assert len({task.task_id for task in tasks[:200]}) == 200


def test_tasks_are_the_same_in_another_process():
    code = "from swarm.tasks import task_family; print(task_family('guess').tasks('test', 2))"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True).stdout
    assert output.strip() == str(TASK_FAMILIES["guess"].tasks(Split.TEST, 2))


def test_a_split_may_be_named_by_its_word():
    family = TASK_FAMILIES["reverse"]
    assert family.tasks("test", 3) == family.tasks(Split.TEST, 3)


def test_an_unknown_split_is_refused_with_the_names_there_are():
    with pytest.raises(BadRequest, match="train, validation, test"):
        TASK_FAMILIES["reverse"].stream("holdout")


@pytest.mark.parametrize(("count", "offset"), [(-1, 0), (1, -1)])
def test_negative_numbers_are_refused(count, offset):
    with pytest.raises(BadRequest, match="must not be negative"):
        TASK_FAMILIES["reverse"].tasks(Split.TRAIN, count, offset=offset)
