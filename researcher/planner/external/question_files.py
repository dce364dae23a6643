"""The questions of a study as Markdown files, and answers that are written beside them.

Place in the flow: QuestionQueue (question_queue.py) writes each question here and looks for a file with its answer.
Commands show the paths. This module knows no database.
"""

from __future__ import annotations

from pathlib import Path

from experiments_db import PlannerQuestion
from researcher.planner.language_model.answers import Unusable

MAX_ANSWER_CHARS = 200_000
"""The longest answer; far above a program with its explanation."""


class QuestionFiles:
    """The folder of the questions of one study."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: dict[Path, tuple[int, int]] = {}

    def write(self, question: PlannerQuestion) -> Path:
        """Write a question, with the objection to its last answer, and return the path of the file."""
        path = question_path(self._folder, question)
        path.parent.mkdir(parents=True, exist_ok=True)
        objection = f"\nThe last answer was refused: {question.objection}\n" if question.objection else ""
        head = (
            f"Question {question.id} ({question.node}) of study {question.study_id}.\n\n"
            f"Write the answer, and nothing else, to {answer_path(self._folder, question)}\n{objection}"
        )
        part = path.with_suffix(".part")
        part.write_text(f"{head}\n---\n\n{question.prompt}\n", encoding="utf-8")
        part.replace(path)
        return path

    def take(self, question: PlannerQuestion) -> str | None:
        """Return the answer in the file of a question; None if there is none yet, or if it is still being written.

        A file counts once it has not changed between two looks. Raises Unusable for one that is no text.
        """
        path = answer_path(self._folder, question)
        try:
            found = path.stat()
            if found.st_size == 0 or self._seen.get(path) != (now := (found.st_mtime_ns, found.st_size)):
                self._seen[path] = (found.st_mtime_ns, found.st_size)
                return None
            if now[1] > 4 * MAX_ANSWER_CHARS:
                raise Unusable(f"the answer has {now[1]} bytes: shorten it to {MAX_ANSWER_CHARS} characters")
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise Unusable("the file of the answer is not UTF-8") from error
        except OSError:
            # It was moved, or cannot be read yet: the next look tells.
            return None
        return check_answer(text) if text.strip() else None

    def put_aside(self, question: PlannerQuestion) -> None:
        """Rename the file of a refused answer, so that another one can be written."""
        path = answer_path(self._folder, question)
        self._seen.pop(path, None)
        if not path.exists():
            return
        number = 1 + len(list(self._folder.glob(f"{_stem(question)}.refused-*.md")))
        path.replace(self._folder / f"{_stem(question)}.refused-{number}.md")


def check_answer(text: str) -> str:
    """Return an answer that is short enough. Raises Unusable."""
    if len(text) > MAX_ANSWER_CHARS:
        raise Unusable(f"the answer has {len(text)} characters: shorten it to {MAX_ANSWER_CHARS}")
    return text


def question_path(folder: Path, question: PlannerQuestion) -> Path:
    return folder / f"{_stem(question)}.md"


def answer_path(folder: Path, question: PlannerQuestion) -> Path:
    return folder / f"{_stem(question)}.answer.md"


def _stem(question: PlannerQuestion) -> str:
    return f"{question.id:04d}-{question.node}"
