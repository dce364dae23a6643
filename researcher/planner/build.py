"""The construction of the planner with a language model, alone or with the rules planner as fallback."""

from __future__ import annotations

import os
from collections.abc import Callable

from researcher.charter import FrameRequest
from researcher.errors import BudgetExceeded, LanguageModelUnavailable, ResearchError
from researcher.execution.background import BackgroundTasks
from researcher.planner.base import Planner
from researcher.planner.conversation.backoff import Backoff
from researcher.planner.conversation.chat import Chat, ChatSettings
from researcher.planner.fallback import answer_by_rules
from researcher.planner.language_model.stored_arms import StoredArms
from researcher.planner.llm import LLMPlanner
from researcher.planner.tools.base import Toolbox
from researcher.record.budget import BudgetLedger
from researcher.record.log import StudyLog
from researcher.study.settings import StudySettings


def build_language_planner(
    settings: StudySettings,
    request: FrameRequest,
    log: StudyLog,
    ledger: BudgetLedger,
    background: BackgroundTasks,
    toolbox: Callable[[], Toolbox] = lambda: Toolbox(()),
) -> Planner:
    """Return the planner that the settings ask for.

    `toolbox` returns the tools that the model may look with. Raises PlannerError if the model has no name or no key.
    """
    planner = LLMPlanner(
        build_chat(settings, settings.model or "", log, ledger, background, toolbox),
        environment=request.environment,
        program=settings.programs[0].code if settings.programs else None,
        records=StoredArms(log.store, log.study_id),
    )
    failures = _failures_for_rules(settings)
    if not failures:
        return planner
    return answer_by_rules(planner, settings, failures=failures, report=log.warn)


def build_chat(
    settings: StudySettings,
    model: str,
    log: StudyLog,
    ledger: BudgetLedger,
    background: BackgroundTasks,
    toolbox: Callable[[], Toolbox] = lambda: Toolbox(()),
) -> Chat:
    """Return the questions of a study to a language model. Raises PlannerError if it has no name or no key."""
    return Chat(
        ChatSettings(
            model=model,
            base_url=os.environ.get("OPENAI_BASE_URL"),
            api_key=os.environ.get("OPENAI_API_KEY", ""),
            price=settings.llm_price,
            tools_as_json=settings.llm_tools == "json",
            deadline_s=60 * settings.llm_deadline,
        ),
        store=log.store,
        study_id=log.study_id,
        ledger=ledger,
        toolbox=toolbox,
        backoff=Backoff(model, patience_s=60 * settings.llm_patience, sleep=background.sleep, report=log.warn),
        carry=background.carry,
        report=log.note,
    )


def _failures_for_rules(settings: StudySettings) -> tuple[type[ResearchError], ...]:
    """Return the errors after which the rules planner answers in the model's place."""
    failures: list[type[ResearchError]] = [LanguageModelUnavailable] if settings.rules_answer_outages else []
    return (*failures, BudgetExceeded) if settings.planner == "hybrid" else tuple(failures)
