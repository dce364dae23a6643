"""The construction of the planners that ask in words: a language model, alone or with rules, or an agent outside."""

from __future__ import annotations

import os

from researcher.charter import FrameRequest
from researcher.execution.background import BackgroundTasks
from researcher.planner.base import Asker, Planner
from researcher.planner.conversation.backoff import Backoff
from researcher.planner.conversation.chat import Chat, ChatSettings
from researcher.planner.external.question_queue import QuestionQueue
from researcher.planner.fallback import answer_by_rules
from researcher.planner.llm import LLMPlanner, StoredArms
from researcher.planner.tools.base import NO_TOOLS, Toolbox
from researcher.record.budget import BudgetLedger
from researcher.record.log import StudyLog
from researcher.study.overview import EXTERNAL
from researcher.study.settings import StudySettings


def build_planner_in_words(
    settings: StudySettings,
    request: FrameRequest,
    log: StudyLog,
    ledger: BudgetLedger,
    background: BackgroundTasks,
    toolbox: Toolbox = NO_TOOLS,
) -> Planner:
    """Return the planner that the settings ask for, with rules as fallback where the settings say so.

    A language model looks with the tools of `toolbox`. For an external planner these are the tools that need
    the process of the study. Raises PlannerError if a model has no name or no key.
    """
    asker: Asker
    if settings.planner == EXTERNAL:
        deadline_s = None if settings.answer_deadline is None else 60 * settings.answer_deadline
        asker = QuestionQueue(
            log.store, log.study_id, sleep=background.sleep, report=log.note, deadline_s=deadline_s, toolbox=toolbox
        )
    else:
        asker = build_chat(settings, settings.model or "", log, ledger, background, toolbox)
    planner = LLMPlanner(
        asker,
        environment=request.environment,
        program=settings.programs[0].code if settings.programs else None,
        records=StoredArms(log.store, log.study_id),
    )
    return answer_by_rules(planner, settings, report=log.warn) if settings.planner == "hybrid" else planner


def build_chat(
    settings: StudySettings,
    model: str,
    log: StudyLog,
    ledger: BudgetLedger,
    background: BackgroundTasks,
    toolbox: Toolbox = NO_TOOLS,
) -> Chat:
    """Return the questions of a study to a language model. Raises PlannerError if it has no name or no key."""
    return Chat(
        ChatSettings(
            model=model,
            base_url=os.environ.get("OPENAI_BASE_URL"),
            api_key=os.environ.get("OPENAI_API_KEY", ""),
            price=settings.price_of_tokens,
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
