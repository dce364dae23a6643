"""Which arms the test split scores."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from generated_study import FINISHED, Specification, generate, rich

from experiments_db import open_store
from researcher.phases import TEST


def scored_arms(home: Path, wanted: Specification) -> set[str]:
    with open_store(home / "research.db") as store:
        study = generate(store, home, wanted)
        names = {item.id: item.name for item in store.list_experiments(study.study_id)}
        scores = store.list_evaluations(study_id=study.study_id, phase=TEST)
        return {names[store.get_run(item.run_id).experiment_id] for item in scores}


CALM = replace(rich(), seeds=6, fates={(arm, seed): FINISHED for arm in range(4) for seed in range(6)})


@pytest.mark.parametrize(
    ("wanted", "arms"),
    [
        (replace(CALM, means=(0.5, 0.6, 0.3, 0.9)), {"a3", "a1", "a0"}),
        (replace(CALM, means=(0.9, 0.6, 0.3, 0.5)), {"a0", "a1"}),
        (replace(CALM, arms=2, means=(0.5, 0.9)), {"a1", "a0"}),
        (replace(CALM, arms=2, means=(0.9, 0.5)), {"a1", "a0"}),
        (replace(CALM, means=(0.5, 0.6, 0.3, 0.9), disqualified=3), {"a1", "a0"}),
        (replace(CALM, arms=1, means=(0.5,)), set()),
    ],
    ids=["winner, runner-up, baseline", "baseline wins", "two arms", "two, baseline wins", "disqualified", "one alone"],
)
def test_the_test_split_scores_winner_runner_up_and_baseline_and_never_one_alone(
    wanted: Specification, arms: set[str], tmp_path: Path
) -> None:
    assert scored_arms(tmp_path, wanted) == arms
