"""Mean curves over seeds of which some ended early, and which rewards can stand beside one another."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from experiments_db import RunStatus
from researcher.report.numbers.curves import is_same_reward, mean_curve, with_curves
from researcher.report.numbers.facts import RunFacts

DEAD = ((1, 0.4), (2, 0.0))
ALIVE = ((1, 0.4), (2, 0.6), (3, 0.8), (4, 1.0))


def test_a_dead_run_stays_in_the_mean_to_the_end_and_is_marked_where_it_ended() -> None:
    found = mean_curve({"dead": DEAD, "alive": ALIVE}, {"dead"}, 4)

    assert found is not None
    assert found.mean == (0.4, 0.3, 0.4, 0.5)
    assert (found.low, found.high) == ((0.4, 0.0, 0.0, 0.0), (0.4, 0.6, 0.8, 1.0))
    assert (found.runs, found.carried_from, found.early) == (2, 2, ((2, 0.0),))


def test_an_arm_all_of_whose_runs_died_is_drawn_to_the_end_of_its_job() -> None:
    found = mean_curve({"dead": DEAD}, {"dead"}, 30)

    assert found is not None and (found.steps, found.mean, found.carried_from) == ((1, 2, 30), (0.4, 0.0, 0.0), 2)


def test_runs_that_all_go_to_their_end_are_carried_nowhere() -> None:
    found = mean_curve({"one": ALIVE, "two": ALIVE}, (), 4)

    assert found is not None and found.carried_from is None and found.steps == (1, 2, 3, 4)
    assert mean_curve({"none": ()}, (), 4) is None


def _run(run_id: str, seed: int, *, counts: bool = False, kind: str | None = None) -> RunFacts:
    run = SimpleNamespace(id=run_id, seed=seed, status=RunStatus.FINISHED if counts else RunStatus.FAILED,
                          diagnosis=None if kind is None else {"kind": kind})  # fmt: skip
    return RunFacts(cast(Any, run), "arm", None, None, None, counts, "")


def test_a_seed_that_failed_by_its_own_doing_keeps_its_curve_and_one_that_the_system_broke_has_none() -> None:
    runs = [
        _run("a", 0, kind="program"), _run("b", 0, counts=True), _run("c", 1, kind="program"),
        _run("d", 1, kind="not_finite"), _run("e", 2, kind="failure"),
    ]  # fmt: skip

    assert with_curves(runs) == ["b", "d"]


REWARDING = "def reward(task, transcript, grade):\n    return grade.score\n"
PLAIN = "def agent(task, model, session):\n    return 'x'\n"


@pytest.mark.parametrize(
    ("arms", "is_same"),
    [
        ([(PLAIN, None), (PLAIN + "# other\n", None)], True),
        ([(REWARDING, None), (REWARDING, None)], True),
        ([(PLAIN, None), (REWARDING, None)], False),
        ([(REWARDING, None), (REWARDING.replace("score", "score / 2"), None)], False),
        ([(PLAIN, None), (PLAIN + "from shaping import credit as reward\n", None)], False),
        ([(PLAIN, None), (PLAIN, "words:size=2")], False),
        ([(PLAIN, None), ("def (", None)], False),
    ],
)
def test_rewards_are_the_same_only_where_nobody_gives_another(
    arms: list[tuple[str, str | None]], is_same: bool
) -> None:
    found = [SimpleNamespace(program_code=code, train_environment=environment) for code, environment in arms]
    assert is_same_reward(cast(Any, found)) is is_same
