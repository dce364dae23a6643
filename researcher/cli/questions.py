"""The commands `researcher questions | answer`, by which a coding agent or a person plans a study."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from researcher.cli.options import DatabaseOption, HomeOption, JsonOption, NewestStudyArgument, StudyArgument
from researcher.cli.parts import open_database, print_values
from researcher.cli.terminal import failures_in_one_line
from researcher.home import DEFAULT_HOME


def questions(
    study_id: NewestStudyArgument = None,
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait for a question.")] = 0.0,
    home: HomeOption = DEFAULT_HOME,
    db: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the question that a study with `--planner external` waits with."""
    with failures_in_one_line(), open_database(home, db, read_only=True) as store:
        from researcher.planner.external.requests import await_question, describe_no_question, describe_question
        from researcher.study.requests import find_study, work_of

        study = find_study(store, study_id)
        question = await_question(store, study, wait)
        if question is None:
            typer.echo(describe_no_question(store, study, home), err=True)
            if as_json:
                study = store.get_study(study.id)
                is_at_work = work_of(store, study).is_at_work
                values = {"study": study.id, "question": None, "status": study.status.value, "is_at_work": is_at_work}
                typer.echo(json.dumps(values))
            return
        shown = describe_question(question)
        if as_json:
            typer.echo(json.dumps({"study": study.id} | shown))
            return
        typer.echo(
            f"question {question.id} ({question.node}); answer with: researcher answer {study.id} FILE", err=True
        )
        if question.objection:
            typer.echo(f"the last answer was refused: {question.objection}", err=True)
        typer.echo(question.prompt)


def answer(
    study_id: StudyArgument,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File with the answer; - reads standard input.")],
    question: Annotated[int | None, typer.Option(help="Number of the question (default: the open one).")] = None,
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait until the study has read the answer.")] = 30.0,
    home: HomeOption = DEFAULT_HOME,
    db: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Answer a question of a study with `--planner external`; exit 2 with the objection if the study refuses it."""
    with failures_in_one_line(), open_database(home, db, must_exist=True) as store:
        from experiments_db import QuestionStatus
        from researcher.planner.external.requests import describe_no_question, submit_answer
        from researcher.study.requests import find_study

        study, text = find_study(store, study_id), _read(file)
        found = submit_answer(store, study, text, number=question, wait_s=wait)
        if found.status is QuestionStatus.ANSWERED:
            typer.echo(f"the answer is stored and not read yet; {describe_no_question(store, study, home)}", err=True)
        values = {"study": study_id, "question": found.id, "node": found.node, "status": found.status.value}
        print_values(values, as_json)


def _read(file: Path) -> str:
    """Return the text of an answer. Raises AnswerRefused if it cannot be read."""
    from researcher.errors import AnswerRefused

    try:
        return sys.stdin.buffer.read().decode() if str(file) == "-" else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise AnswerRefused(f"{file} cannot be read as text: {error}") from error
