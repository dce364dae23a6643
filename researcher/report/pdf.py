"""The report as PDF: the Markdown report on pages, with its figures and tables.

Place in the flow: `researcher report --pdf` calls `write_pdf` after the report was written. It reads only report.md and
its figures, so the PDF has the same content as the report. It uses fpdf2, a pure Python library, with the fonts of
matplotlib. This module knows nothing of studies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
from markdown_it import MarkdownIt
from markdown_it.token import Token

from researcher.errors import ResearchError

if TYPE_CHECKING:
    from fpdf import FPDF

SANS, MONO = "DejaVu Sans", "DejaVu Sans Mono"
BODY_PT = 9.5
HEADING_PT = {"h1": 17.0, "h2": 13.0, "h3": 11.0}
TABLE_PT, WIDE_TABLE_PT, CODE_PT = 7.5, 5.2, 6.8
LINE_MM = 4.8
MARGIN_MM = 16.0
WIDE_COLUMNS = 9
"""The largest number of columns of a table on a portrait page."""

MAX_COLUMN, MIN_COLUMN = 40, 4
"""Bounds on the number of characters that determines a column's share of the width."""

_FACES = (
    (SANS, "", "DejaVuSans.ttf"),
    (SANS, "B", "DejaVuSans-Bold.ttf"),
    (SANS, "I", "DejaVuSans-Oblique.ttf"),
    (SANS, "BI", "DejaVuSans-BoldOblique.ttf"),
    (MONO, "", "DejaVuSansMono.ttf"),
    (MONO, "B", "DejaVuSansMono-Bold.ttf"),
)


def write_pdf(markdown: Path, pdf: Path, *, made_at: float) -> None:
    """Write `markdown` and the figures beside it as PDF.

    `made_at` is the date in the file, in seconds since the epoch, so that the same report gives the same file. Raises
    ResearchError if fpdf2 is not installed.
    """
    try:
        from fpdf import FPDF
    except ModuleNotFoundError as error:
        raise ResearchError("a PDF needs fpdf2: pip install 'swarm-researcher[researcher]'") from error
    page = FPDF(format="A4")
    page.set_creation_date(datetime.fromtimestamp(made_at, UTC))
    page.set_margins(MARGIN_MM, MARGIN_MM)
    page.set_auto_page_break(True, MARGIN_MM)
    fonts = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    for family, style, name in _FACES:
        page.add_font(family, style, str(fonts / name))
    page.add_page()
    tokens = MarkdownIt("commonmark").enable("table").parse(markdown.read_text(encoding="utf-8"))
    _Setter(page, markdown.parent).set(tokens)
    page.output(str(pdf))


