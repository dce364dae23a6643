"""Entry point of the local worker process: it ends when its parent does.

Place in the flow: started by `WorkerProcess` as `python -m swarm.backends.local.worker`; operations.py does what the
messages ask. This module knows nothing of models.
"""

from __future__ import annotations

import contextlib
import os

from swarm.backends.pipes import open_pipes
from swarm.processes.imports import collector_paused


def main() -> None:
    # Without a parent it ends at once, also in the middle of a training step.
    inbox, send = open_pipes(on_close=lambda _: os._exit(0))
    # Imported late: libraries may print while they load, and the parent may die meanwhile.
    with collector_paused("torch"):
        from swarm.backends.local.operations import Worker

    with contextlib.suppress(BrokenPipeError):
        Worker(inbox, send).run()


if __name__ == "__main__":
    main()
