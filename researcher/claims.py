"""The claims that a planner makes about the results of a study."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ClaimKind(StrEnum):
    """The kinds of claim that a planner may make about a study.

    `researcher/report/claims.py` defines when each kind is true.
    """

    MEAN = "mean"
    BETTER = "better"
    WORSE = "worse"
    EQUAL = "equal"
    P_VALUE = "p_value"
    BEST = "best"
    RANKING = "ranking"
    FAILED = "failed"
    OPINION = "opinion"


class Measured(StrEnum):
    """The score of an arm that a claim is about.

    BEFORE and AFTER are the scores on the search split before and after training. TEST is the score on the test
    split.
    """

    BEFORE = "before"
    AFTER = "after"
    TEST = "test"


@dataclass(frozen=True, slots=True)
class Claim:
    """One statement of a planner about the results, in a form that code can check.

    Readers see it in the report's own words. `arm` and `other` are names of arms. `significant` is None if the claim
    says nothing about significance. `arms` is a ranking, best first. `of` is the total number of runs that `number`
    refers to. `text` is an OPINION.

    `number` depends on the kind, and is None if the claim gives no size:
    - MEAN: a mean.
    - BETTER, WORSE: the absolute size of a difference.
    - EQUAL: a margin.
    - P_VALUE: a corrected p value.
    - FAILED: a number of runs.
    """

    kind: ClaimKind
    arm: str | None = None
    other: str | None = None
    measured: Measured = Measured.AFTER
    number: float | None = None
    significant: bool | None = None
    arms: tuple[str, ...] = ()
    of: int | None = None
    text: str = ""
