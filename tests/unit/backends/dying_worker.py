"""Opens streams on a worker from before it is killed until its end is seen, and prints the errors that this raises.

It has a process of its own, because it needs the server's event loop, which treats closed pipes in its own way.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import uvloop

from swarm.backends.process.worker_process import WorkerProcess
from swarm.errors import SwarmError

SCRIPT = "import time; time.sleep(60)"
ATTEMPTS = 5


async def main(log_path: Path) -> None:
    worker = WorkerProcess([sys.executable, "-c", SCRIPT], log_path)
    names: set[str] = set()
    for _ in range(ATTEMPTS):
        await worker.start()
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGKILL)
        while not worker.exited.is_set():
            names |= await open_stream(worker)
            await asyncio.sleep(0)
        await worker.stop()
    sys.stdout.write(f"{' '.join(sorted(names))}\n")


async def open_stream(worker: WorkerProcess) -> set[str]:
    try:
        stream = await worker.open_stream("generate", None)
        stream.close()
    except SwarmError as error:
        return {type(error).__name__}
    return set()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(Path(sys.argv[1])))
