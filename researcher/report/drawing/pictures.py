"""One figure of a report, with the data that it shows."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

DPI = 160
WIDTH_IN = 7.6
MAIN_WIDTH_IN = 5.6
"""The width of the main figure, which stands beside the answer on a wide page."""
MAX_LABEL = 34
TEXT, FAINT, PAPER = "#1f2328", "#d5d9de", "#ffffff"
"""The colours besides those of arms and verdicts; the style sheet of a report inverts figures on dark screens."""


@dataclass(frozen=True, slots=True)
class Drawing:
    """The content of a figure. `paint` draws it at `height` inches; `rows` are its data below their names."""

    name: str
    title: str
    caption: str
    height: float
    paint: Callable[[Axes], None]
    rows: list[list[Any]]


@dataclass(frozen=True, slots=True)
class Picture:
    """One figure.

    `caption` describes the figure for everyone. `csv` is the data that it shows. The main figure of a report shows its
    answer.
    """

    name: str
    title: str
    caption: str
    png: bytes
    csv: str
    is_main: bool = False

    @property
    def file(self) -> str:
        """The path of the PNG beside the report."""
        return f"figures/{self.name}.png"


def draw_picture(drawing: Drawing, *, is_main: bool, has_image: bool = True) -> Picture:
    """Return the figure of a drawing; its PNG is empty without `has_image`."""
    size = MAIN_WIDTH_IN if is_main else WIDTH_IN, drawing.height
    png = _render(size, drawing.paint) if has_image else b""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(drawing.rows)
    return Picture(drawing.name, drawing.title, drawing.caption, png, out.getvalue(), is_main)


def shorten(name: str, most: int = MAX_LABEL) -> str:
    """Return a name of at most `most` characters."""
    return name if len(name) <= most else name[: most - 1] + "…"


def _render(size: tuple[float, float], paint: Callable[[Axes], None]) -> bytes:
    with rc_context(_STYLE):
        figure = Figure(figsize=size, dpi=DPI, layout="constrained")
        canvas = FigureCanvasAgg(figure)
        paint(figure.add_subplot())
        out = io.BytesIO()
        # Without metadata the same facts give the same bytes.
        canvas.print_png(out, metadata={"Software": None})
    return out.getvalue()


_STYLE: dict[Any, Any] = {
    "font.size": 9.5, "text.color": TEXT, "axes.labelcolor": TEXT, "axes.edgecolor": FAINT, "xtick.color": TEXT,
    "ytick.color": TEXT, "xtick.major.size": 0, "ytick.major.size": 0, "axes.spines.top": False,
    "axes.spines.right": False, "axes.grid": True, "grid.color": FAINT, "grid.linewidth": 0.6, "axes.axisbelow": True,
    "figure.facecolor": PAPER, "axes.facecolor": PAPER, "legend.frameon": False, "axes.unicode_minus": False,
    "text.parse_math": False,
}  # fmt: skip
