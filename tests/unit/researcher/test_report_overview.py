"""What a report recommends, and what it says that the study does not show."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from simulated_study import BASELINE, Simulation

from researcher.report.facts import StudyFacts, gather
from researcher.report.overview import limitations, recommendation
from researcher.report.render import answer
from researcher.types import JudgedBy

BEST = "lr=0.003"


def facts_of(home: Path, simulation: Simulation) -> StudyFacts:
    study = simulation.carry_out(home)
    with closing(study.store):
        return gather(study.store, study.study_id)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> StudyFacts:
    """A study in which one arm is better, as it is judged at the end."""
    return facts_of(tmp_path_factory.mktemp("kept"), Simulation(seeds=6))


def test_a_kept_arm_is_recommended(kept: StudyFacts) -> None:
    assert answer(kept).startswith(f"{BEST} is better than {BASELINE}")
    assert recommendation(kept)[0].startswith(f"Use {BEST}: ")


def test_an_arm_that_the_sealed_split_contradicts_is_not_recommended(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, Simulation(seeds=6, sealed_means={BEST: 0.2}))
    assert answer(facts).startswith("No improvement is shown")
    assert recommendation(facts)[0].startswith(f"Stay with {BASELINE} unless {BEST} is confirmed")


def test_scores_at_the_end_contradict_nothing_about_who_learns_sooner(tmp_path: Path, kept: StudyFacts) -> None:
    exact = {BASELINE: (0.5, 0.525, 0.475) * 2, BEST: (0.95, 0.975, 0.925) * 2}
    sooner = Simulation(seeds=6, exact=exact, sealed_means={BEST: 0.2}, judged_by=JudgedBy.AREA)
    facts = facts_of(tmp_path, sooner)
    assert answer(facts).startswith(f"{BEST} is better than {BASELINE}")
    assert recommendation(facts)[0].startswith(f"Use {BEST}: ")
    assert any("does not confirm who learns sooner" in sentence for sentence in limitations(facts))
    assert not any("sooner" in each for each in limitations(kept))
