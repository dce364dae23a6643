"""A program run through kill -9 of everybody has the steps asked for, exact batches, and counts nothing twice."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import pytest
from faults.program_run import BATCH_SIZE, NUM_REPEAT, SEED, ProgramRun, Victim, program_run

from swarm.environments import load_environment
from swarm.tasks import Split

ROLES = ("thinker", "speaker")

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")


def victims(seed: int, programs: int, environments: int, servers: int) -> list[Victim]:
    """In an order of chance. A program is killed both ways: its process, or the driver with all that it started."""
    programs_killed = [(Victim.DRIVER, Victim.PROGRAM)[number % 2] for number in range(programs)]
    everybody = [*programs_killed, *[Victim.ENVIRONMENT] * environments, *[Victim.SERVER] * servers]
    random.Random(seed).shuffle(everybody)
    return everybody


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_with_everybody_killed_trains_each_task_once(tmp_path: Path) -> None:
    check(tmp_path, victims(3, 3, 2, 2), steps=12, seed=3)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_models_with_everybody_killed_train_the_same_tasks_once(tmp_path: Path) -> None:
    check(tmp_path, victims(4, 2, 1, 3), steps=12, seed=4, roles=ROLES)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("roles", [("",), ROLES], ids=["one model", "two models"])
def test_twenty_dead_programs_ten_environments_and_ten_servers_cost_no_step(
    tmp_path: Path, roles: tuple[str, ...]
) -> None:
    check(tmp_path, victims(1, 20, 10, 10), steps=60, seed=1, roles=roles)


def check(home: Path, order: Sequence[Victim], steps: int, seed: int, roles: tuple[str, ...] = ("",)) -> None:
    with program_run(home, steps, seed, roles) as run:
        run.begin()
        for number, victim in enumerate(order):
            run.strike(victim, len(order) - number)
        assert run.finish() == f"done: {steps} steps, 0 episodes failed", f"seed {seed}: {order}"
        for role in roles:
            nothing_is_lost_or_counted_twice(run, role, f"seed {seed}: {order}, {role} {run.outcomes(role)}")
        if roles == ROLES:
            thinker, speaker = ([(each.task_id, each.reward) for each in run.trained(role)] for role in ROLES)
            assert sorted((task, 2 * reward + 1) for task, reward in thinker) == sorted(speaker), f"seed {seed}"


def nothing_is_lost_or_counted_twice(run: ProgramRun, role: str, told: str) -> None:
    assert run.steps_on_record(role) == list(range(1, run.steps + 1)), told
    trained = run.trained(role)
    assert len({each.episode_id for each in trained}) == len(trained) == run.steps * BATCH_SIZE * NUM_REPEAT, told
    groups = Counter(each.group for each in trained)
    assert set(groups.values()) == {NUM_REPEAT}, told
    assert len({(each.group, each.task_id) for each in trained}) == len(groups), told
    assert set(Counter(each.step for each in trained).values()) == {BATCH_SIZE * NUM_REPEAT}, told
    words = load_environment(str(run.home / "words"))
    wanted = list(islice(words.tasks(Split.TRAIN, SEED), run.steps * BATCH_SIZE))
    times = Counter(each.task_id for each in trained)
    assert times == dict.fromkeys((item.task.task_id for item in wanted), NUM_REPEAT), told
    by_id = {item.task.task_id: item for item in wanted}
    for each in trained:
        item = by_id[each.task_id]
        assert each.question == item.task.main_query, told
        if each.answer is not None:
            transcript = [{"role": "user", "content": each.question}, {"role": "assistant", "content": each.answer}]
            assert each.reward == 2 * words.grade(item, transcript).score + 1, told
    assert all((each.answer is None) == (role == "thinker") for each in trained), told
