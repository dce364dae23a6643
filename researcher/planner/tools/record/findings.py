"""The tool `findings`: decided comparisons of all studies in the database, retracted ones marked."""

from __future__ import annotations

import json
from functools import cache

from pydantic import Field

from experiments_db import Finding
from researcher.planner.tools.base import PlannerTool, ToolArguments, ToolRefused
from researcher.planner.tools.sources import ToolSources
from researcher.planner.tools.texts import as_data, clip, number, page, settings_as_text

MAX_SHOWN = 30
RECIPE_CHARS = 500


class FindingsArguments(ToolArguments):
    environment: str = Field(default="", description="Part of the name of the environment; empty means any.")
    model: str = Field(default="", description="Part of the name of the model.")
    factor: str = Field(default="", description="A word in the recipe or the summary, such as lr or reward.")
    code_of: str = Field(
        default="", description="Id of a finding: shows its whole recipe and the program of its arm instead."
    )
    offset: int = Field(default=0, ge=0, description="With code_of: the character to begin with.")


def findings_tool(sources: ToolSources) -> PlannerTool:
    """Return the tool."""

    def call(arguments: FindingsArguments) -> str:
        found = [each for each in sources.store.list_findings() if _is_open(sources, each)]
        if arguments.code_of:
            return _code(sources, found, arguments)
        environment_of = cache(lambda study_id: _environment(sources, study_id))
        fitting = [
            each
            for each in found
            if arguments.environment.lower() in f"{environment_of(each.study_id)} {json.dumps(each.recipe)}".lower()
            and arguments.model.lower() in json.dumps(each.recipe).lower()
            and arguments.factor.lower() in f"{json.dumps(each.recipe)} {each.summary}".lower()
        ]
        if not fitting:
            return f"none of {len(found)} findings fits"
        lines = [_show(each, environment_of(each.study_id)) for each in fitting[-MAX_SHOWN:]]
        left_out = f" (the newest {MAX_SHOWN})" if len(fitting) > MAX_SHOWN else ""
        return f"{len(fitting)} findings{left_out}\n{as_data(chr(10).join(lines))}"

    return PlannerTool(
        "findings",
        "Read what earlier studies and this one have found, with effects and intervals, and the programs behind them. "
        "Negative and retracted findings are included.",
        FindingsArguments,
        call,
    )


def _is_open(sources: ToolSources, finding: Finding) -> bool:
    """Return whether a finding is about a split that may be chosen by: none is that was the test split of its study."""
    stored = sources.store.find_charter(finding.study_id)
    test = "test" if stored is None else stored.document.get("test_split", "test")
    return finding.split not in (test, "test")


def _environment(sources: ToolSources, study_id: str) -> str:
    stored = sources.store.find_charter(study_id)
    return "" if stored is None else str(stored.document.get("environment_name", ""))


def _show(finding: Finding, environment: str) -> str:
    interval = f"[{number(finding.ci_low)}, {number(finding.ci_high)}]"
    retracted = "" if finding.retracted_at is None else f" RETRACTED: {finding.retraction}"
    # What was compared comes first, so that it is not what is left out.
    compared = {name: finding.recipe[name] for name in ("arm", "baseline") if name in finding.recipe}
    whole = json.dumps({**compared, **finding.recipe}, ensure_ascii=False)
    recipe = clip(whole, RECIPE_CHARS) if finding.recipe else ""
    return (
        f"{finding.id} in {environment}, study {finding.study_id}: {finding.verdict}, effect {number(finding.effect)} "
        f"{interval}, p {number(finding.p_adjusted)}, {len(finding.run_ids)} runs: {finding.summary} "
        f"{recipe}{retracted}"
    )


def _code(sources: ToolSources, found: list[Finding], arguments: FindingsArguments) -> str:
    finding = next((each for each in found if each.id == arguments.code_of), None)
    if finding is None:
        raise ToolRefused(f"there is no finding {arguments.code_of!r}: findings without code_of lists them")
    arms = sources.store.list_experiments(finding.study_id)
    code = next((arm.program_code for arm in arms if arm.id == finding.experiment_id), "")
    recipe = settings_as_text(finding.recipe) or "not on record"
    program = code or "the arm of this finding has no program of its own"
    return page(f"recipe:\n{recipe}\nprogram:\n{program}", arguments.offset)
