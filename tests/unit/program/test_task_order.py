"""Which tasks come next: to a run that was cut off anywhere, those that an uninterrupted run would still have had."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm import TrainJob
from swarm.environments import Environment, EnvironmentTask, load_environment
from swarm.errors import ProgramFailure
from swarm.program.base import PLAIN
from swarm.program.order import CHOICE, TaskOrder, stream
from swarm.schemas import TaskCount
from swarm.tasks import Split
from swarm.types import Task

JOB = TrainJob(engine="fake", batch_size=3, num_repeat=4, seed=5)


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Seven train tasks: every order has them many times."""
    path = tmp_path_factory.mktemp("few") / "few.jsonl"
    parts = ["train"] * 7 + ["validation", "test"]
    rows = [{"question": f"Say {n}", "answer": str(n), "split": part} for n, part in enumerate(parts)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return load_environment(f"{path}?split=split")


def ids(items: Sequence[EnvironmentTask]) -> list[str]:
    return [item.task.task_id for item in items]


def whole_order(environment: Environment, number: int) -> list[str]:
    return ids(list(islice(stream(environment, Split.TRAIN, JOB.seed), number)))


def counts_of(groups: Counter[str], waiting: Counter[str]) -> list[TaskCount]:
    names = sorted({*groups, *waiting})
    return [TaskCount(task_id=name, data_source="few", groups=groups[name], waiting=waiting[name]) for name in names]


def source_of(environment: Environment) -> str:
    return next(environment.tasks(Split.TRAIN)).task.data_source


def test_a_new_run_has_each_task_of_the_order_in_all_its_repeats(few: Environment) -> None:
    order = TaskOrder(PLAIN, few, JOB, [])
    assert order.chunk == 6
    wanted = whole_order(few, 9)
    assert ids(order.take(6, 0.0)) == [name for name in wanted[:6] for _ in range(4)]
    assert ids(order.take(3, 0.5)) == [name for name in wanted[6:] for _ in range(4)]


def test_a_run_that_begins_at_a_checkpoint_leaves_out_what_the_steps_before_took(few: Environment) -> None:
    order = TaskOrder(PLAIN, few, JOB, [], initial_step=2)
    assert ids(order.take(3, 0.5)) == [name for name in whole_order(few, 9)[6:] for _ in range(4)]
    everything = replace(PLAIN, schedule=lambda tasks, progress: tasks)
    chosen = ids(TaskOrder(everything, load_environment("reverse"), JOB, [], initial_step=2).take(3, 0.5))
    later = whole_order(load_environment("reverse"), CHOICE * 6 + 3)[CHOICE * 6 :]
    assert chosen == [name for name in later for _ in range(4)]


@given(st.lists(st.integers(0, 4), min_size=12, max_size=12))
def test_what_is_held_and_what_comes_next_are_the_whole_order_together(few: Environment, done: list[int]) -> None:
    """Each of the first twelve places has some of its episodes on record; one with all four may be in a batch."""
    wanted = whole_order(few, 12)
    groups = Counter(name for place, name in enumerate(wanted) if done[place] == 4 and place % 2)
    waiting = Counter[str]()
    for place, name in enumerate(wanted):
        waiting[name] += 0 if done[place] == 4 and place % 2 else done[place]
    on_record = [replace_source(each, source_of(few)) for each in counts_of(groups, waiting)]
    order = TaskOrder(PLAIN, few, JOB, on_record)
    have = Counter({name: 4 * groups[name] + waiting[name] for name in set(wanted)})
    while sum(have.values()) < 4 * 12:
        have.update(ids(order.take(1, 0.0)))
    assert have == Counter({name: 4 * number for name, number in Counter(wanted).items()})


def replace_source(each: TaskCount, source: str) -> TaskCount:
    return each.model_copy(update={"data_source": source})


def test_groups_that_were_cut_off_come_before_those_that_were_not_begun() -> None:
    reverse = load_environment("reverse")
    wanted, source = whole_order(reverse, 4), source_of(reverse)
    cut_off = [TaskCount(task_id=wanted[place], data_source=source, groups=0, waiting=place) for place in (1, 3)]
    chosen = ids(TaskOrder(PLAIN, reverse, JOB, cut_off).take(4, 0.0))
    assert chosen == [wanted[1]] * 3 + [wanted[3]] + [wanted[0]] * 4 + [wanted[2]] * 4


def test_a_task_of_another_data_source_is_another_task(few: Environment) -> None:
    wanted = whole_order(few, 1)
    order = TaskOrder(PLAIN, few, JOB, [TaskCount(task_id=wanted[0], data_source="else", groups=1, waiting=0)])
    assert ids(order.take(1, 0.0)) == wanted * 4


def hardest_first(tasks: Sequence[Task], progress: float) -> list[Task]:
    return sorted(tasks, key=lambda task: task.task_id)


def test_a_curriculum_goes_on_with_what_it_had_begun_and_chooses_nothing_twice() -> None:
    reverse = load_environment("reverse")
    program = replace(PLAIN, schedule=hardest_first)
    first = TaskOrder(program, reverse, JOB, [])
    chosen = list(dict.fromkeys(ids(first.take(first.chunk, 0.0))))
    assert chosen == sorted(whole_order(reverse, CHOICE * first.chunk))[: first.chunk]
    source = source_of(reverse)
    on_record = [TaskCount(task_id=name, data_source=source, groups=1, waiting=0) for name in chosen[:3]]
    on_record.append(TaskCount(task_id=chosen[4], data_source=source, groups=0, waiting=1))
    again = Counter(ids(TaskOrder(program, reverse, JOB, on_record).take(6, 0.25)))
    assert not set(again) & set(chosen[:3])
    assert again[chosen[4]] == 3 and again[chosen[3]] == again[chosen[5]] == 4


def test_a_curriculum_that_has_passed_tasks_over_is_not_offered_them_for_ever() -> None:
    reverse = load_environment("reverse")
    offered: list[str] = []

    def note(tasks: Sequence[Task], progress: float) -> Sequence[Task]:
        offered.extend(task.task_id for task in tasks)
        return tasks

    whole = whole_order(reverse, 400)
    source = source_of(reverse)
    trained = [TaskCount(task_id=name, data_source=source, groups=1, waiting=0) for name in whole[:240:4]]
    TaskOrder(replace(PLAIN, schedule=note), reverse, JOB, trained).take(6, 0.5)
    passed = CHOICE * (60 - 6)
    assert offered == [name for name in whole[passed:] if name not in whole[:240:4]][: CHOICE * 6]


def test_a_curriculum_that_chooses_nothing_is_refused() -> None:
    program = replace(PLAIN, schedule=lambda tasks, progress: [])
    with pytest.raises(ProgramFailure, match="schedule chose none of 24 tasks"):
        TaskOrder(program, load_environment("reverse"), JOB, []).take(6, 0.0)
