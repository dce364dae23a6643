"""The tool `metrics`: the training curves of arms, as numbers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from pydantic import Field

from experiments_db import MetricSpan, Run
from researcher.planner.tools.base import PlannerTool, ToolArguments, ToolRefused
from researcher.planner.tools.sources import ToolSources
from researcher.planner.tools.texts import number

MAX_POINTS = 40
MAX_NAMES = 8
MAX_RUNS = 40


class MetricsArguments(ToolArguments):
    arms: tuple[str, ...] = Field(default=(), description="Names of arms; empty means all.")
    names: tuple[str, ...] = Field(
        default=(), max_length=MAX_NAMES, description="Names of metrics; empty lists the names that there are."
    )
    points: int = Field(default=20, ge=1, le=MAX_POINTS, description="Points per curve; each is a mean over steps.")


def metrics_tool(sources: ToolSources) -> PlannerTool:
    """Return the tool."""

    def call(arguments: MetricsArguments) -> str:
        runs = _runs(sources, arguments.arms)
        if not runs:
            return "these arms have no run with a curve yet"
        known = sources.store.metric_names(list(runs))
        if not arguments.names:
            return f"{len(runs)} runs; metrics: {', '.join(known) or 'none yet'}"
        if unknown := [name for name in arguments.names if name not in known]:
            raise ToolRefused(f"no metric {', '.join(unknown)}; there are: {', '.join(known) or 'none yet'}")
        spans = sources.store.sample_metrics(list(runs), arguments.names, most=arguments.points)
        spans.sort(key=lambda span: (span.name, list(runs).index(span.run_id), span.first_step))
        curves = groupby(spans, key=lambda span: (span.name, span.run_id))
        lines = [_curve(name, runs[run_id], list(curve)) for (name, run_id), curve in curves]
        return "\n".join(["step: value, each the mean from that step to the next", *lines])

    return PlannerTool(
        "metrics",
        "Read training curves as numbers: rewards, entropy, KL, tokens, seconds per step, silent groups and others, "
        "per arm and seed. Without names it lists the metrics.",
        MetricsArguments,
        call,
    )


def _runs(sources: ToolSources, arms: Sequence[str]) -> dict[str, str]:
    """Return the titles of the runs of these arms, by id. Raises ToolRefused if there are too many."""
    chosen = [sources.arm(name) for name in arms] if arms else sources.store.list_experiments(sources.study_id)
    titles = {run.id: _title(arm.name, run) for arm in chosen for run in sources.runs(arm)}
    if len(titles) > MAX_RUNS:
        raise ToolRefused(f"these are {len(titles)} runs, at most {MAX_RUNS} are shown: name fewer arms")
    return titles


def _title(arm: str, run: Run) -> str:
    rung = f" up to step {run.rung}" if run.rung else ""
    attempt = f" attempt {run.attempt}" if run.attempt > 1 else ""
    return f"{arm} seed {run.seed}{rung}{attempt}"


def _curve(name: str, title: str, spans: Sequence[MetricSpan]) -> str:
    """Return one curve: its first, last, lowest, highest and mean value, and its points."""
    means = [span.mean for span in spans if span.mean is not None]
    lows = [span.low for span in spans if span.low is not None]
    highs = [span.high for span in spans if span.high is not None]
    missing = sum(span.missing for span in spans)
    points = " ".join(f"{span.first_step}: {number(span.mean)}" for span in spans)
    if not means:
        return f"{name}, {title}: no finite value in {missing}"
    summary = (
        f"first {number(means[0])} last {number(means[-1])} min {number(min(lows))} max {number(max(highs))} "
        f"mean {number(sum(means) / len(means))}{f', {missing} not finite' if missing else ''}"
    )
    return f"{name}, {title}: {summary} | {points}"
