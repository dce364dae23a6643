"""Requests from outside about the questions of a study to its external planner: to find one, and to answer it."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments_db import ExperimentStore, PlannerQuestion, QuestionStatus, RecordNotFound, Study
from researcher.errors import AnswerRefused, ResearchError
from researcher.planner.tools.base import ToolRefused
from researcher.study.ending import is_over
from researcher.study.overview import EXTERNAL, take_snapshot
from researcher.study.requests import resume_command, work_of

MAX_ANSWER_CHARS = 200_000
"""The longest answer; far above a program with its explanation."""
LOOK_S = 0.2
"""The seconds between two looks at what the study's process has made of an answer or a call."""


def await_question(store: ExperimentStore, study: Study, wait_s: float) -> PlannerQuestion | None:
    """Return the question that a study asks now or within `wait_s` seconds.

    Returns None at once if no process works on the study. Raises ResearchError for a study that asks nobody.
    """
    if study.planner != EXTERNAL:
        raise ResearchError(f"study {study.id} asks nobody: its planner is {study.planner}, not {EXTERNAL}")
    deadline = time.monotonic() + wait_s
    while True:
        if (question := find_open(store, study)) is not None:
            return question
        if time.monotonic() >= deadline or not work_of(store, store.get_study(study.id)).is_at_work:
            return None
        time.sleep(LOOK_S)


def submit_answer(
    store: ExperimentStore, study: Study, text: str, *, number: int | None, wait_s: float
) -> PlannerQuestion:
    """Store an answer and wait until the study has read it, but at most `wait_s` seconds.

    Without a `number` it answers the open question. The status of the result says whether the answer was accepted.
    Raises AnswerRefused with the study's objection, StoreConflict if the question takes no answer, ResearchError if
    there is no such question.
    """
    question = _choose(store, study, number)
    named = f"question {question.id} ({question.node})"
    if len(text) > MAX_ANSWER_CHARS:
        raise AnswerRefused(f"{named}: the answer has {len(text)} characters: shorten it to {MAX_ANSWER_CHARS}")
    if not text.strip():
        raise AnswerRefused(f"{named}: the answer is empty")
    stored = store.answer_question(question.id, text)
    deadline = time.monotonic() + wait_s
    while stored.status is QuestionStatus.ANSWERED and stored.answer == text and time.monotonic() < deadline:
        if not work_of(store, store.get_study(study.id)).is_at_work:
            break
        time.sleep(LOOK_S)
        stored = store.get_question(question.id)
    if stored.status is QuestionStatus.OPEN or stored.answer != text:
        raise AnswerRefused(f"{named} is open again: {stored.objection}")
    if stored.status is QuestionStatus.EXPIRED:
        raise ResearchError(f"{named} has expired: the answer came too late")
    return stored


def call_in_study(
    store: ExperimentStore, study: Study, tool: str, arguments: Mapping[str, Any], *, wait_s: float
) -> str:
    """Return the result of a planner's tool that the study's process carries out while it waits for an answer.

    Raises ToolRefused if the study does not ask just now, refuses the call, or takes too long.
    """
    if find_open(store, study) is None or not work_of(store, study).is_at_work:
        raise ToolRefused(f"{tool} needs the process of the study, which asks nothing now")
    request = store.request_tool(study.id, tool, json.dumps(arguments), deadline=time.time() + wait_s)
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline and work_of(store, store.get_study(study.id)).is_at_work:
        found = store.get_question(request.id)
        if found.status is QuestionStatus.ANSWERED:
            store.close_question(found.id)
            result: dict[str, str] = json.loads(found.answer or "{}")
            if "refused" in result:
                raise ToolRefused(result["refused"])
            return result["result"]
        time.sleep(LOOK_S)
    store.close_question(request.id, is_expired=True)
    raise ToolRefused(f"{tool}: the study gave no result within {wait_s:g} s")


def find_open(store: ExperimentStore, study: Study) -> PlannerQuestion | None:
    """Return the question that a study waits with and that takes an answer."""
    question = store.find_waiting_question(study.id)
    return question if question is not None and question.status is QuestionStatus.OPEN else None


def describe_question(question: PlannerQuestion) -> dict[str, Any]:
    """Return a question with all that its answer needs, as JSON."""
    return {
        "question": question.id,
        "node": question.node,
        "objection": question.objection,
        "asked_at": question.created_at,
        "deadline": question.deadline,
        "prompt": question.prompt,
    }


def describe_no_question(store: ExperimentStore, study: Study, home: Path) -> str:
    """Return one line on a study that asks nothing now: what it does instead."""
    study = store.get_study(study.id)
    if is_over(store, study):
        return f"study {study.id} is {study.status}: it asks nothing any more"
    if work_of(store, study).is_at_work:
        progress = take_snapshot(store, study.id).progress
        return f"study {study.id} asks nothing now: it is at work{progress and f' ({progress})'}"
    return f"study {study.id} is {study.status} and no process works on it: {resume_command(store, study.id, home)}"


def _choose(store: ExperimentStore, study: Study, number: int | None) -> PlannerQuestion:
    """Return the question of this number, or the one that waits. Raises ResearchError."""
    if number is None:
        found = store.find_waiting_question(study.id)
        if found is None:
            raise ResearchError(f"study {study.id} has no open question")
        return found
    try:
        found = store.get_question(number)
    except RecordNotFound:
        found = None
    if found is None or found.study_id != study.id or found.tool:
        raise ResearchError(f"study {study.id} has no question {number}")
    return found
