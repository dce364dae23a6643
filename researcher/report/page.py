"""The HTML page of a report, made from its Markdown: one file with its styles and figures that loads nothing."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from functools import cache
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.rules_block import StateBlock
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token

from experiments_db import Verdict

DENSE_COLUMNS = 10
"""A table with so many columns has small print."""
SHORT_CELL = 24
"""The characters of a cell up to which no line ends in it."""
_DIVISION = re.compile(r"<!-- ([a-z]+|/) -->")
_ANCHOR = re.compile(r'<a id="([\w.-]+)"></a>')
_VERDICTS = {
    **{each.value: "open" for each in Verdict},
    Verdict.KEEP: "good",
    Verdict.WORSE: "bad",
    Verdict.EQUAL: "good",
    Verdict.DIFFERENT: "bad",
    "disqualified": "bad",
}


def render_body(markdown: str, images: dict[str, bytes]) -> str:
    """Return the Markdown of a report as the body of a page.

    HTML in the text stays text, with two exceptions that only the template can write, because it escapes `<` in all
    else. A line `<!-- name -->` begins a division of that class, which ends with `<!-- / -->`. `<a id="name"></a>` is
    an anchor. `images` has the PNG of each figure, by its path in the Markdown.
    """
    return _parser().render(markdown, {"images": images})


@cache
def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    parser.block.ruler.before("html_block", "division", _parse_division, {"alt": ["paragraph"]})
    parser.inline.ruler.before("html_inline", "anchor", _parse_anchor)
    for name, rule in (
        ("table_open", _render_table), ("table_close", _render_table_end), ("td_open", _render_cell),
        ("image", _render_image),
    ):  # fmt: skip
        parser.add_render_rule(name, rule)
    return parser


def _parse_division(state: StateBlock, line: int, _end: int, silent: bool) -> bool:
    found = _DIVISION.fullmatch(state.src[state.bMarks[line] + state.tShift[line] : state.eMarks[line]])
    if found is None or state.is_code_block(line):
        return False
    if not silent:
        token = state.push("division", "div", -1 if found[1] == "/" else 1)
        token.block = True
        token.attrs = {} if found[1] == "/" else {"class": found[1]}
        state.line = line + 1
    return True


def _parse_anchor(state: StateInline, silent: bool) -> bool:
    found = _ANCHOR.match(state.src, state.pos)
    if found is None:
        return False
    if not silent:
        state.push("anchor", "a", 1).attrs = {"id": found[1]}
        state.push("anchor", "a", -1)
    state.pos = found.end()
    return True


def _render_table(renderer: RendererHTML, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    head = next(at for at in range(index, len(tokens)) if tokens[at].type == "tr_close")
    columns = sum(token.type == "th_open" for token in tokens[index:head])
    size = ' class="dense"' if columns >= DENSE_COLUMNS else ""
    return f'<div class="scroll"><table{size}>\n'


def _render_table_end(renderer: RendererHTML, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    return "</table></div>\n"


def _render_cell(renderer: RendererHTML, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    text = "".join(child.content for child in tokens[index + 1].children or ())
    classes = [*(["short"] if len(text) <= SHORT_CELL else []), _VERDICTS.get(text, "")]
    if found := " ".join(filter(None, classes)):
        tokens[index].attrSet("class", found)
    return renderer.renderToken(tokens, index, options, env)


def _render_image(renderer: RendererHTML, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    """Return the figure with its content; its title is escaped by the renderer."""
    png = env["images"][str(tokens[index].attrs["src"])]
    tokens[index].attrSet("src", f"data:image/png;base64,{base64.b64encode(png).decode()}")
    return renderer.image(tokens, index, options, env)
