"""The tool `episodes`: conversations of single attempts, from scores on the search split and from trials."""

from __future__ import annotations

import random
from enum import StrEnum

from pydantic import Field

from experiments_db import EpisodeSummary
from researcher.planner.tools.base import PlannerTool, ToolArguments
from researcher.planner.tools.sources import ToolSources
from researcher.planner.tools.texts import as_data, clip, messages_as_text, number
from researcher.planner.tools.trials import describe_trial

MAX_SHOWN = 8
MAX_CHARS = 9_600
"""The characters of all conversations of one answer together."""
MESSAGE_CHARS = 1_500


class EpisodeChoice(StrEnum):
    """The attempts that `episodes` shows; TRIAL are those of the arm's latest trial."""

    FAILED = "failed"
    SOLVED = "solved"
    RANDOM = "random"
    TRIAL = "trial"


class EpisodesArguments(ToolArguments):
    arm: str
    which: EpisodeChoice = EpisodeChoice.FAILED
    count: int = Field(default=4, ge=1, le=MAX_SHOWN)


def episodes_tool(sources: ToolSources) -> PlannerTool:
    """Return the tool."""

    def call(arguments: EpisodesArguments) -> str:
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
        shown = [_show(sources, each, MAX_CHARS // len(chosen)) for each in chosen]
        return f"{len(chosen)} of {len(fitting)} attempts\n{as_data(chr(10).join(shown))}"

    return PlannerTool(
        "episodes",
        "Read conversations of an arm's held-out attempts (failed, solved or random), as the model saw the last of its "
        "calls, or of its trial before training.",
        EpisodesArguments,
        call,
    )


def _fits(episode: EpisodeSummary, which: EpisodeChoice) -> bool:
    match which:
        case EpisodeChoice.FAILED:
            return not episode.is_success
        case EpisodeChoice.SOLVED:
            return bool(episode.is_success)
        case _:
            return True


def _show(sources: ToolSources, summary: EpisodeSummary, most: int) -> str:
    episode = sources.store.get_episode(summary.run_id, summary.episode_id)
    head = (
        f"--- run {summary.run_id}, task {summary.task_id} of {summary.split}, after step {summary.step}: "
        f"score {number(summary.reward)}, {'solved' if summary.is_success else 'not solved'}"
    )
    return clip(f"{head}\n{messages_as_text(list(episode.messages), MESSAGE_CHARS)}", most)
