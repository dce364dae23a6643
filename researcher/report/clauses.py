"""The answer of a study clause by clause: for each part of the question, what was measured and what it shows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from experiments_db import StoredHypothesis
from researcher.analysis import Comparison
from researcher.charter import Factor
from researcher.plan import Contrast
from researcher.question.wording import title_of
from researcher.report.answer import changed_factors
from researcher.report.formats import count, join_names
from researcher.report.numbers.facts import ArmFacts, StudyFacts

NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True)
class Clause:
    """One part of the question with its answer.

    `arm` is the arm that it was measured on; empty if nothing was. `effect` is the arm less the baseline, or less the
    arm of an ablation, on the seeds of its plan. `test` is the arm less the baseline on the test split.
    """

    asked: str
    result: str
    arm: str = ""
    effect: Comparison | None = None
    test: Comparison | None = None


def list_clauses(facts: StudyFacts) -> list[Clause]:
    """Return every part of the question in the order in which it was asked."""
    return [
        *_of_search(facts),
        *(clause for factor in facts.charter.asks.factors for clause in _of_factor(facts, factor)),
        *(
            Clause(part, f"{NOT_MEASURED}: it cannot be studied, and was left out")
            for part in facts.charter.not_studied
        ),
        *(_of_hypothesis(facts, item) for item in facts.hypotheses),
    ]


def _of_search(facts: StudyFacts) -> Iterator[Clause]:
    if facts.exploration is None:
        return
    asked, winner = "the best that the search can find", facts.winner
    if winner is None or winner.comparison is None:
        what = "no arm was to be confirmed as better" if facts.confirmation is not None else "nothing was confirmed"
        yield Clause(asked, f"{NOT_MEASURED}: {what} on fresh seeds")
    else:
        yield _of_arm(facts, asked, winner, f"best found, on fresh seeds: {winner.verdict}")


def _of_arm(facts: StudyFacts, asked: str, arm: ArmFacts, result: str) -> Clause:
    tested = next(
        (item for item in facts.test_comparisons if (item.arm, item.baseline) == (arm.name, facts.charter.baseline)),
        None,
    )
    return Clause(asked, result, arm.name, None if arm.disqualified else arm.comparison, tested)


def _of_factor(facts: StudyFacts, factor: Factor) -> Iterator[Clause]:
    """Yield a row for each compared arm that changes the factor; arms that change it alone go first."""
    asked, baseline = title_of(factor.name), facts.baseline
    changed = [
        (arm, changes)
        for arm in (facts.compared if baseline is not None else ())
        if baseline is not None and factor.name in (changes := changed_factors(arm, baseline))
    ]
    for arm, changes in sorted(changed, key=lambda item: len(item[1])):
        others = sorted(title_of(name) for name in changes - {factor.name})
        is_other_program = baseline is not None and arm.code_hash != baseline.code_hash
        others += ["another program"] if is_other_program else []
        together = f" (together with {join_names(others)})" if others else ""
        yield _of_arm(facts, asked, arm, f"{arm.verdict or NOT_MEASURED}{together}")
    if not changed:
        yield Clause(asked, f"{NOT_MEASURED}{_explored(facts, factor)}")


def _explored(facts: StudyFacts, factor: Factor) -> str:
    """Return how many arms explored a factor that no comparison has."""
    arms = () if facts.exploration is None else facts.exploration.explored
    base = next((arm.experiment.factors for arm in arms if arm.experiment.is_baseline), {})
    tried = [arm for arm in arms if arm.experiment.factors.get(factor.name) != base.get(factor.name)]
    return f": {count(len(tried), 'arm')} explored it, which claims nothing" if tried else ""


def _of_hypothesis(facts: StudyFacts, item: StoredHypothesis) -> Clause:
    judged = next((each for each in facts.contrasts if each.key == item.key), None)
    if item.verdict is None:
        why = ": a guess of exploration, which claims nothing" if facts.exploration is not None else ""
        return Clause(item.statement, f"{NOT_MEASURED}{why}")
    result = f"{item.verdict.value}{f': {item.verdict_reason}' if item.verdict_reason else ''}"
    if judged is not None and len(judged.contrast.arms) == 1 and judged.contrast.against == (facts.charter.baseline,):
        arm = next((each for each in facts.arms if each.name == judged.contrast.arms[0]), None)
        if arm is not None and arm.comparison is not None:
            return _of_arm(facts, item.statement, arm, result)
    return Clause(
        item.statement,
        result,
        join_names(judged.contrast.arms) if judged is not None else "",
        None if judged is None else _of_ablation(facts, judged.contrast),
    )


def _of_ablation(facts: StudyFacts, contrast: Contrast) -> Comparison | None:
    """Return the winner less the arm without a part, if that is what a hypothesis compares."""
    ablations = () if facts.confirmation is None else facts.confirmation.ablations
    found = (item.difference for item in ablations if contrast.against == (item.name,))
    return next(found, None) if facts.winner is not None and contrast.arms == (facts.winner.name,) else None
