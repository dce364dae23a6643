"""Weights & Biases as a sink: a run for each training, in the project of its job. Chosen episodes are a table."""

# pyright: reportUnknownMemberType=false, reportArgumentType=false

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from swarm.sinks.base import TrainingDescription, TrainingUpdate
from swarm.sinks.rows import EPISODE_COLUMNS, RunSink, episode_rows, list_rows, run_name, settings_of

if TYPE_CHECKING:
    from wandb.sdk.wandb_run import Run

LIBRARY = "wandb"
STEP, SECONDS = "step", "seconds"
"""The values that the curves are drawn over. W&B's own step may not go back, so it is not used."""


class WandbSink(RunSink["Run"]):
    """The sink of a W&B account, or of a folder in offline mode.

    WANDB_MODE, WANDB_ENTITY and `wandb login` decide where it writes. W&B deletes no values, so undone steps stay in
    its curves beside those that took their place.
    """

    def __init__(self, directory: str) -> None:
        super().__init__()
        self._directory = directory

    @property
    def place(self) -> str:
        names = ("WANDB_BASE_URL", "WANDB_ENTITY", "WANDB_MODE", "WANDB_DIR")
        return "wandb " + " ".join(os.environ.get(name, "") for name in names)

    def holds(self, key: str) -> bool:
        """Return True: whether W&B still has a run is not asked, because the answer may take minutes."""
        return True

    def _open(self, training: TrainingDescription) -> Run:
        import wandb

        run = wandb.init(
            project=training.project or "default",
            dir=self._directory,
            name=run_name(training),
            id=re.sub(r"[^A-Za-z0-9_-]", "-", training.key),
            config=settings_of(training),
            resume="allow",
            # The process is the recorder's: its load and its output are not those of the training.
            settings=wandb.Settings(x_disable_stats=True, console="off", silent=True),
        )
        run.define_metric("*", step_metric=STEP)
        run.define_metric("system/*", step_metric=SECONDS)
        return run

    def _log(self, run: Run, update: TrainingUpdate) -> None:
        from wandb import Table

        changes = {f"changed_at_{step}": dict(settings) for step, settings in update.training.changes.items()}
        run.config.update(changes, allow_val_change=True)
        for step, _, values in list_rows(update):
            run.log({STEP: step, **values})
        for reading in update.system:
            run.log({SECONDS: reading.at - update.training.begun_at, **reading.values})
        if update.episodes:
            step = max(episode.step for episode in update.episodes)
            rows = episode_rows(update.episodes)
            run.log({STEP: step, "episodes": Table(columns=list(EPISODE_COLUMNS), data=rows)})

    def _finish(self, run: Run) -> None:
        run.finish()


def open_wandb(runs: str) -> WandbSink:
    """Open the sink of the account, or the folder, that the environment names."""
    return WandbSink(os.environ.get("WANDB_DIR", runs))
