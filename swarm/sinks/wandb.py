"""Weights & Biases as a sink: a run for each training, in the project of its job. Chosen episodes are a table."""

# pyright: reportUnknownMemberType=false, reportArgumentType=false

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from swarm.sinks.base import TrainingDescription, TrainingUpdate
from swarm.sinks.rows import EPISODE_COLUMNS, episode_rows, has_content, list_rows, run_name, settings_of

if TYPE_CHECKING:
    from wandb.sdk.wandb_run import Run

LIBRARY = "wandb"
STEP, SECONDS = "step", "seconds"
"""The values that the curves are drawn over. W&B's own step may not go back, so it is not used."""


class WandbSink:
    """The sink of a W&B account, or of a folder in offline mode. One run is open at a time.

    WANDB_MODE, WANDB_ENTITY and `wandb login` decide where it writes. W&B deletes no values, so undone steps stay in
    its curves beside those that took their place.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._key: str | None = None
        self._run: Run | None = None

    @property
    def place(self) -> str:
        names = ("WANDB_BASE_URL", "WANDB_ENTITY", "WANDB_MODE", "WANDB_DIR")
        return "wandb " + " ".join(os.environ.get(name, "") for name in names)

    def holds(self, key: str) -> bool:
        """Return True: whether W&B still has a run is not asked, because the answer may take minutes."""
        return True

    def write(self, update: TrainingUpdate) -> None:
        """Store an update. Raises what W&B raises."""
        from wandb import Table

        if self._key != update.training.key and not has_content(update):
            return
        run = self._run_of(update.training)
        for step, _, values in list_rows(update):
            run.log({STEP: step, **values})
        for reading in update.system:
            run.log({SECONDS: reading.at - update.training.begun_at, **reading.values})
        if update.episodes:
            step = max(episode.step for episode in update.episodes)
            rows = episode_rows(update.episodes)
            run.log({STEP: step, "episodes": Table(columns=list(EPISODE_COLUMNS), data=rows)})

    def close(self) -> None:
        if self._run is not None:
            self._run.finish()
        self._key = self._run = None

    def _run_of(self, training: TrainingDescription) -> Run:
        import wandb

        if self._run is None or self._key != training.key:
            self.close()
            self._run = wandb.init(
                project=training.project or "default",
                dir=self._directory,
                name=run_name(training),
                id=re.sub(r"[^A-Za-z0-9_-]", "-", training.key),
                config=settings_of(training),
                resume="allow",
                # The process is the recorder's: its load and its output are not those of the training.
                settings=wandb.Settings(x_disable_stats=True, console="off", silent=True),
            )
            self._run.define_metric("*", step_metric=STEP)
            self._run.define_metric("system/*", step_metric=SECONDS)
            self._key = training.key
        self._run.config.update(
            {f"changed_at_{step}": dict(settings) for step, settings in training.changes.items()}, allow_val_change=True
        )
        return self._run


def open_wandb(runs: str) -> WandbSink:
    """Open the sink of the account, or the folder, that the environment names."""
    return WandbSink(os.environ.get("WANDB_DIR", runs))
