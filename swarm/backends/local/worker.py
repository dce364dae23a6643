"""The entry point of the local worker process, which ends when its parent does."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection
from pathlib import Path

from swarm.backends.process.wire import open_pipes
from swarm.processes.imports import collector_paused, kept_out, plain_httpx


def main() -> None:
    shared_files: set[Path] = set()
    # Without a parent the worker ends at once, even in the middle of a training step.
    inbox, send = open_pipes(on_close=lambda _: _end(shared_files))
    # Imported late: libraries may print while they load, and the parent may die meanwhile.
    # transformers imports scipy for the losses of object detection, which takes a tenth of a worker's start.
    with collector_paused("torch"), kept_out("scipy"), plain_httpx():
        from swarm.backends.local.operations import Worker

    with contextlib.suppress(BrokenPipeError):
        Worker(inbox, send, shared_files).run()


def _end(shared_files: Collection[Path]) -> None:
    """End the process, and remove its files in shared memory.

    These files take memory until they are removed, and no other process is left to do that.
    """
    for path in tuple(shared_files):
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
            path.parent.rmdir()
    os._exit(0)


if __name__ == "__main__":
    main()
