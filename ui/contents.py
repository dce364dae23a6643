"""The records of one study, and what follows from them: the runs that count, the scores of the arms, their ranking.

Means follow the charter's rule; intervals and verdicts come from the researcher's last analysis.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import TYPE_CHECKING, Any

from experiments_db import (
    RULED_OUT,
    ArmFailure,
    BudgetKind,
    Experiment,
    Finding,
    JsonObject,
    LLMUsage,
    PlannerQuestion,
    RunMean,
    RunStatus,
    RunSummary,
    SearchArm,
    StoredCharter,
    StoredDecision,
    StoredHypothesis,
    Study,
    StudyStatus,
    read_search_arms,
)

if TYPE_CHECKING:
    from experiments_db import ExperimentStore

BASE, FINAL, TEST = "base", "final", "test"
PLAIN_AGENT = "final-plain-agent"
"""The final score with the baseline's agent, of an arm that has another one."""
MINIMIZED = frozenset({"steps-to", "spread"})
"""Numbers of a run of which the smaller one is better, whatever scores do."""
OUT = (ArmFailure.WITHDRAWN, ArmFailure.NOT_AS_CLAIMED, ArmFailure.DISQUALIFIED)
"""The failures of an arm that take away its verdict."""
AUTOMATIC = "study"
"""The author of a decision that no planner took."""


@dataclass(frozen=True, slots=True)
class SeedScore:
    """The final score of the run that counts for a seed; the other scores are None where not measured."""

    seed: int
    run_id: str
    final: float
    base: float | None
    test: float | None
    with_plain: float | None = None


@dataclass(frozen=True)
class ArmScore:
    """One arm over its seeds. The means are None without scores; the interval, without an analysis of these runs."""

    arm: Experiment
    seeds: tuple[SeedScore, ...]
    ci_low: float | None
    ci_high: float | None

    @cached_property
    def mean(self) -> float | None:
        return fmean(item.final for item in self.seeds) if self.seeds else None

    @property
    def base_mean(self) -> float | None:
        return _mean(item.base for item in self.seeds)

    @property
    def test_mean(self) -> float | None:
        return _mean(item.test for item in self.seeds)

    @property
    def mean_with_plain(self) -> float | None:
        """The mean with the baseline's agent; None unless the arm has another one."""
        return _mean(item.with_plain for item in self.seeds)