@dataclass(slots=True)
class _Setter:
    """A writer of Markdown tokens on pages, with one method per kind of block.

    `folder` contains the pictures.
    """

    page: FPDF
    folder: Path

    def set(self, tokens: Sequence[Token]) -> None:
        position = 0
        lists: list[int | None] = []
        while position < len(tokens):
            token = tokens[position]
            if token.type == "heading_open":
                self._turn_page(is_wide=_is_wide(tokens[position + 3 :]))
                self._set_heading(token.tag, tokens[position + 1])
                position += 2
            elif token.type == "table_open":
                end = next(at for at in range(position, len(tokens)) if tokens[at].type == "table_close")
                self._set_table(list(_rows(tokens[position:end])))
                position = end
            elif token.type in ("bullet_list_open", "ordered_list_open"):
                lists.append(int(token.attrGet("start") or 1) if token.type == "ordered_list_open" else None)
            elif token.type in ("bullet_list_close", "ordered_list_close"):
                lists.pop()
                self.page.ln(1.5)
            elif token.type == "list_item_open":
                number = lists[-1]
                self._set_mark("•" if number is None else f"{number}.", len(lists))
                lists[-1] = None if number is None else number + 1
            elif token.type == "inline":
                self._set_inline(token, is_item=bool(lists))
            elif token.type in ("fence", "code_block"):
                self._set_code(token.content)
            position += 1

    def _set_heading(self, tag: str, inline: Token) -> None:
        size = HEADING_PT.get(tag, BODY_PT + 1)
        self.page.ln(3.0)
        if self.page.will_page_break(size * 1.6):
            self.page.add_page()
        self.page.set_font(SANS, "B", size)
        self.page.multi_cell(0, size * 0.5, _plain(inline), align="L", new_x="LMARGIN", new_y="NEXT")
        self.page.ln(1.5)

    def _set_mark(self, mark: str, depth: int) -> None:
        self.page.set_font(SANS, "", BODY_PT)
        self.page.set_x(MARGIN_MM + 5.0 * (depth - 1))
        self.page.cell(6.0, LINE_MM, mark)

    def _set_inline(self, inline: Token, *, is_item: bool) -> None:
        """Write a paragraph with its emphasis, code and pictures."""
        style = ""
        left = self.page.get_x()
        if is_item:
            self.page.set_left_margin(left)
        for child in inline.children or ():
            if child.type in ("strong_open", "em_open"):
                style += "B" if child.type == "strong_open" else "I"
            elif child.type in ("strong_close", "em_close"):
                style = style.replace("B" if child.type == "strong_close" else "I", "")
            elif child.type == "image":
                self._set_picture(str(child.attrGet("src")))
            elif child.type in ("text", "code_inline", "softbreak", "hardbreak"):
                is_code = child.type == "code_inline"
                # There is no italic font of fixed width.
                self.page.set_font(MONO if is_code else SANS, style.replace("I", "") if is_code else style, BODY_PT)
                self.page.write(LINE_MM, " " if child.type.endswith("break") else child.content)
        self.page.set_left_margin(MARGIN_MM)
        self.page.ln(LINE_MM + (0.6 if is_item else 2.0))

    def _set_picture(self, source: str) -> None:
        path = self.folder / source
        if path.is_file():
            self.page.image(str(path), w=self.page.epw, keep_aspect_ratio=True)
            self.page.ln(1.0)

    def _set_code(self, text: str) -> None:
        self.page.set_font(MONO, "", CODE_PT)
        self.page.multi_cell(0, CODE_PT * 0.45, text.rstrip("\n"), align="L", new_x="LMARGIN", new_y="NEXT")
        self.page.ln(2.0)

    def _set_table(self, rows: list[list[str]]) -> None:
        if not rows:
            return
        columns = len(rows[0])
        is_wide = columns > WIDE_COLUMNS
        self._turn_page(is_wide=is_wide or self.page.w > self.page.h)
        self.page.set_font(SANS, "", WIDE_TABLE_PT if is_wide else TABLE_PT)
        widths = [
            min(MAX_COLUMN, max(MIN_COLUMN, *(len(row[index]) for row in rows if index < len(row))))
            for index in range(columns)
        ]
        options: dict[str, Any] = {"borders_layout": "HORIZONTAL_LINES", "padding": 0.8, "text_align": "LEFT"}
        line = (WIDE_TABLE_PT if is_wide else TABLE_PT) * 0.5
        with self.page.table(col_widths=tuple(widths), line_height=line, **options) as table:
            for row in rows:
                added = table.row()
                for cell in row:
                    added.cell(cell)
        self.page.ln(3.0)

    def _turn_page(self, *, is_wide: bool) -> None:
        """Start a new page if a wide table, with its heading, needs landscape, or the text after it portrait."""
        if is_wide != (self.page.w > self.page.h):
            self.page.add_page(orientation="landscape" if is_wide else "portrait")


def _is_wide(tokens: Sequence[Token]) -> bool:
    """Return whether the tokens begin with a table that is too wide for a portrait page."""
    if not tokens or tokens[0].type != "table_open":
        return False
    return len(next(_rows(tokens), ())) > WIDE_COLUMNS


def _rows(tokens: Sequence[Token]) -> Iterator[list[str]]:
    row: list[str] = []
    for token in tokens:
        if token.type == "inline":
            row.append(_plain(token))
        elif token.type == "tr_close":
            yield row
            row = []


def _plain(inline: Token) -> str:
    """Return the words of a line, without their markup."""
    return "".join(
        " " if child.type in ("softbreak", "hardbreak") else child.content
        for child in inline.children or ()
        if child.type in ("text", "code_inline", "softbreak", "hardbreak")
    )
