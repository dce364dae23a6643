"""The planner that asks a coding agent, or a person, outside of the study."""

from __future__ import annotations

from collections.abc import Callable

from researcher.charter import FrameRequest
from researcher.errors import AnswerOverdue
from researcher.execution.background import BackgroundTasks
from researcher.planner.base import Planner
from researcher.planner.external.question_queue import QuestionQueue
from researcher.planner.fallback import answer_by_rules
from researcher.planner.language_model.stored_arms import StoredArms
from researcher.planner.llm import LLMPlanner
from researcher.planner.tools.base import Toolbox
from researcher.record.log import StudyLog
from researcher.study.overview import EXTERNAL
from researcher.study.settings import StudySettings


class ExternalPlanner(LLMPlanner):
    """A planner whose questions somebody outside of the study answers."""

    @property
    def name(self) -> str:
        return EXTERNAL


def build_external_planner(
    settings: StudySettings,
    request: FrameRequest,
    log: StudyLog,
    background: BackgroundTasks,
    toolbox: Callable[[], Toolbox] = lambda: Toolbox(()),
) -> Planner:
    """Return the planner whose questions somebody outside answers, with rules as fallback if the settings say so.

    `toolbox` returns the tools that need the process of the study.
    """
    queue = QuestionQueue(
        log.store,
        log.study_id,
        sleep=background.sleep,
        report=log.note,
        deadline_s=None if settings.answer_deadline is None else 60 * settings.answer_deadline,
        toolbox=toolbox,
    )
    program = settings.programs[0].code if settings.programs else None
    planner = ExternalPlanner(
        queue, environment=request.environment, program=program, records=StoredArms(log.store, log.study_id)
    )
    if settings.on_no_answer != "rules":
        return planner
    return answer_by_rules(planner, settings, failures=(AnswerOverdue,), report=log.warn)
