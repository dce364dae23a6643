"""The findings of a study: stored from its verdicts, and settled with the earlier findings that it checks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from experiments_db import Experiment, ExperimentStore, Finding, Outcome, RecordNotFound, Severity
from researcher.analysis import Analysis, Comparison
from researcher.charter import Charter
from researcher.errors import FindingNotFound, TopicInvalid
from researcher.judge.contrasts import rule_out_contrast
from researcher.judge.judgement import rule_out
from researcher.memory.recipe import make_recipe, recipe_to_json
from researcher.memory.standing import KnownFinding, agrees, contradicts, describe_effect, find_alike, know
from researcher.memory.subject import subject_of
from researcher.plan import Stage
from researcher.record.log import StudyLog, finite

CHECKS, FOUND_AGAIN, RETRACTED = "finding.checked", "finding.found_again", "finding.retracted"
"""Kinds of events: a study sets out to check findings, has found one again, or has contradicted one."""


def set_out_to_check(store: ExperimentStore, study_id: str, findings: Sequence[str]) -> None:
    """Record that a study checks these findings of earlier studies; its verdicts may retract them."""
    message = f"This study checks what was found before: {', '.join(findings)}."
    store.append_event(study_id, CHECKS, message, payload={"findings": list(findings)})


def list_checked(store: ExperimentStore, study_id: str) -> list[str]:
    """Return the findings of earlier studies that a study checks."""
    events = store.list_events(study_id, kind=CHECKS, limit=None)
    return list(dict.fromkeys(finding for event in events for finding in event.payload["findings"]))


def settle(log: StudyLog, iteration: int) -> None:
    """Retract each checked finding that this iteration contradicts, and note each one that it has found again."""
    store, study_id = log.store, log.study_id
    own = [know(each) for each in store.list_findings(study_id=study_id, iteration=iteration) if each.recipe]
    for finding_id in list_checked(store, study_id) if own else ():
        earlier = know(store.get_finding(finding_id))
        for later in find_alike(own, earlier.recipe):
            if contradicts(later, earlier):
                retract(store, earlier, later)
            elif agrees(later, earlier):
                log.note(FOUND_AGAIN, f"Finding {finding_id} was found again: {_compare(later, earlier)}.")


def retract(store: ExperimentStore, earlier: KnownFinding, later: KnownFinding) -> None:
    """Retract a finding that a later one contradicts, unless it is retracted, with an event in both studies."""
    if earlier.finding.retracted_at is not None:
        return
    reason = f"contradicted by study {later.finding.study_id}: {_compare(later, earlier)}"
    message = f"Finding {earlier.finding.id} of study {earlier.finding.study_id} is retracted: {reason}."
    payload = {"finding": earlier.finding.id, "by": later.finding.id}
    # The events come first: if the process ends in between, the repeat still retracts.
    store.append_event(later.finding.study_id, RETRACTED, message, severity=Severity.WARNING, payload=payload)
    # No warning there: a report lists the warnings of its study, and that one is written already.
    store.append_event(earlier.finding.study_id, RETRACTED, message, payload=payload)
    store.retract_finding(earlier.finding.id, reason, by=later.finding.id)


def retract_by_hand(store: ExperimentStore, finding_id: str, reason: str) -> Finding:
    """Retract a finding for a reason that a person gives, with an event in its study; the first reason stands.

    Raises FindingNotFound. Raises TopicInvalid for an empty reason, or if the finding is retracted already.
    """
    finding = find_finding(store, finding_id)
    if finding.retracted_at is not None:
        raise TopicInvalid(f"finding {finding_id} is retracted already: {finding.retraction}")
    if not reason.strip():
        raise TopicInvalid("--reason is empty: say why the finding is not true")
    store.append_event(
        finding.study_id,
        RETRACTED,
        f"Finding {finding_id} is retracted: {reason}",
        payload={"finding": finding_id, "by": None},
    )
    return store.retract_finding(finding_id, reason)


def find_finding(store: ExperimentStore, finding_id: str) -> Finding:
    """Return a finding by its id. Raises FindingNotFound."""
    try:
        return store.get_finding(finding_id)
    except RecordNotFound as error:
        raise FindingNotFound(f"there is no finding {finding_id}: `researcher findings --all` shows them") from error


def _compare(later: KnownFinding, earlier: KnownFinding) -> str:
    return (
        f"{later.recipe.arm.name} against {later.recipe.baseline.name} was {describe_effect(earlier.finding)} "
        f"and {earlier.finding.verdict.about(earlier.finding.about)}; it is {describe_effect(later.finding)} and "
        f"{later.finding.verdict.about(later.finding.about)}"
    )


METHOD = (
    "Welch's t over seeds with the variance of equal arms, and Brunner and Munzel's test of the pairs of runs, "
    "Holm-corrected"
)
EVALUATION_ALONE = "evaluation noise alone, one run per arm"


def record_verdicts(
    store: ExperimentStore,
    study_id: str,
    charter: Charter,
    analyses: Sequence[Analysis],
    iteration: int,
    ruled_out: Mapping[str, str],
) -> None:
    """Store the findings and verdicts of the last analysis, which is that of `iteration`.

    Earlier ones stay as they are, except those on arms in `ruled_out`, which gives the reasons by arm. The hypotheses
    of an exploring plan stay open.
    """
    arms = {item.name: item for item in store.list_experiments(study_id)}
    for comparison in {(item.arm, item.iteration): item for each in analyses for item in each.comparisons}.values():
        if comparison.iteration == iteration or comparison.arm in ruled_out:
            _record(store, charter, rule_out(comparison, ruled_out), arms)
    contrasts = {item.key: item for each in analyses for item in each.contrasts}
    for hypothesis in store.list_hypotheses(study_id):
        found = contrasts.get(hypothesis.key)
        judged = None if found is None else rule_out_contrast(found, ruled_out)
        if judged is None and analyses[-1].stage is Stage.EXPLORE:
            continue
        if hypothesis.iteration != iteration and judged is found:
            continue
        if judged is None:
            store.judge_hypothesis(hypothesis.id, Outcome.UNDECIDED, "it states no contrast that can be judged")
        else:
            store.judge_hypothesis(hypothesis.id, judged.outcome, judged.reason)


def _record(store: ExperimentStore, charter: Charter, comparison: Comparison, arms: Mapping[str, Experiment]) -> None:
    arm = arms[comparison.arm]
    baseline = arms.get(comparison.baseline)
    recipe = None if baseline is None else make_recipe(charter, arm, baseline, len(comparison.seeds))
    store.record_finding(
        arm.study_id,
        iteration=comparison.iteration,
        experiment_id=arm.id,
        baseline_id=baseline.id if baseline else None,
        hypothesis_id=arm.hypothesis_id,
        metric=charter.judged,
        split=charter.search_split,
        effect=finite(comparison.difference),
        ci_low=finite(comparison.ci_low),
        ci_high=finite(comparison.ci_high),
        confidence=charter.confidence,
        p_value=finite(comparison.p),
        p_adjusted=finite(comparison.p_adjusted),
        verdict=comparison.verdict,
        method=_method_of(charter, comparison),
        run_ids=comparison.run_ids,
        summary=_summarize(charter, comparison),
        details={
            "seeds": list(comparison.seeds),
            "note": comparison.note,
            "purpose": arm.purpose,
            "margin": charter.margin,
            "about": charter.about,
            "failures": comparison.failures,
            "baseline_failures": comparison.baseline_failures,
            "missing": len(comparison.missing),
            "retries": len(comparison.retries),
            "correlation": finite(comparison.correlation),
        },
        recipe={} if recipe is None else recipe_to_json(recipe),
        question="" if recipe is None else recipe.question,
        **asdict(subject_of(charter)),
    )


def _method_of(charter: Charter, comparison: Comparison) -> str:
    if comparison.basis == "evaluation":
        return EVALUATION_ALONE
    return METHOD if charter.margin is None else f"Two one-sided tests within {charter.margin:g}: {METHOD}"


def _summarize(charter: Charter, comparison: Comparison) -> str:
    if math.isnan(comparison.difference):
        return f"{comparison.arm} could not be compared with {comparison.baseline} on {charter.environment_name}."
    note = f" ({comparison.note})" if comparison.note else ""
    within = "" if charter.margin is None else f", by a margin of {charter.margin:g}"
    return (
        f"{comparison.arm} against {comparison.baseline} on {charter.environment_name}: {comparison.difference:+.3f} "
        f"held-out reward over {len(comparison.seeds)} seeds, {comparison.verdict.about(charter.about)}{within}{note}."
    )
