"""The curve of the rewards of a training in a terminal, with axes."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from rich.color import Color
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from textual.renderables.sparkline import Sparkline

from swarm.overwatch.snapshot import ServerSnapshot

SHOWN_METRICS: Mapping[str, str] = {
    "sft/loss": "loss of demonstrations",
    "actor/entropy": "entropy",
    "actor/grad_norm": "grad norm",
    "actor/ppo_kl": "kl",
}
LOW, HIGH = Color.parse("#4a7a8c"), Color.parse("#8fd3b6")


def figures(snapshot: ServerSnapshot) -> str:
    """Return the last figures of a training, which stand above its curve; empty before the first step."""
    values = [reward for _, reward in snapshot.rewards]
    found = [f"reward {values[-1]:.3f}", f"best {max(values):.3f}"] if values else []
    metrics = snapshot.status.last_metrics if snapshot.status is not None else {}
    return " · ".join(
        [*found, *(f"{label} {metrics[name]:.3g}" for name, label in SHOWN_METRICS.items() if name in metrics)]
    )


def curve(snapshot: ServerSnapshot, *, height: int = 1) -> RenderableType:
    """Return the mean reward per step as a curve with axes over the whole width.

    The curve is `height` lines high. A number at the left is the reward at the upper edge of its line, and the lowest
    one that of the axis.
    """
    values = [reward for _, reward in snapshot.rewards]
    if not values:
        return Text("no step on rewards is finished yet", style="dim")
    # A single value would be drawn as a full block, which looks like the best of many values.
    drawn = values if len(values) > 1 else values * 2
    line = Sparkline(drawn, width=None, height=height, min_color=LOW, max_color=HIGH, summary_function=statistics.fmean)
    plot = Table.grid(expand=True)
    plot.add_column(justify="right", style="dim", no_wrap=True)
    plot.add_column(ratio=1)
    *edges, lowest = _edges(min(values), max(values), height)
    # The sparkline does not end its last line, so without the padding the table would be one line short.
    plot.add_row(Text("\n").join(Text(f"{edge} ┤") for edge in edges), Padding(line, 0))
    plot.add_row(Text(f"{lowest} └"), _StepAxis(snapshot.rewards[0][0], snapshot.rewards[-1][0]))
    return plot


def _edges(lowest: float, highest: float, lines: int) -> list[str]:
    """Return the values at the upper edges of the lines of a curve, and at its lower end, as short as they can be."""
    spread = highest - lowest
    if spread <= 0:
        return ["", *[""] * (lines - 1), f"{lowest:.2f}"]
    digits = max(2, min(6, 2 - math.floor(math.log10(spread / lines)) - 1))
    return [f"{highest - spread * line / lines:.{digits}f}" for line in range(lines + 1)]


@dataclass(frozen=True, slots=True)
class _StepAxis:
    """The horizontal axis of a curve, with the first and the last step at its ends."""

    first: int
    last: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        begin, end = f"─ step {self.first} ", f" {self.last} " if self.last > self.first else ""
        width = options.max_width
        yield Text(f"{begin}{'─' * max(0, width - len(begin) - len(end))}{end}"[:width], style="dim", no_wrap=True)