@dataclass(frozen=True)
class StudyContents:
    """The records of one study at one moment. What follows from them is computed once.

    `analysis` is the researcher's last analysis of a plan that makes claims, as it stored it; empty before the first.
    `search_arms` are the arms as the search sees them; empty for a study that neither searches nor checks its
    transcripts. `confirmed` is the arm that the newest confirmation expects to be better, and `questions` are those to
    an external planner.
    """

    study: Study
    charter: StoredCharter | None
    hypotheses: tuple[StoredHypothesis, ...]
    experiments: tuple[Experiment, ...]
    runs: tuple[RunSummary, ...]
    evaluations: tuple[RunMean, ...]
    findings: tuple[Finding, ...]
    decisions: tuple[StoredDecision, ...]
    analysis: JsonObject
    used: Mapping[BudgetKind, float]
    usage: LLMUsage
    search_arms: tuple[SearchArm, ...] = ()
    confirmed: str = ""
    questions: tuple[PlannerQuestion, ...] = ()

    @property
    def document(self) -> JsonObject:
        return {} if self.charter is None else self.charter.document

    @property
    def is_search(self) -> bool:
        """True if the study explores before it makes a claim."""
        return self.document.get("search") is not None

    @cached_property
    def claiming(self) -> tuple[RunSummary, ...]:
        """The runs that verdicts rest on."""
        return tuple(run for run in self.runs if not run.rung)

    @cached_property
    def short(self) -> tuple[RunSummary, ...]:
        """The runs of exploration, on which no verdict rests."""
        return tuple(run for run in self.runs if run.rung)

    @property
    def is_live(self) -> bool:
        return self.study.status is StudyStatus.RUNNING

    @property
    def search_split(self) -> str:
        return str(self.document.get("search_split", "validation"))

    @property
    def metric(self) -> str:
        """The number by which runs are judged, in words."""
        return self.findings[-1].metric if self.findings else str(self.document.get("metric", "score"))

    @property
    def is_judged_by_final_score(self) -> bool:
        return self.document.get("judged_by", FINAL) == FINAL

    @property
    def baseline(self) -> Experiment | None:
        return next((arm for arm in self.experiments if arm.is_baseline), None)

    @cached_property
    def arms_by_id(self) -> dict[str, Experiment]:
        return {arm.id: arm for arm in self.experiments}

    @cached_property
    def last_findings(self) -> tuple[Finding, ...]:
        """The findings of the last analysis, which covers more runs and replaces the earlier ones."""
        last = max((finding.iteration for finding in self.findings), default=0)
        return tuple(finding for finding in self.findings if finding.iteration == last)

    @cached_property
    def disqualified(self) -> dict[str, str]:
        """The arms that a decision, a review, a check or their scores ruled out; the first reason stands."""
        ruled_out: dict[str, str] = {}
        for decision in self.decisions:
            ruled_out = {**decision.details.get("disqualified", {}), **ruled_out}
        by_record = {arm.name: arm.reason for arm in self.search_arms if arm.failure in OUT}
        by_analysis = {
            str(item["arm"]): str(item["note"]).removeprefix(RULED_OUT)
            for item in self.analysis.get("comparisons", ())
            if str(item.get("note", "")).startswith(RULED_OUT)
        }
        return {**by_analysis, **by_record, **ruled_out}

    def verdict_of(self, finding: Finding) -> str:
        """Return the verdict on the arm that was compared."""
        is_out = self.arms_by_id[finding.experiment_id or ""].name in self.disqualified
        return "disqualified" if is_out else finding.verdict.value

    def scores_of(self, run_id: str) -> Mapping[tuple[str, str], float]:
        """Return the means of one run by (phase, split)."""
        return self._means_by_run.get(run_id, {})

    @cached_property
    def runs_by_arm(self) -> Counter[str]:
        """The number of runs that verdicts rest on, by the id of the arm."""
        return Counter(run.experiment_id for run in self.claiming)

    @cached_property
    def ranking(self) -> tuple[ArmScore, ...]:
        """Every arm, best first.

        Arms with a score come first, the disqualified after the others. Arms without a score come last, in the order
        of creation.
        """
        scored = [_score_arm(self, arm, seeds) for arm, seeds in _seeds_by_arm(self)]
        is_minimized = self.document.get("judged_by") in MINIMIZED or self.document.get("direction") == "minimize"
        sign = 1.0 if is_minimized else -1.0

        def rank(item: ArmScore) -> tuple[bool, bool, float]:
            return item.mean is None, item.arm.name in self.disqualified, sign * (item.mean or 0.0)

        return tuple(sorted(scored, key=rank))

    @cached_property
    def summaries(self) -> Mapping[str, Mapping[str, Any]]:
        """The summaries of the newest analysis, by the name of the arm."""
        return {str(item.get("arm")): item for item in self.analysis.get("arms", [])}

    @cached_property
    def _means_by_run(self) -> dict[str, dict[tuple[str, str], float]]:
        means: dict[str, dict[tuple[str, str], float]] = {}
        for item in self.evaluations:
            means.setdefault(item.run_id, {})[item.phase, item.split] = item.mean
        return means


