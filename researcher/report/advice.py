"""What a study did, recommends, leaves open and does not show, in sentences that follow from its facts by rules."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any

from experiments_db import ArmFailure, Outcome, SearchArm
from researcher.charter import Charter, JudgedBy
from researcher.equal_amounts import in_force
from researcher.judge.size_words import describe_target
from researcher.question.wording import title_of_environment
from researcher.record.log import BUDGET_USED_UP
from researcher.report.formats import (
    count,
    count_kinds,
    format_score,
    format_value,
    is_known,
    join_names,
)
from researcher.report.numbers.counts import RunCounts, RunEnd
from researcher.report.numbers.facts import ArmFacts, StudyFacts

USUAL_EPISODES = 100
"""The number of held-out episodes below which one episode is more than a hundredth of a score."""
POWER = 0.8
"""The usual goal for the probability of finding an effect that exists."""
FEW_PAIRS = 3
"""The largest number of pairs of arms that are named one by one."""

FAILED_SCORES = {
    "base": "counted with the score before training",
    "worst": "counted with the worst score",
}
MOST_LEADERS = 3


def describe_work(facts: StudyFacts) -> list[str]:
    """Return what was trained and measured, sentence by sentence; the answer stands before it."""
    charter = facts.charter
    arms = count(len(facts.arms) - len(facts.rejected_arms), "arm")
    if facts.exploration is not None:
        arms = f"{count(len(facts.exploration.explored), 'arm')} explored and {arms} compared"
    sentences = [
        f"{arms} on {title_of_environment(charter.environment_name)},"
        f" over {count(facts.counts.seeds, 'seed')}. "
        f"{describe_runs(facts)}",
        f"A score is the mean reward of {charter.eval_episodes} held-out episodes.{_unit(facts)}",
    ]
    tested = [arm for arm in facts.arms if arm.test is not None]
    if tested:
        means = ", ".join(f"{arm.name} {format_score(arm.test.mean)}" for arm in tested if arm.test is not None)
        sentences.append(f"On the {charter.test_split} split, which took no part in any choice: {means}.")
    return sentences


def _unit(facts: StudyFacts) -> str:
    """Return how a score is read as a share, if each reward is 1 for a solved task and 0 for any other."""
    best = next((arm.final_mean for arm in facts.ranked if is_known(arm.final_mean)), None)
    if best is None or not facts.is_solving:
        return ""
    return (
        " Every reward is 1 for a solved task and 0 for any other, so a score is the share of solved tasks:"
        f" {format_score(best)} is {100 * best:.3g} %."
    )


def describe_runs(facts: StudyFacts) -> str:
    """Return how the runs ended, and how many of those that count failed; exploring runs are counted apart."""
    return " ".join([_describe_runs(facts.counts, facts.charter), *_describe_exploration(facts)])


def _describe_exploration(facts: StudyFacts) -> Iterator[str]:
    if facts.exploration is not None:
        runs, cost = count(facts.exploration.short_runs, "short run"), f"{facts.exploration.cost:.3g}"
        yield f"Besides, {runs} of exploration, which cost {cost} full runs; no result rests on them."


def _describe_runs(counts: RunCounts, charter: Charter) -> str:
    if not counts.begun:
        return "No run was begun."
    early, failed = count_kinds(counts.early), count_kinds(counts.failed_without_score)
    words = {
        RunEnd.FINISHED: "finished",
        RunEnd.EARLY: f"ended early ({early}), scored with what had been learned by then",
        RunEnd.FAILED: f"failed without a score ({failed}), {FAILED_SCORES[charter.failed_score]}",
        RunEnd.MISSING: "without a score, broken by the system",
        RunEnd.BUDGET: "without a score, stopped by the budget",
        RunEnd.OPEN: "not ended",
    }
    sentences = [f"{number} {words[end]}" for end in RunEnd if (number := counts.ended(end))]
    sentences.append(describe_failures(counts))
    if counts.retried:
        sentences.append(f"{len(counts.retried)} trained again after the system had broken them")
    return f"{count(counts.begun, 'run')} begun, one for each arm and seed: {'; '.join(sentences)}."


def describe_failures(counts: RunCounts) -> str:
    """Return how many of the runs that count failed by their own doing, early or without a score."""
    kinds = f" ({count_kinds(counts.failures)})" if counts.failed else ""
    return f"{counts.failed} of the {counts.counting} that count failed by their own doing{kinds}"


def limitations(facts: StudyFacts) -> list[str]:
    """Return what the study does not show, or shows less clearly than it may seem."""
    charter = facts.charter
    models = sorted({str(arm.experiment.job.get("model")) for arm in facts.arms if arm.experiment.job.get("model")})
    of_model = f" with the model {join_names(models)}" if models else ""
    found = [
        f"All of it is about {title_of_environment(charter.environment_name)}{of_model};"
        " other tasks and models were not looked at."
    ]
    if facts.sample_size is not None and charter.sample_size is not None and facts.sample_size.power < POWER:
        size = facts.sample_size
        wanted = describe_target(charter.sample_size.target_effect, is_worse=size.finds_worse, margin=size.margin)
        target = "what was found before is found again" if size.confirms else wanted
        found.append(f"By the size of the first plan, {target} with a probability of {size.power:.2f} only.")
    found += [*_of_short_runs(facts), *_of_precision(facts), *_of_runs(facts), *_of_untested(facts), *_of_test(facts)]
    if charter.assumptions:
        found.append(f"Assumed, because the topic did not say: {count(len(charter.assumptions), 'thing')}; see Method.")
    return found


def _of_short_runs(facts: StudyFacts) -> Iterator[str]:
    if facts.exploration is None:
        return
    named = {arm.name for arm in facts.arms}
    apart = [arm for arm in facts.exploration.explored if arm.name not in named]
    yield (
        f"An exploring score is that of one seed over {facts.exploration.episodes} held-out tasks, so the order of the "
        f"explored arms shows nothing by itself; {len(apart)} of these {len(facts.exploration.explored)} arms were not "
        "confirmed."
    )


def _of_precision(facts: StudyFacts) -> Iterator[str]:
    charter = facts.charter
    seeds = [len(arm.search.scores) for arm in facts.arms if arm.search.scores]
    if seeds and min(seeds) < charter.rule.min_seeds:
        yield f"Some arms have {count(min(seeds), 'run')} that count; a verdict needs {charter.rule.min_seeds}."
    widths = [arm.search.half_width for arm in facts.arms if is_known(arm.search.half_width)]
    if widths and max(widths) > charter.rule.min_effect:
        yield (
            f"Means are known to within {format_score(max(widths))} at worst, more than the smallest effect that "
            f"counts, {charter.rule.min_effect:g}."
        )
    if charter.eval_episodes < USUAL_EPISODES:
        yield f"A score has {charter.eval_episodes} episodes: one of them is {100 / charter.eval_episodes:.3g} % of it."


def _of_runs(facts: StudyFacts) -> Iterator[str]:
    counts = facts.counts
    if counts.begun:
        yield f"Of the runs, {describe_failures(counts)}; {len(counts.without_score)} have no score."
    if facts.decisions and facts.decisions[-1].details.get(BUDGET_USED_UP):
        yield "The budget ended the study before its last plan was done; a raised one goes on with it."
    if facts.rejected_arms:
        yield f"{count(len(facts.rejected_arms), 'arm')} could not be run."


def _of_untested(facts: StudyFacts) -> Iterator[str]:
    """Yield the pairs of arms that no comparison and no hypothesis covers."""
    others = [arm.name for arm in facts.arms if arm.search.scores and not arm.experiment.is_baseline]
    tested = [{*item.contrast.arms, *item.contrast.against} for item in facts.contrasts]
    pairs = list(combinations(others, 2))
    untested = [pair for pair in pairs if not any(names.issuperset(pair) for names in tested)]
    if untested and len(untested) <= FEW_PAIRS:
        yield f"Not tested: {'; '.join(f'{one} against {other}' for one, other in untested)}."
    elif untested:
        yield f"Not tested: {len(untested)} of the {len(pairs)} differences between arms other than the baseline."


def _of_test(facts: StudyFacts) -> Iterator[str]:
    charter = facts.charter
    tested = [arm for arm in facts.arms if arm.test is not None]
    if not tested:
        yield f"The {charter.test_split} split was not scored, so the choice is not confirmed."
    elif len(tested) == 1:
        yield f"On the {charter.test_split} split one arm alone has scores, which confirms no difference."
    elif charter.judged_by is not JudgedBy.FINAL:
        yield (
            f"The {charter.test_split} split was scored at the end of training alone: it confirms no difference in "
            f"{charter.judged}."
        )
    lacking = [item for arm in tested for item in arm.runs if item.counts and item.test is None]
    if lacking:
        yield f"On the {charter.test_split} split {count(len(lacking), 'finished run')} of its arms lack a score."


def list_changes(baseline: ArmFacts, arm: ArmFacts) -> list[str]:
    """Return the differences of an arm, one clause each."""
    changed = [f"{name} {format_value(new)} in place of {format_value(old)}" for name, new, old in _jobs(baseline, arm)]
    if arm.code_hash != baseline.code_hash:
        changed.append("another program, which is shown below")
    if arm.experiment.train_environment != baseline.experiment.train_environment:
        changed.append(f"trained on {arm.experiment.train_environment or 'the environment that judges it'}")
    return changed


def _jobs(baseline: ArmFacts, arm: ArmFacts) -> Iterator[tuple[str, Any, Any]]:
    old, new = in_force(baseline.experiment.job), in_force(arm.experiment.job)
    named = dict.fromkeys((*arm.experiment.factors, *arm.experiment.job, *baseline.experiment.job))
    for name in named:
        if name in new and name in old and new[name] != old[name]:
            yield name, new[name], old[name]


def next_steps(facts: StudyFacts) -> list[str]:
    """Return one sentence for each thing that was left open; empty if there is none."""
    return [*_of_undecided(facts), *_of_ablations(facts), *_of_exploration(facts)]


def _of_undecided(facts: StudyFacts) -> Iterator[str]:
    opened = [arm.name for arm in facts.arms if arm.is_open]
    if opened:
        yield f"Compare again on fresh seeds: {join_names(opened)}."


def _of_ablations(facts: StudyFacts) -> Iterator[str]:
    if facts.confirmation is None or facts.winner is None or not facts.winner.is_kept:
        return
    for item in facts.confirmation.ablations:
        if item.outcome is not Outcome.SUPPORTED:
            yield f"Go on from {item.name}: the gain of {facts.confirmation.winner} is not shown to need that part."


def _of_exploration(facts: StudyFacts) -> Iterator[str]:
    if facts.exploration is None:
        return
    sign, named = facts.charter.of_scores.sign, {arm.name for arm in facts.arms}
    explored = facts.exploration.explored
    baseline = next((arm for arm in explored if arm.experiment.is_baseline), None)
    ahead = [
        arm.name
        for arm in facts.exploration.leaders(sign)
        if arm.name not in named and baseline is not None and _is_ahead(arm, baseline, sign)
    ]
    if ahead:
        yield f"Confirm what led the baseline in exploration and was not compared: {join_names(ahead[:MOST_LEADERS])}."
    pretending = [arm.name for arm in explored if arm.failure is ArmFailure.NOT_AS_CLAIMED]
    if pretending:
        yield f"Mend what is not what it claims to be: {join_names(pretending)}."


def _is_ahead(arm: SearchArm, baseline: SearchArm, sign: float) -> bool:
    """Return whether an arm has the better exploring score at a rung that both have reached."""
    scores = {item.share: item.score for item in baseline.scored}
    last = arm.last
    other = None if last is None else scores.get(last.share)
    return last is not None and last.score is not None and other is not None and sign * (last.score - other) > 0
