"""Questions to an agent outside of the study, such as a coding agent: asked, waited for, and checked."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from experiments_db import ExperimentStore, PlannerQuestion, QuestionStatus, StoreConflict
from prompts import load
from researcher.errors import AnswerOverdue
from researcher.planner.language_model.answers import Unusable
from researcher.planner.tools.base import NO_TOOLS, Toolbox, ToolRefused
from researcher.study.overview import EXTERNAL

logger = logging.getLogger(__name__)

T = TypeVar("T")

POLL_S = 0.5
_MARKS = re.compile(r"^(BEGIN|END) DATA \w+$", re.MULTILINE)
"""Delimiters of foreign text, which are drawn anew for every prompt."""


class QuestionQueue:
    """The questions of one study to an external planner, one open at a time."""

    name = EXTERNAL

    def __init__(
        self,
        store: ExperimentStore,
        study_id: str,
        *,
        sleep: Callable[[float], object],
        report: Callable[[str, str], object],
        deadline_s: float | None = None,
        toolbox: Toolbox = NO_TOOLS,
    ) -> None:
        """Create a queue.

        `sleep` waits, and may raise whatever ends the work meanwhile. `report` gets the kind of an event and a line for
        people. `toolbox` has the tools that the study's process carries out.
        """
        self._store = store
        self._study_id = study_id
        self._sleep = sleep
        self._report = report
        self._deadline_s = deadline_s
        self._toolbox = toolbox

    def ask(self, node: str, question: str, parse: Callable[[str], T]) -> T:
        """Return the parsed answer to a question, however long it takes.

        A process that takes a study up again asks its last questions again: an accepted answer stands, and an open
        question stays the same one. Raises AnswerOverdue after the deadline.
        """
        prompt = f"{load('system')}\n\n{question}"
        earlier = self._find_same(node, prompt)
        if earlier is not None and earlier.status is QuestionStatus.ACCEPTED:
            with suppress(Unusable):
                return parse(earlier.answer or "")
        deadline = None if self._deadline_s is None else time.time() + self._deadline_s
        # The delimiters of foreign text differ; the store tells questions apart by the whole text.
        asked = self._store.ask_planner(
            self._study_id, node, prompt if earlier is None else earlier.prompt, deadline=deadline
        )
        if asked.status is QuestionStatus.OPEN:
            self._report(
                "planner.asked",
                f"The study waits for an answer to question {asked.id} ({node}): "
                f"researcher questions {self._study_id} shows it, and researcher answer answers it.",
            )
        while True:
            answered = self._await_answer(asked)
            try:
                parsed = parse(answered.answer or "")
            except Unusable as error:
                self._store.close_question(asked.id, objection=str(error))
                self._report("planner.refused", f"The answer to question {asked.id} ({node}) is refused: {error}")
            else:
                self._store.close_question(asked.id)
                self._report("planner.answered", f"Question {asked.id} ({node}) is answered.")
                return parsed

    def _find_same(self, node: str, prompt: str) -> PlannerQuestion | None:
        """Return the newest question of this kind with the same text, unless it has expired."""
        text = _MARKS.sub("", prompt)
        for found in reversed(self._store.list_questions(self._study_id)):
            is_same = found.node == node and _MARKS.sub("", found.prompt) == text
            if is_same and found.status is not QuestionStatus.EXPIRED:
                return found
        return None

    def _await_answer(self, asked: PlannerQuestion) -> PlannerQuestion:
        """Return the question once it has an answer. Raises AnswerOverdue after its deadline."""
        while True:
            found = self._store.get_question(asked.id)
            if found.status is QuestionStatus.ANSWERED:
                return found
            self._serve_tools()
            if found.deadline is not None and time.time() > found.deadline:
                found = self._store.close_question(found.id, is_expired=True)
                if found.status is QuestionStatus.EXPIRED:
                    minutes = (self._deadline_s or 0.0) / 60
                    raise AnswerOverdue(f"question {found.id} ({found.node}) had no answer within {minutes:g} min")
            self._sleep(POLL_S)

    def _serve_tools(self) -> None:
        """Carry out the calls of tools that wait; one that nobody waits for any more expires."""
        for request in self._store.list_tool_requests(self._study_id):
            if request.deadline is not None and time.time() > request.deadline:
                self._store.close_question(request.id, is_expired=True)
                continue
            with suppress(StoreConflict):
                self._store.answer_question(request.id, json.dumps(self._carry_out(request)))

    def _carry_out(self, request: PlannerQuestion) -> dict[str, str]:
        """Return the result of a tool, or why there is none."""
        try:
            return {"result": self._toolbox.call(request.tool, request.prompt)}
        except ToolRefused as error:
            return {"refused": str(error)}
        except Exception as error:
            # A tool that fails is an answer to its caller, and never ends the study.
            logger.exception("the tool %s failed", request.node)
            return {"refused": f"the tool failed: {type(error).__name__}: {' '.join(str(error).split())[:500]}"}
