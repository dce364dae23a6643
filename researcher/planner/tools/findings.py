"""The tool `findings`: what all studies of a database found, nearest first."""

from __future__ import annotations

import json
from functools import cache

from pydantic import Field

from experiments_db import ExperimentStore, Finding, FindingKind
from researcher.memory.recall import distance
from researcher.memory.subject import StudySubject, subject_of
from researcher.planner.texts import as_data, clip, number, page, settings_as_text
from researcher.planner.tools.base import ToolArguments, ToolRefused
from researcher.planner.tools.sources import ToolSources, study_tool

MAX_FINDINGS = 30
RECIPE_CHARS = 500
SUMMARY_CHARS = 1_200
ABOUT_FINDINGS = (
    "Read what studies have found, nearest to this study first: comparisons with effects and intervals, predictions "
    "beside what happened, suspect and disqualified arms with the reason, lessons, and arms that were only explored. "
    "Nulls and retracted findings are included; so are the programs behind them."
)


class FindingsArguments(ToolArguments):
    kind: FindingKind | None = Field(default=None, description="Only findings of this kind.")
    words: tuple[str, ...] = Field(
        default=(), description="Words that environment, model, recipe or summary must have, such as nano and lr."
    )
    skip: int = Field(default=0, ge=0, description="How many to leave out first, for the next ones.")
    code_of: str = Field(
        default="", description="Id of a finding: shows it whole, with its recipe and the program of its arm, instead."
    )
    offset: int = Field(default=0, ge=0, description="With code_of: the character to begin with.")


@study_tool("findings", ABOUT_FINDINGS)
def findings_tool(sources: ToolSources, arguments: FindingsArguments) -> str:
    is_framed = sources.store.find_charter(sources.study_id) is not None
    return show_findings(sources.store, arguments, subject_of(sources.charter()) if is_framed else None)


def show_findings(store: ExperimentStore, arguments: FindingsArguments, subject: StudySubject | None = None) -> str:
    """Return findings, nearest to the subject and newest first, or one with its recipe and program.

    Raises ToolRefused if there is no finding of the id in `code_of`.
    """
    kinds = list(FindingKind) if arguments.kind is None else [arguments.kind]
    test_split_of = cache(lambda study_id: _test_split(store, study_id))
    found = [
        each for each in store.list_findings(kinds=kinds) if each.split not in ("test", test_split_of(each.study_id))
    ]
    if arguments.code_of:
        return _code(store, found, arguments)
    fitting = [each for each in reversed(found) if _has_words(each, arguments.words)]
    if not fitting:
        return f"none of {len(found)} findings fits"
    if subject is not None:
        fitting.sort(key=lambda each: distance(each, subject))
    shown = fitting[arguments.skip : arguments.skip + MAX_FINDINGS]
    end = arguments.skip + len(shown)
    more = f"; the next with skip {end}" if end < len(fitting) else ""
    lines = as_data("\n".join(map(_show_finding, shown)))
    return f"{arguments.skip + 1} to {end} of {len(fitting)} findings{more}\n{lines}"


def _test_split(store: ExperimentStore, study_id: str) -> str:
    """Return the split of a study that nothing may be chosen by."""
    stored = store.find_charter(study_id)
    return "test" if stored is None else str(stored.document.get("test_split", "test"))


def _has_words(finding: Finding, words: tuple[str, ...]) -> bool:
    if not words:
        return True
    about = f"{finding.environment_name} {finding.model} {finding.scope}"
    text = f"{about} {json.dumps(finding.recipe)} {finding.summary}".lower()
    return all(word.lower() in text for word in words)


def _show_finding(finding: Finding) -> str:
    retracted = "" if finding.retracted_at is None else f"RETRACTED: {finding.retraction}; "
    summary = clip(" ".join(finding.summary.split()), SUMMARY_CHARS)
    about = (
        f"[{finding.kind} {finding.id}] {retracted}in {finding.environment_name} with {finding.model}, study "
        f"{finding.study_id}, scope {finding.scope or 'unknown'}"
    )
    if finding.kind is not FindingKind.COMPARISON:
        return f"{about}: {summary}"
    interval = f"[{number(finding.ci_low)}, {number(finding.ci_high)}]"
    # What was compared comes first, so that it is not what is left out.
    compared = {name: finding.recipe[name] for name in ("arm", "baseline") if name in finding.recipe}
    whole = json.dumps({**compared, **finding.recipe}, ensure_ascii=False)
    recipe = clip(whole, RECIPE_CHARS) if finding.recipe else ""
    return (
        f"{about}: {finding.verdict}, effect {number(finding.effect)} {interval}, p {number(finding.p_adjusted)}, "
        f"{len(finding.run_ids)} runs: {summary} {recipe}"
    )


def _code(store: ExperimentStore, found: list[Finding], arguments: FindingsArguments) -> str:
    finding = next((each for each in found if each.id == arguments.code_of), None)
    if finding is None:
        raise ToolRefused(f"there is no finding {arguments.code_of!r}: findings without code_of lists them")
    arms = store.list_experiments(finding.study_id)
    code = next((arm.program_code for arm in arms if arm.id == finding.experiment_id), "")
    recipe = settings_as_text(finding.recipe) or "not on record"
    program = code or "the arm of this finding has no program of its own"
    return page(f"{finding.summary}\nrecipe:\n{recipe}\nprogram:\n{program}", arguments.offset)
