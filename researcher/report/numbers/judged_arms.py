"""The judge's results for the arms of a study: rank, comparison and test split.

Place in the flow: facts.py gathers the arms and completes them here, for the present and for each decision. Nothing is
judged here: verdicts are those of an analysis.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import nan
from statistics import fmean
from typing import TYPE_CHECKING

from experiments_db import ExperimentStore
from researcher.analysis import Analysis, Comparison
from researcher.charter import Charter, JudgedBy
from researcher.judge import compare_on_test, contradicts
from researcher.record.scores import read_test_scores

if TYPE_CHECKING:
    from researcher.report.numbers.facts import ArmFacts

SAME = 1e-9
"""The largest difference between two ways of adding the same scores."""


def rank_arms(arms: Iterable[ArmFacts], charter: Charter) -> tuple[ArmFacts, ...]:
    sign = -charter.sign
    return tuple(
        sorted(
            arms,
            key=lambda arm: (
                not arm.has_rank,
                not arm.search.scores,
                sign * arm.search.mean if arm.search.scores else 0,
            ),
        )
    )


def judge_arms(
    arms: Iterable[ArmFacts],
    charter: Charter,
    analysis: Analysis | None,
    ruled_out: Mapping[str, str],
) -> tuple[ArmFacts, ...]:
    """Return the arms, ranked, with the results of an analysis."""
    values = {item.run.id: item.value for arm in arms for item in arm.runs if item.value is not None}
    names = {item.run.id: arm.name for arm in arms for item in arm.runs}
    comparisons = {item.arm: item for item in (analysis.comparisons if analysis is not None else ())}
    judged: list[ArmFacts] = []
    for arm in arms:
        found = comparisons.get(arm.name)
        judged.append(
            replace(
                arm,
                comparison=found,
                compared_means=(nan, nan) if found is None else _means_of(found, values, names),
                disqualified=ruled_out.get(arm.name, ""),
            )
        )
    return rank_arms(judged, charter)


def _means_of(comparison: Comparison, values: Mapping[str, float], names: Mapping[str, str]) -> tuple[float, float]:
    own = [values[run] for run in comparison.run_ids if run in values and names[run] == comparison.arm]
    others = [values[run] for run in comparison.run_ids if run in values and names[run] == comparison.baseline]
    if not own or not others or abs(fmean(own) - fmean(others) - comparison.difference) > SAME:
        return nan, nan
    return fmean(own), fmean(others)


def compare_tested_arms(
    store: ExperimentStore, study_id: str, charter: Charter, arms: Sequence[ArmFacts]
) -> tuple[Comparison, ...]:
    """Return the comparison of each arm with the baseline on the test split, then of the best with the second.

    The best arm comes first.
    """
    scores = read_test_scores(store, study_id, charter)
    tested = sorted(
        (arm for arm in arms if arm.name in scores and arm.name != charter.baseline), key=lambda arm: not arm.is_kept
    )
    found = [compare_on_test(charter, arm.name, scores) for arm in tested if charter.baseline in scores]
    if len(tested) > 1:
        found.append(compare_on_test(replace(charter, baseline=tested[1].name), tested[0].name, scores))
    return tuple(found)


def find_contradicted(charter: Charter, arms: Iterable[ArmFacts], tested: Sequence[Comparison]) -> str | None:
    """Return the arm that the test split speaks against.

    That split has only scores at the end of training, which contradict no result by another number.
    """
    best = next((arm.name for arm in arms if arm.has_rank and arm.is_kept), None)
    if not tested or tested[0].arm != best or charter.judged_by is not JudgedBy.FINAL:
        return None
    return best if contradicts(charter, tested[0]) else None
