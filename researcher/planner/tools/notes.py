"""The tool `notes`: a search over a folder of Markdown and text files that a person gave the study."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import Field

from researcher.planner.texts import as_data
from researcher.planner.tools.base import PlannerTool, ToolArguments

SUFFIXES = frozenset({".md", ".txt", ".rst"})
MAX_FILES = 2_000
MAX_FILE_BYTES = 2 * 2**20
MAX_BYTES = 32 * 2**20
"""The bytes of all files together; later files are left out, and the answer counts them."""
PASSAGE_CHARS = 1_200


class NotesArguments(ToolArguments):
    query: str = Field(min_length=1, max_length=500, description="Words to look for.")
    count: int = Field(default=5, ge=1, le=8)


@dataclass(frozen=True, slots=True)
class Passage:
    """A part of a file: its lines from `line` on."""

    file: str
    line: int
    text: str


class NotesIndex:
    """The passages of a folder, read and ranked when they are first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()
        self.left_out = 0

    def search(self, query: str, count: int) -> list[Passage]:
        """Return the passages that fit best, best first; none that has no word of the query."""
        if not self._passages:
            return []
        import bm25s

        words = bm25s.tokenize([query], show_progress=False, return_ids=False)
        found, scores = self._ranking.retrieve(words, k=min(count, len(self._passages)), show_progress=False)
        return [self._passages[int(number)] for number, score in zip(found[0], scores[0], strict=True) if score > 0]

    @cached_property
    def _passages(self) -> list[Passage]:
        return [passage for path in self._files() for passage in self._split(path)]

    @cached_property
    def _ranking(self) -> Any:
        # Imported here, because most studies have no notes.
        import bm25s

        ranking = bm25s.BM25()
        texts = [f"{passage.file} {passage.text}" for passage in self._passages]
        ranking.index(bm25s.tokenize(texts, show_progress=False, return_ids=False), show_progress=False)
        return ranking

    def _files(self) -> Iterator[Path]:
        """Yield the files to read; count those that the limits leave out."""
        number = used = 0
        for path in sorted(self._folder.rglob("*")):
            if path.suffix.lower() not in SUFFIXES or not path.is_file() or self._is_outside(path):
                continue
            size = path.stat().st_size
            if number >= MAX_FILES or size > MAX_FILE_BYTES or used + size > MAX_BYTES:
                self.left_out += 1
                continue
            number, used = number + 1, used + size
            yield path

    def _is_outside(self, path: Path) -> bool:
        return not path.resolve().is_relative_to(self._folder)

    def _split(self, path: Path) -> Iterator[Passage]:
        """Yield the passages of a file: whole paragraphs, as many as fit."""
        name = str(path.relative_to(self._folder))
        first, lines = 1, list[str]()
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            is_full = sum(map(len, lines)) + len(line) > PASSAGE_CHARS
            if lines and (is_full or (line.startswith("#") and any(map(str.strip, lines)))):
                yield from self._passage(name, first, lines)
                first, lines = number, []
            lines.append(line[:PASSAGE_CHARS])
        yield from self._passage(name, first, lines)

    def _passage(self, name: str, line: int, lines: list[str]) -> Iterator[Passage]:
        text = "\n".join(lines).strip()
        if text:
            yield Passage(name, line, text)


def notes_tool(folder: Path) -> PlannerTool:
    """Return the tool for a folder."""
    index = NotesIndex(folder)

    def call(arguments: NotesArguments) -> str:
        found = index.search(arguments.query, arguments.count)
        left_out = f"\nfiles left out as too large or too many: {index.left_out}" if index.left_out else ""
        if not found:
            return f"no passage of the notes has one of these words{left_out}"
        return as_data("\n\n".join(f"{each.file}:{each.line}\n{each.text}" for each in found)) + left_out

    return PlannerTool(
        "notes", "Search the notes that a person gave this study: passages with file and line.", NotesArguments, call
    )
