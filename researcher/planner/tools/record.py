"""The tools that read the record of a study: programs, curves, episodes and the notebook."""

from __future__ import annotations

import difflib
import random
from collections.abc import Sequence
from enum import StrEnum
from itertools import groupby
from typing import Any

from pydantic import Field

from experiments_db import EpisodeSummary, Experiment, MetricSpan, NotebookEntry, NoteKind, Run, read_search_arms
from researcher.planner.texts import as_data, clip, messages_as_text, number, page, requests_as_text, settings_as_text
from researcher.planner.tools.base import ToolArguments, ToolRefused
from researcher.planner.tools.drafts import describe_trial
from researcher.planner.tools.sources import ToolSources, study_tool

MAX_POINTS = 40
MAX_NAMES = 8
MAX_RUNS = 40
MAX_EPISODES = 8
MAX_CHARS = 9_600
"""The characters of all conversations of one answer together."""
MESSAGE_CHARS = 1_500


class CodeArguments(ToolArguments):
    arm: str
    offset: int = Field(default=0, ge=0, description="The character to begin with, for the next page of a long text.")


class DiffArguments(ToolArguments):
    arm: str
    against: str = Field(description="The arm that it is compared with, such as its parent.")
    offset: int = Field(default=0, ge=0)


@study_tool("code", "Read the whole program and the settings of an arm.")
def code_tool(sources: ToolSources, arguments: CodeArguments) -> str:
    arm = sources.arm(arguments.arm)
    head = f"{arm.name} ({arm.status}): {arm.purpose}" if arm.purpose else f"{arm.name} ({arm.status})"
    environment = f"\ntrains on: {arm.train_environment}" if arm.train_environment else ""
    settings = f"\nsettings:\n{settings_as_text(arm.job)}\nprogram:" if not arguments.offset else ""
    return f"{head}{environment}{settings}\n{page(arm.program_code or '(not written yet)', arguments.offset)}"


@study_tool("diff", "Show what differs between the programs and settings of two arms.")
def diff_tool(sources: ToolSources, arguments: DiffArguments) -> str:
    new, old = sources.arm(arguments.arm), sources.arm(arguments.against)
    settings, program = describe_change(old, new)
    return (settings if not arguments.offset else "") + page(program, arguments.offset)


def describe_change(old: Experiment, new: Experiment) -> tuple[str, str]:
    """Return the settings in which two arms differ, and the difference of their programs."""
    changed = "\n".join(_changed_settings(old, new)) or "none"
    was, now = old.program_code.splitlines(), new.program_code.splitlines()
    program = "\n".join(difflib.unified_diff(was, now, old.name, new.name, lineterm=""))
    return f"settings that differ:\n{changed}\nprogram:\n", program or "the same to the last byte"


def _changed_settings(old: Experiment, new: Experiment) -> list[str]:
    names = sorted(old.job.keys() | new.job.keys())
    lines = [f"{name}: {_value(old.job, name)} -> {_value(new.job, name)}" for name in names
             if _value(old.job, name) != _value(new.job, name)]  # fmt: skip
    if old.train_environment != new.train_environment:
        lines.append(f"train environment: {old.train_environment} -> {new.train_environment}")
    return lines


def _value(job: Any, name: str) -> Any:
    return job.get(name, "(default)")


class RequestsArguments(ToolArguments):
    arm: str


@study_tool("requests", "Read a request of an arm's agent beside the one of the plain agent for the same task.")
def requests_tool(sources: ToolSources, arguments: RequestsArguments) -> str:
    arm = sources.arm(arguments.arm)
    found = next(item.requests for item in read_search_arms(sources.store, sources.study_id) if item.name == arm.name)
    if found is None:
        return "no agent of its own has played a score of this arm"
    return as_data(requests_as_text(found, MESSAGE_CHARS))


