"""What a reader in a hurry needs: the abstract, what to do now, and what the study does not show.

Place in the flow: render.py puts these sentences at the head and the end of a report. All of them follow from the facts
by rules; no planner has a say, and nothing is computed here but counts and the number of seeds that an open comparison
would roughly need.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import NormalDist

from experiments_db import RunStatus
from researcher.report.facts import ArmFacts, StudyFacts
from researcher.study.log import BUDGET_SPENT
from researcher.types import JudgedBy

OPEN = "inconclusive"
KEPT = "keep"
USUAL_EPISODES = 100
"""Below this many held-out episodes, one episode is more than a hundredth of a score."""
POWER = 0.8
"""The probability to find an effect that is there which is usually asked for."""


def abstract(facts: StudyFacts, answer: str) -> list[str]:
    """What was asked, what was done, what came out, sentence by sentence."""
    charter = facts.charter
    arms = [arm for arm in facts.arms if arm not in facts.rejected_arms]
    scored = sum(len(arm.search.scores) for arm in arms)
    seeds = len({seed for arm in arms for seed in arm.search.scores})
    sentences = [
        f"This study asks: {charter.question}",
        f"{count(len(arms), 'arm')} were trained on {charter.task} with {count(len(facts.runs), 'run')} over "
        f"{count(seeds, 'seed')}; {scored} of them count, each with a score of {charter.eval_episodes} held-out "
        f"episodes, and {len(facts.failed_runs)} failed.",
        answer,
    ]
    sealed = [arm for arm in facts.arms if arm.sealed is not None]
    if sealed:
        means = ", ".join(f"{arm.name} {arm.sealed.mean:.3f}" for arm in sealed if arm.sealed is not None)
        sentences.append(f"On the {charter.sealed_split} split, which took no part in any choice: {means}.")
    return sentences


def recommendation(facts: StudyFacts) -> list[str]:
    """What to do with the result."""
    kept = [arm for arm in facts.arms if arm.finding is not None and arm.finding.verdict.value == KEPT]
    undecided = [arm for arm in facts.arms if arm.finding is not None and arm.finding.verdict.value == OPEN]
    sentences: list[str] = []
    if kept and facts.baseline is not None:
        best = kept[0]
        if facts.contradicted == best.name:
            sentences.append(
                f"Stay with {facts.baseline.name} unless {best.name} is confirmed on fresh seeds: the "
                f"{facts.charter.sealed_split} split contradicts its gain."
            )
        else:
            sentences.append(f"Use {best.name}: {_changes(facts.baseline, best)}.")
    elif any(item.effect is not None for item in facts.findings) and facts.baseline is not None:
        sentences.append(f"Stay with {facts.baseline.name}: no arm was shown to be better.")
    else:
        sentences.append("No recommendation: nothing has been compared.")
    for arm in undecided:
        seeds = _seeds_needed(facts, arm)
        more = (
            f": about {seeds} seeds per arm would find an effect of {facts.charter.rule.min_effect:g} with probability "
            f"{POWER:g}"
            if seeds
            else ""
        )
        sentences.append(f"{arm.name} is not decided{more}.")
    return sentences


def limitations(facts: StudyFacts) -> list[str]:
    """What the study does not show, or shows less well than it may seem."""
    charter = facts.charter
    models = sorted({str(arm.experiment.job.get("model")) for arm in facts.arms if arm.experiment.job.get("model")})
    of_model = f" with the model {' and '.join(models)}" if models else ""
    found = [f"All of it is about {charter.task}{of_model}; other tasks and models were not looked at."]
    if facts.sample_size is not None and charter.sample_size is not None and facts.sample_size.power < POWER:
        found.append(
            f"The first plan was to find an arm that is better by {charter.sample_size.target_effect:g} with a "
            f"probability of {facts.sample_size.power:.2f} only."
        )
    found += _of_precision(facts)
    found += _of_runs(facts)
    if len(facts.arms) > 2:
        found.append(f"Arms are compared with {charter.baseline}; differences between other arms were not tested.")
    if not any(arm.sealed for arm in facts.arms):
        found.append(f"The {charter.sealed_split} split was not scored, so the choice is not confirmed.")
    elif len([arm for arm in facts.arms if arm.sealed]) == 1 < len(facts.arms):
        found.append(f"On the {charter.sealed_split} split one arm alone was scored, which confirms no difference.")
    elif charter.judged_by is JudgedBy.AREA:
        found.append(
            f"The {charter.sealed_split} split was scored at the end of training alone: it does not confirm who learns "
            "sooner."
        )
    tested = [run for arm in facts.arms if arm.sealed is not None for run in arm.runs if run.counts]
    if lacking := sum(run.sealed is None for run in tested):
        found.append(f"{lacking} of the {count(len(tested), 'run')} to be tested have no {charter.sealed_split} score.")
    if charter.assumptions:
        found.append(f"{count(len(charter.assumptions), 'thing')} that the topic did not say were assumed; see Method.")
    return found


def count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _of_precision(facts: StudyFacts) -> Iterator[str]:
    charter = facts.charter
    seeds = [len(arm.search.scores) for arm in facts.arms if arm.search.scores]
    if seeds and min(seeds) < charter.rule.min_seeds:
        yield f"Some arms have {count(min(seeds), 'seed')}; a verdict needs {charter.rule.min_seeds}."
    widths = [
        (arm.search.ci_high - arm.search.ci_low) / 2
        for arm in facts.arms
        if arm.search.scores and math.isfinite(arm.search.ci_high - arm.search.ci_low)
    ]
    if widths and max(widths) > charter.rule.min_effect:
        yield (
            f"Means are known to within {max(widths):.3f} at worst, more than the smallest effect that counts, "
            f"{charter.rule.min_effect:g}."
        )
    if charter.eval_episodes < USUAL_EPISODES:
        yield f"A score has {charter.eval_episodes} episodes: one of them is {1 / charter.eval_episodes:.3f} of it."


def _of_runs(facts: StudyFacts) -> Iterator[str]:
    stopped = [item for item in facts.failed_runs if item.is_budget_stop]
    if failed := len(facts.failed_runs) - len(stopped):
        yield f"{failed} of {count(len(facts.runs), 'run')} failed; see What failed."
    if stopped:
        yield f"{count(len(stopped), 'run')} had no score yet when the budget stopped it, which is no arm's failure."
    if facts.decisions and facts.decisions[-1].details.get(BUDGET_SPENT):
        yield "The budget ended the study before its last plan was done; a raised one goes on with it."
    early = [item for item in facts.runs if item.counts and item.run.diagnosis]
    if early:
        yield f"{count(len(early), 'run')} ended early and count with what had been learned by then."
    if facts.rejected_arms:
        yield f"{count(len(facts.rejected_arms), 'arm')} could not be run."
    waiting = [item for item in facts.runs if not item.run.status.is_over and item.run.status is not RunStatus.PLANNED]
    if waiting:
        yield f"{count(len(waiting), 'run')} had not ended when this was written."


def _changes(baseline: ArmFacts, arm: ArmFacts) -> str:
    """In what its factors differ from the baseline's."""
    old, new = baseline.experiment.factors, arm.experiment.factors
    changed = [f"{name} {new[name]} in place of {old.get(name)}" for name in new if new[name] != old.get(name)]
    if arm.code_hash != baseline.code_hash:
        changed.append("another program, which Method shows")
    return ", ".join(changed) or f"its environment to train on is another than that of {baseline.name}"


def _seeds_needed(facts: StudyFacts, arm: ArmFacts) -> int | None:
    """Roughly, in the normal approximation: half the width of an interval falls with the root of the number of seeds,
    and an effect is found with probability POWER if it is (z_alpha + z_power) / z_alpha times as large as that half."""
    finding = arm.finding
    seeds = len(arm.search.scores)
    if finding is None or finding.ci_low is None or finding.ci_high is None or seeds < 2:
        return None
    normal = NormalDist()
    found_at = normal.inv_cdf(1 - facts.charter.rule.alpha / 2)
    half_width = (finding.ci_high - finding.ci_low) / 2 * (found_at + normal.inv_cdf(POWER)) / found_at
    needed = math.ceil(seeds * (half_width / facts.charter.rule.min_effect) ** 2)
    return needed if needed > seeds else None