def read_contents(store: ExperimentStore, study_id: str) -> StudyContents:
    """Return a study as it stands. Raises RecordNotFound for an unknown study, and other StoreErrors."""
    study, charter = store.get_study(study_id), store.find_charter(study_id)
    found = store.list_all_runs([study_id])
    plans = store.list_plans(study_id)
    exploring = {plan.iteration for plan in plans if plan.document.get("stage") == "explore"}
    analyses = [item for item in store.list_analyses(study_id) if item.iteration not in exploring]
    is_search = charter is not None and charter.document.get("search") is not None
    is_checked = any(arm.manipulation is not None for arm in found.experiments)
    confirmed = [plan.document["primary"][0] for plan in plans if _confirms_a_better_arm(plan.document)]
    return StudyContents(
        study=study,
        charter=charter,
        hypotheses=tuple(store.list_hypotheses(study_id)),
        experiments=found.experiments,
        runs=found.runs,
        evaluations=found.means,
        findings=tuple(store.list_findings(study_id=study_id)),
        decisions=tuple(store.list_decisions(study_id)),
        analysis=analyses[-1].document if analyses else {},
        used=store.sum_budget(study_id),
        usage=store.sum_llm_usage(study_id),
        search_arms=read_search_arms(store, study_id) if is_search or is_checked else (),
        confirmed=confirmed[-1] if confirmed else "",
        questions=tuple(store.list_questions(study_id)),
    )


def _confirms_a_better_arm(plan: Mapping[str, Any]) -> bool:
    """Return whether the first arm of a confirmation is expected to be better than the baseline."""
    contrasts = [item.get("contrast") or {} for item in plan.get("hypotheses", ())]
    return bool(plan.get("primary")) and all(item.get("relation") == "better" for item in contrasts[:1])


def best_arm(contents: StudyContents) -> ArmScore | None:
    """Return the first arm of the ranking that is not disqualified; None before the first score.

    If a search has confirmed an arm, only that arm and the baseline can be it: the others show what its parts are
    worth.
    """
    out = contents.disqualified
    ranked = [item for item in contents.ranking if item.mean is not None and item.arm.name not in out]
    if contents.confirmed:
        ranked = [item for item in ranked if item.arm.is_baseline or item.arm.name == contents.confirmed]
    return next(iter(ranked), None)


def _seeds_by_arm(contents: StudyContents) -> list[tuple[Experiment, tuple[SeedScore, ...]]]:
    split, test_split = contents.search_split, str(contents.document.get("test_split", "test"))
    found: dict[str, dict[int, SeedScore]] = {}
    # A seed counts once: with its first attempt that finished and was scored.
    for run in sorted(contents.claiming, key=lambda run: (run.seed, run.attempt)):
        means = contents.scores_of(run.id)
        final = means.get((FINAL, split))
        if run.status is not RunStatus.FINISHED or final is None or not contents.is_judged_by_final_score:
            continue
        base, test = means.get((BASE, split)), means.get((TEST, test_split))
        score = SeedScore(run.seed, run.id, final, base, test, means.get((PLAIN_AGENT, split)))
        found.setdefault(run.experiment_id, {}).setdefault(run.seed, score)
    for arm in contents.experiments:
        for score in _judged_seeds(contents, arm):
            found.setdefault(arm.id, {}).setdefault(score.seed, score)
    return [
        (arm, tuple(by_seed for _, by_seed in sorted(found.get(arm.id, {}).items()))) for arm in contents.experiments
    ]


def _judged_seeds(contents: StudyContents, arm: Experiment) -> list[SeedScore]:
    """Return the scores of runs for which only the analysis has a number.

    These are the runs that failed through the arm's own fault. If the study judges by something other than the final
    score, they are all runs.
    """
    summary = contents.summaries.get(arm.name, {})
    seeds = summary.get("failures" if contents.is_judged_by_final_score else "scores", {})
    run_ids = dict(zip(summary.get("scores", {}), summary.get("run_ids", ()), strict=False))
    return [
        SeedScore(int(seed), run_ids[seed], summary["scores"][seed], summary["base_scores"].get(seed), None)
        for seed in seeds
    ]


def _score_arm(contents: StudyContents, arm: Experiment, seeds: tuple[SeedScore, ...]) -> ArmScore:
    summary = contents.summaries.get(arm.name, {})
    # An interval over other runs than the mean would mislead: while seeds are still coming in there is none.
    if set(summary.get("run_ids", ())) != {item.run_id for item in seeds}:
        summary = {}
    return ArmScore(arm, seeds, _finite(summary.get("ci_low")), _finite(summary.get("ci_high")))


def _mean(values: Any) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
