"""The reviewer of a study: a second look at the arm that leads, before it is confirmed; it decides nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from researcher.charter import Charter
from researcher.execution.background import BackgroundTasks
from researcher.history import Objection
from researcher.planner.tools.base import Toolbox
from researcher.record.budget import BudgetLedger
from researcher.record.log import StudyLog
from researcher.reviewer.reward_probe import SandboxedRewards
from researcher.reviewer.rules import RulesReviewer
from researcher.study.settings import StudySettings
from swarm.environments import Environment
from swarm.sandbox import Sandbox

RULES, NONE = "rules", "none"


class Reviewer(Protocol):
    """The author of objections."""

    @property
    def name(self) -> str:
        """`rules`, or `llm:<model>`."""
        ...

    def review(self, charter: Charter, arm: str) -> tuple[Objection, ...]:
        """Return the objections to an arm of the study; empty if there are none.

        Raises PlannerError if the reviewer gives no usable answer.
        """
        ...


def build_reviewer(
    settings: StudySettings,
    log: StudyLog,
    ledger: BudgetLedger,
    background: BackgroundTasks,
    *,
    open_environment: Callable[[str], Environment],
    folder: Path,
    sandbox: Sandbox | None,
    toolbox: Toolbox,
) -> Reviewer | None:
    """Return the reviewer that the settings ask for; None for none. Raises PlannerError if a model has no key.

    `toolbox` has the tools with which a language model looks at the arm.
    """
    # Only a search has an arm that leads, and a language model may make one of a topic later.
    wanted = settings.reviewer or RULES
    if wanted == NONE:
        return None
    if wanted == RULES:
        return RulesReviewer(log.store, log.study_id, open_environment, SandboxedRewards(folder, sandbox))
    # Imported here because most studies have no language model, and its SDK takes a second to load.
    from researcher.planner.build import build_chat
    from researcher.reviewer.llm import LLMReviewer

    chat = build_chat(settings, wanted, log, ledger, background, toolbox)
    return LLMReviewer(chat, log.store, log.study_id)
