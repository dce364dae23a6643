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

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")


def victims(seed: int, programs: int, environments: int, servers: int) -> list[Victim]:
    """In an order of chance. A program is killed both ways: its process, or the driver with all that it started."""
    programs_killed = [(Victim.DRIVER, Victim.PROGRAM)[number % 2] for number in range(programs)]
    everybody = [*programs_killed, *[Victim.ENVIRONMENT] * environments, *[Victim.SERVER] * servers]
    random.Random(seed).shuffle(everybody)
    return everybody


@pytest.mark.timeout(600)
def test_a_run_with_everybody_killed_trains_each_task_once(tmp_path: Path) -> None:
    check(tmp_path, victims(3, 3, 2, 2), steps=12, seed=3)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_twenty_dead_programs_ten_environments_and_ten_servers_cost_no_step(tmp_path: Path) -> None:
    check(tmp_path, victims(1, 20, 10, 10), steps=60, seed=1)


def check(home: Path, order: Sequence[Victim], steps: int, seed: int) -> None:
    with program_run(home, steps, seed) as run:
        run.begin()
        for number, victim in enumerate(order):
            run.strike(victim, len(order) - number)
        assert run.finish() == f"done: {steps} steps, 0 episodes failed", seed
        nothing_is_lost_or_counted_twice(run, f"seed {seed}: {order}, {run.outcomes()}")


def nothing_is_lost_or_counted_twice(run: ProgramRun, told: str) -> None:
    assert run.steps_on_record() == list(range(1, run.steps + 1)), told
    trained = run.trained()
    assert len({each.episode_id for each in trained}) == len(trained) == run.steps * BATCH_SIZE * NUM_REPEAT, told
    groups = Counter(each.group for each in trained)
    assert set(groups.values()) == {NUM_REPEAT}, told
    assert len({(each.group, each.task_id) for each in trained}) == len(groups), told
    assert set(Counter(each.step for each in trained).values()) == {BATCH_SIZE * NUM_REPEAT}, told
    words = load_environment(str(run.home / "words"))
    wanted = list(islice(words.tasks(Split.TRAIN, SEED), run.steps * BATCH_SIZE))
    assert Counter(each.task_id for each in trained) == dict.fromkeys(
        (item.task.task_id for item in wanted), NUM_REPEAT
    )
    by_id = {item.task.task_id: item for item in wanted}
    for each in trained:
        item = by_id[each.task_id]
        assert each.question == item.task.main_query, told
        transcript = [{"role": "user", "content": each.question}, {"role": "assistant", "content": each.answer}]
        assert each.reward == 2 * words.grade(item, transcript).score + 1, told
