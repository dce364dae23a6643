"""The findings of a database on one question: which agree, which contradict each other, and their words."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from experiments_db import ExperimentStore, Finding, FindingKind, Verdict
from researcher.memory.recipe import Recipe, recipe_from_json
from researcher.question.flags import value_as_text


@dataclass(frozen=True, slots=True)
class KnownFinding:
    """A comparison with its recipe read. It `is_suspect` if its planner does not trust the arm."""

    finding: Finding
    recipe: Recipe
    is_suspect: bool = False

    @property
    def question(self) -> str:
        return self.finding.question

    @property
    def is_decided(self) -> bool:
        return not self.finding.verdict.is_open

    @property
    def is_significant(self) -> bool:
        """True if the arms are shown to differ; the p value of a question for equality is not that of a difference."""
        if self.finding.details.get("margin") is not None:
            return self.finding.verdict is Verdict.DIFFERENT
        p = self.finding.p_adjusted
        return p is not None and p < 1 - self.finding.confidence


@dataclass(frozen=True, slots=True)
class Standing:
    """A finding among the others on its question.

    `replications` are the ids of other studies that reached the same verdict on other seeds. `contradicted_by` are the
    ids of later findings that contradict it.
    """

    known: KnownFinding
    replications: tuple[str, ...] = ()
    contradicted_by: tuple[str, ...] = ()

    @property
    def is_prior(self) -> bool:
        """True if later studies may rely on it: decided, and neither retracted, contradicted nor suspect."""
        known = self.known
        is_doubted = known.finding.retracted_at is not None or known.is_suspect or self.contradicted_by
        return known.is_decided and not is_doubted


def list_known(store: ExperimentStore, questions: Collection[str] | None = None) -> list[KnownFinding]:
    """Return the comparisons of all studies, or those on some questions, oldest first.

    One that a later plan of the same study has judged again is left out.
    """
    newest: dict[tuple[str, str | None, str | None], Finding] = {}
    for finding in store.list_findings(questions=questions):
        if not finding.recipe:
            continue
        key = (finding.study_id, finding.experiment_id, finding.baseline_id)
        newest.pop(key, None)
        newest[key] = finding
    doubts = store.list_findings(kinds=(FindingKind.SUSPECT,))
    suspects = {item.experiment_id for item in doubts if item.retracted_at is None}
    return [know(finding, is_suspect=finding.experiment_id in suspects) for finding in newest.values()]


def know(finding: Finding, *, is_suspect: bool = False) -> KnownFinding:
    """Return a comparison that has a recipe with the recipe read."""
    return KnownFinding(finding, recipe_from_json(finding.recipe), is_suspect)


def find_alike(known: Iterable[KnownFinding], recipe: Recipe) -> list[KnownFinding]:
    """Return the findings on the same question as the recipe, in the order given."""
    question = recipe.question
    return [item for item in known if item.question == question]


def weigh(known: Sequence[KnownFinding]) -> list[Standing]:
    """Return the standing of each finding among all of them, in the same order."""
    by_question: dict[str, list[KnownFinding]] = {}
    for item in known:
        by_question.setdefault(item.question, []).append(item)
    return [_weigh(item, [other for other in by_question[item.question] if _is_other(item, other)]) for item in known]


def agrees(one: KnownFinding, other: KnownFinding) -> bool:
    """Return whether two findings on the same question have the same verdict, which decides."""
    return one.is_decided and one.finding.verdict is other.finding.verdict


def contradicts(later: KnownFinding, earlier: KnownFinding) -> bool:
    """Return whether a later finding on the same question speaks against an earlier one.

    Both rules need another verdict than the earlier one.

    1. Both are significant, and their effects have opposite signs.
    2. The later study was able to see the difference, and its interval excludes the earlier effect by more than the
       charter's `min_effect`. It was able to see it if it has `min_seeds` runs of the arm, and if half of its interval
       is at most the larger one of both effects.

    A later finding with the same verdict agrees, whatever its effect. One that is neither says nothing about the
    earlier one.
    """
    now, then = later.finding, earlier.finding
    if not earlier.is_decided or now.verdict is then.verdict or now.effect is None or then.effect is None:
        return False
    if later.is_significant and earlier.is_significant and now.effect * then.effect < 0:
        return True
    if now.ci_low is None or now.ci_high is None or later.recipe.runs < later.recipe.min_seeds or now.p_value is None:
        return False
    is_able = (now.ci_high - now.ci_low) / 2 <= max(abs(now.effect), abs(then.effect))
    distance = max(now.ci_low - then.effect, then.effect - now.ci_high)
    return is_able and distance > later.recipe.min_effect


def _weigh(item: KnownFinding, others: Sequence[KnownFinding]) -> Standing:
    valid = [other for other in others if other.finding.retracted_at is None]
    later = [other for other in valid if other.finding.created_at > item.finding.created_at]
    return Standing(
        item,
        replications=tuple(other.finding.study_id for other in valid if _finds_again(other, item)),
        contradicted_by=tuple(other.finding.id for other in later if contradicts(other, item)),
    )


def _finds_again(other: KnownFinding, item: KnownFinding) -> bool:
    """Return whether another study has the same verdict on other seeds; a run of the same seed may be the same run."""
    return agrees(other, item) and not set(other.finding.details["seeds"]) & set(item.finding.details["seeds"])


def _is_other(one: KnownFinding, other: KnownFinding) -> bool:
    return one.finding.study_id != other.finding.study_id


MOST_DIFFERENCES = 6


def describe_standing(standing: Standing) -> str:
    """Return a comparison in one line, with what later studies say about it."""
    finding, recipe = standing.known.finding, standing.known.recipe
    parts: list[str] = []
    # What takes a finding back comes first, because prompts cut a long line at its end.
    if finding.retracted_at is not None:
        parts.append(f"retracted: {finding.retraction}")
    if standing.contradicted_by:
        parts.append(f"contradicted by {', '.join(standing.contradicted_by)}")
    if standing.known.is_suspect:
        parts.append("its planner calls it suspect")
    parts += [
        f"{describe_comparison(recipe)}: {describe_effect(finding)}",
        finding.verdict.value,
        f"{recipe.runs} runs of the arm, study {finding.study_id}",
    ]
    if standing.replications:
        parts.append(f"found again by {', '.join(standing.replications)}")
    if purpose := finding.details.get("purpose"):
        parts.append(f"its purpose: {purpose}")
    return "; ".join(parts)


def describe_comparison(recipe: Recipe) -> str:
    """Return the arm and its baseline with what differs between them."""
    return f"{recipe.arm.name} against {recipe.baseline.name} ({describe_changes(recipe)})"


def describe_changes(recipe: Recipe) -> str:
    """Return what differs between an arm and its baseline."""
    changes = [
        f"{name} {value_as_text(was)} -> {value_as_text(now)}" for name, (was, now) in recipe.differences.items()
    ]
    if len(changes) > MOST_DIFFERENCES:
        changes = [*changes[:MOST_DIFFERENCES], f"{len(changes) - MOST_DIFFERENCES} more"]
    if recipe.arm.program != recipe.baseline.program:
        changes.append(f"program {recipe.baseline.program[:8]} -> {recipe.arm.program[:8]}")
    if recipe.arm.train_environment != recipe.baseline.train_environment:
        trained = (each.train_environment or recipe.environment_name for each in (recipe.baseline, recipe.arm))
        changes.append(f"trained on {' -> '.join(trained)}")
    return ", ".join(changes) or "nothing differs"


def describe_effect(finding: Finding) -> str:
    """Return the effect with its interval."""
    if finding.effect is None:
        return "not compared"
    if finding.ci_low is None or finding.ci_high is None:
        return f"{finding.effect:+.3f}"
    return f"{finding.effect:+.3f} [{finding.ci_low:+.3f}, {finding.ci_high:+.3f}]"
