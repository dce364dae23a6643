"""Findings of any kind as they are listed: each with what later studies say about it, and in one line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from experiments_db import ExperimentStore, Finding, FindingKind, Outcome
from researcher.memory.standing import Standing, describe_comparison, describe_standing, list_known, weigh


@dataclass(frozen=True, slots=True)
class ListedFinding:
    """A finding; a comparison that has a recipe has its standing among the others on its question."""

    finding: Finding
    standing: Standing | None = None

    @property
    def is_telling(self) -> bool:
        """True unless it decided nothing, or is about an arm that was only explored."""
        match self.finding.kind:
            case FindingKind.COMPARISON:
                return not self.finding.verdict.is_open
            case FindingKind.PREDICTION:
                return self.finding.details.get("outcome") in (Outcome.SUPPORTED, Outcome.REFUTED)
            case kind:
                return kind is not FindingKind.EXPLORED

    @property
    def changes(self) -> frozenset[str]:
        """The factors and settings in which its arm differs from the baseline."""
        if self.standing is None:
            return frozenset(self.finding.details.get("changes", ()))
        return frozenset((*self.standing.known.recipe.factors, *self.standing.known.recipe.differences))

    @property
    def what(self) -> str:
        """The comparison in words, or the summary of a finding of another kind."""
        return self.finding.summary if self.standing is None else describe_comparison(self.standing.known.recipe)

    def describe(self, digest: str = "") -> str:
        """Return it in one line that begins with its kind and its id.

        With the `digest` of an environment, the line says if the finding is on another version of it.
        """
        finding = self.finding
        other = "on another version of the environment; " if digest not in ("", finding.environment_digest) else ""
        if self.standing is not None:
            said = describe_standing(self.standing)
        else:
            # What takes a finding back comes first, because a long line is cut at its end.
            retracted = "" if finding.retracted_at is None else f"retracted: {finding.retraction}; "
            said = f"{retracted}{finding.summary}; study {finding.study_id}"
        return f"[{finding.kind} {finding.id}] {other}{in_one_line(said)}"


def in_one_line(text: str) -> str:
    """Return words of a planner on one line, without characters that command a terminal."""
    return " ".join("".join(character if character.isprintable() else " " for character in text).split())


def list_all(store: ExperimentStore) -> list[ListedFinding]:
    """Return the findings of all studies by kind, oldest first.

    A comparison that a later plan of its study has judged again is left out.
    """
    compared = [ListedFinding(item.known.finding, item) for item in weigh(list_known(store))]
    others = store.list_findings(kinds=[kind for kind in FindingKind if kind is not FindingKind.COMPARISON])
    order = list(FindingKind)
    return [*compared, *sorted(map(ListedFinding, others), key=lambda item: order.index(item.finding.kind))]


def with_standing(store: ExperimentStore, findings: Sequence[Finding]) -> list[ListedFinding]:
    """Return findings as they are listed, in the same order."""
    questions = {item.question for item in findings if item.question}
    standings = {item.known.finding.id: item for item in weigh(list_known(store, questions))} if questions else {}
    return [ListedFinding(item, standings.get(item.id)) for item in findings]
