"""One figure of a report in the colours of light and of dark pages, with the data that it shows."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

DPI = 160
WIDTH_IN = 7.6
MAIN_WIDTH_IN = 5.6
"""The width of the main figure, which stands beside the answer on a wide page."""
MAX_LABEL = 34


@dataclass(frozen=True, slots=True)
class Theme:
    name: str
    text: str
    faint: str
    paper: str


LIGHT = Theme("light", text="#1f2328", faint="#d5d9de", paper="#ffffff")
DARK = Theme("dark", text="#e6e8eb", faint="#3a4048", paper="#16191d")


@dataclass(frozen=True, slots=True)
class Drawing:
    """The content of a figure. `paint` draws it at `height` inches; `rows` are its data below their names."""

    name: str
    title: str
    caption: str
    height: float
    paint: Callable[[Axes, Theme], None]
    rows: list[list[Any]]


@dataclass(frozen=True, slots=True)
class Picture:
    """One figure in both themes.

    `caption` describes the figure for everyone. `csv` is the data that it shows. The main figure
    of a report shows its answer.
    """

    name: str
    title: str
    caption: str
    light_png: bytes
    dark_png: bytes
    csv: str
    is_main: bool = False

    @property
    def file(self) -> str:
        """The path of the PNG beside the report."""
        return f"figures/{self.name}.png"


def draw_picture(drawing: Drawing, themes: Sequence[Theme], *, is_main: bool) -> Picture:
    """Return the figure of a drawing; without images if there are no themes."""
    size = MAIN_WIDTH_IN if is_main else WIDTH_IN, drawing.height
    light, dark = _render(size, themes, drawing.paint) if themes else (b"", b"")
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(drawing.rows)
    return Picture(drawing.name, drawing.title, drawing.caption, light, dark, out.getvalue(), is_main)


def shorten(name: str, most: int = MAX_LABEL) -> str:
    """Return a name of at most `most` characters."""
    return name if len(name) <= most else name[: most - 1] + "…"


def _render(size: tuple[float, float], themes: Sequence[Theme], paint: Callable[[Axes, Theme], None]) -> list[bytes]:
    """Return one PNG for each theme; all themes use the position of the axes in the first one."""
    images: list[bytes] = []
    position: Bbox | None = None
    for theme in themes:
        with rc_context(_style(theme)):
            figure = Figure(figsize=size, dpi=DPI, layout="constrained" if position is None else None)
            canvas = FigureCanvasAgg(figure)
            axes = figure.add_subplot()
            if position is not None:
                axes.set_position(position)
            paint(axes, theme)
            out = io.BytesIO()
            # Without metadata the same facts give the same bytes.
            canvas.print_png(out, metadata={"Software": None})
        images.append(out.getvalue())
        position = axes.get_position()
    return images


def _style(theme: Theme) -> dict[Any, Any]:
    return {
        "font.size": 9.5, "text.color": theme.text, "axes.labelcolor": theme.text, "axes.edgecolor": theme.faint,
        "xtick.color": theme.text, "ytick.color": theme.text, "xtick.major.size": 0, "ytick.major.size": 0,
        "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.color": theme.faint,
        "grid.linewidth": 0.6, "axes.axisbelow": True, "figure.facecolor": theme.paper, "axes.facecolor": theme.paper,
        "legend.frameon": False, "axes.unicode_minus": False, "text.parse_math": False,
    }  # fmt: skip
