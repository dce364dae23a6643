"""Opens streams on a worker that has closed its input and lives on, and prints the error that ends this.

Place in the flow: test_worker_process.py runs it in a process of its own, for it needs the event loop of the server,
which takes no bytes for a closed pipe and leaves what belonged to a dead process to the garbage collector.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import uvloop

from swarm.engine.local.process import WorkerProcess
from swarm.errors import SwarmError

SCRIPT = "import os, time; os.close(0); time.sleep(60)"


async def main(log_path: Path) -> None:
    worker = WorkerProcess([sys.executable, "-c", SCRIPT], log_path)
    await worker.start()
    assert worker.pid is not None
    try:
        while True:
            stream = await worker.open_stream("generate", None)
            stream.close()
            await asyncio.sleep(0.01)
    except SwarmError as error:
        sys.stdout.write(f"{type(error).__name__}\n")
    finally:
        os.kill(worker.pid, signal.SIGKILL)
        await worker.stop()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(Path(sys.argv[1])))
