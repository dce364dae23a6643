"""The runs of a study as a terminal shows them: arms by seeds, the curves of those in training, and the leader.

Place in the flow: progress.py puts them below the head of a study. It draws a snapshot and reads no database.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from rich.table import Table
from rich.text import Text

from experiments_db import RunStatus
from researcher.study.overview import RunView, StudySnapshot

MOST_ARMS = 15
MOST_SEEDS = 5
"""The seeds up to which each has a column of its own; more of them are drawn as one sign each."""
MOST_CURVES = 8
BLOCKS = "▁▂▃▄▅▆▇█"
_STYLES = {RunStatus.FINISHED: "green", RunStatus.FAILED: "red", RunStatus.STOPPED: "yellow"}
_SIGNS = {RunStatus.FINISHED: "●", RunStatus.FAILED: "x", RunStatus.STOPPED: "-", RunStatus.PLANNED: "·"}
UNDER_WAY = "◐"


def describe_leader(snapshot: StudySnapshot) -> str:
    """Return which arm has the best mean so far, in words; empty without scores."""
    if snapshot.leader is None:
        return ""
    arm, mean, runs = snapshot.leader
    of_runs = f"{runs} run{'' if runs == 1 else 's'}"
    if snapshot.study.status.is_end:
        return f"leader: {arm}, held-out mean {mean:.3f} of {of_runs}"
    return f"leader so far: {arm}, held-out mean {mean:.3f} of {of_runs} (no verdict yet)"


def draw_arms(runs: Sequence[RunView], planned: Sequence[tuple[str, int]] = ()) -> Table:
    """Return a table with one row for each arm: how each seed stands, and the means before and after training.

    `planned` are arms with seeds that may not have begun.
    """
    newest: dict[tuple[str, int], RunView] = {}
    for run in runs:
        newest[run.arm, run.seed] = run
    arms = list(dict.fromkeys((*(arm for arm, _ in planned), *(run.arm for run in runs))))
    seeds = sorted({*(seed for _, seed in planned), *(run.seed for run in runs)})
    waiting = set(planned)
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("arm", overflow="fold", min_width=8)
    names = [f"seed {seed}" for seed in seeds] if len(seeds) <= MOST_SEEDS else [f"seeds {seeds[0]} to {seeds[-1]}"]
    for name in names:
        table.add_column(name, no_wrap=True, justify="right" if len(names) > 1 else "left")
    for name in ("before", "after"):
        table.add_column(name, no_wrap=True, justify="right")
    for arm in arms[:MOST_ARMS]:
        of_arm = [newest[arm, seed] for seed in seeds if (arm, seed) in newest]
        cells = [_cell(newest.get((arm, seed)), is_waiting=(arm, seed) in waiting) for seed in seeds]
        if len(seeds) > MOST_SEEDS:
            cells = [Text().join(_sign(newest.get((arm, seed))) for seed in seeds)]
        means = ([run.base for run in of_arm], [run.final for run in of_arm])
        table.add_row(Text(arm), *cells, *(_mean(values) for values in means))
    if len(arms) > MOST_ARMS:
        table.add_row(Text(f"({len(arms) - MOST_ARMS} more arms not shown)", style="dim"))
    return table


def draw_curves(training: Sequence[RunView]) -> Table:
    """Return the train rewards of the runs in training, one line each, between their lowest and their highest value."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("in training", "seed", "step", "s/step"):
        table.add_column(name, no_wrap=name != "in training", justify="left" if name == "in training" else "right")
    table.add_column("train reward", no_wrap=True)
    table.add_column("low to high", no_wrap=True, justify="right")
    table.add_column("now", no_wrap=True, justify="right")
    for run in training[:MOST_CURVES]:
        table.add_row(
            Text(run.arm if run.attempt == 1 else f"{run.arm} (attempt {run.attempt})"),
            str(run.seed),
            f"{run.step}/{run.steps or '?'}",
            "" if run.seconds is None or not run.step else f"{run.seconds / run.step:.2g}",
            _curve(run.curve),
            f"{min(run.curve):.3f} to {max(run.curve):.3f}" if run.curve else "",
            "" if run.train_reward is None else f"{run.train_reward:.3f}",
        )
    if len(training) > MOST_CURVES:
        table.add_row(Text(f"({len(training) - MOST_CURVES} more runs not shown)", style="dim"))
    return table


def _curve(values: Sequence[float]) -> Text:
    """Return a line of blocks, of which the lowest value has the lowest."""
    if not values:
        return Text("no step yet", style="dim")
    low, high = min(values), max(values)
    scale = (len(BLOCKS) - 1) / (high - low) if high > low else 0.0
    return Text("".join(BLOCKS[round((value - low) * scale)] for value in values), style="cyan")


def _cell(run: RunView | None, *, is_waiting: bool) -> Text:
    """Return how one seed stands: its score, its step, or what became of it."""
    if run is None:
        return Text("waits" if is_waiting else "–", style="dim")
    status = RunStatus(run.status)
    said = run.status
    if run.final is not None:
        said = f"{run.final:.3f}"
    elif status is RunStatus.RUNNING:
        said = f"{run.step}/{run.steps or '?'}"
    return Text(said, style=_STYLES.get(status, ""))


def _sign(run: RunView | None) -> Text:
    if run is None:
        return Text("·", style="dim")
    status = RunStatus(run.status)
    return Text(_SIGNS.get(status, UNDER_WAY), style=_STYLES.get(status, ""))


def _mean(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{fmean(known):.3f}" if known else ""
