"""The planner that asks a coding agent, or a person, outside of the study.

Place in the flow: one of the planners of base.py. It asks the questions of the `llm` planner, and its answers are
checked by the same code; only who answers differs. No key is needed, and the loop stays ours.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from researcher.charter import FrameRequest
from researcher.errors import AnswerOverdue
from researcher.execution.background import BackgroundTasks
from researcher.planner.base import Planner
from researcher.planner.external.question_queue import QuestionQueue
from researcher.planner.external.requests import QUESTIONS
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
    folder: Path,
    toolbox: Callable[[], Toolbox] = lambda: Toolbox(()),
) -> Planner:
    """Return the planner whose questions lie in a study's `folder`, with rules as fallback if the settings say so.

    `toolbox` returns the tools that need the process of the study.
    """
    queue = QuestionQueue(
        log.store,
        log.study_id,
        (folder / QUESTIONS).resolve(),
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