class MetricsArguments(ToolArguments):
    arms: tuple[str, ...] = Field(default=(), description="Names of arms; empty means all.")
    names: tuple[str, ...] = Field(
        default=(), max_length=MAX_NAMES, description="Names of metrics; empty lists the names that there are."
    )
    points: int = Field(default=20, ge=1, le=MAX_POINTS, description="Points per curve; each is a mean over steps.")


@study_tool(
    "metrics",
    "Read training curves as numbers: rewards, entropy, KL, tokens, seconds per step, silent groups and others, "
    "per arm and seed. Without names it lists the metrics.",
)
def metrics_tool(sources: ToolSources, arguments: MetricsArguments) -> str:
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


class EpisodeChoice(StrEnum):
    """The attempts that `episodes` shows; TRIAL are those of the arm's latest trial."""

    FAILED = "failed"
    SOLVED = "solved"
    RANDOM = "random"
    TRIAL = "trial"


class EpisodesArguments(ToolArguments):
    arm: str
    which: EpisodeChoice = EpisodeChoice.FAILED
    count: int = Field(default=4, ge=1, le=MAX_EPISODES)


@study_tool(
    "episodes",
    "Read conversations of an arm's held-out attempts (failed, solved or random), as the model saw the last of "
    "its calls, or of its trial before training.",
)
def episodes_tool(sources: ToolSources, arguments: EpisodesArguments) -> str:
    arm = sources.arm(arguments.arm)
    if arguments.which is EpisodeChoice.TRIAL:
        trials = sources.store.list_program_trials(sources.study_id, experiment_id=arm.id)
        return describe_trial(trials[-1]) if trials else "the program of this arm was not tried"
    splits = sources.open_splits()
    kept = [
        summary
        for run in sources.runs(arm)
        for summary in sources.store.list_episodes(run.id, limit=None)
        # Attempts of step 0 are those of the base weights, which an arm's program or settings did not train.
        if summary.split in splits and summary.step
    ]
    fitting = [each for each in kept if _fits(each, arguments.which)]
    if not fitting:
        return f"of {len(kept)} attempts that were kept of this arm, none is {arguments.which}"
    chosen = random.Random(arm.id).sample(fitting, min(arguments.count, len(fitting)))
    shown = [_show_episode(sources, each, MAX_CHARS // len(chosen)) for each in chosen]
    return f"{len(chosen)} of {len(fitting)} attempts\n{as_data(chr(10).join(shown))}"


def _fits(episode: EpisodeSummary, which: EpisodeChoice) -> bool:
    match which:
        case EpisodeChoice.FAILED:
            return not episode.is_success
        case EpisodeChoice.SOLVED:
            return bool(episode.is_success)
        case _:
            return True


def _show_episode(sources: ToolSources, summary: EpisodeSummary, most: int) -> str:
    episode = sources.store.get_episode(summary.run_id, summary.episode_id)
    head = (
        f"--- run {summary.run_id}, task {summary.task_id} of {summary.split}, after step {summary.step}: "
        f"score {number(summary.reward)}, {'solved' if summary.is_success else 'not solved'}"
    )
    return clip(f"{head}\n{messages_as_text(list(episode.messages), MESSAGE_CHARS)}", most)


class NotebookArguments(ToolArguments):
    kind: NoteKind | None = Field(default=None, description="Only entries of this kind.")
    offset: int = Field(default=0, ge=0, description="The character to begin with, for the next page.")


@study_tool("notebook", "Read the whole notebook, oldest entry first.")
def notebook_tool(sources: ToolSources, arguments: NotebookArguments) -> str:
    entries = sources.store.list_notes(sources.study_id, kind=arguments.kind)
    if not entries:
        return "no such entry yet"
    return page("\n".join(map(_show_entry, entries)), arguments.offset)


def _show_entry(entry: NotebookEntry) -> str:
    return f"[{entry.iteration + 1}] {entry.kind} ({entry.author}): {' '.join(entry.text.split())}"
