"""Entry point of the worker process: its pipes, and its end when the parent ends.

Place in the flow: started by `WorkerProcess` as `python -m swarm.backends.local.worker`. Frames come in on standard
input and go out on what was standard output; operations.py does what they ask. Knows nothing of models.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable

from swarm.backends.local.messages import Message, Unpacker, pack
from swarm.imports import collector_paused

READ_BYTES = 2**18


def main() -> None:
    faulthandler.enable()
    # A Ctrl-C is for the parent, which then stops this process in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    send = _claim_output()
    inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
    threading.Thread(target=_read_input, args=(inbox,), daemon=True).start()
    # Imported late: libraries may print while they load, and the parent may die meanwhile.
    with collector_paused("torch"):
        from swarm.backends.local.operations import Worker

    with contextlib.suppress(BrokenPipeError):
        Worker(inbox, send).run()


def _claim_output() -> Callable[[Message], None]:
    """Keep standard output for frames alone; what libraries print goes to standard error from now on."""
    frames = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def send(message: Message) -> None:
        data = memoryview(pack(message))
        while data:
            data = data[os.write(frames, data) :]

    return send


def _read_input(inbox: queue.SimpleQueue[Message]) -> None:
    unpacker = Unpacker()
    while data := os.read(sys.stdin.fileno(), READ_BYTES):
        for message in unpacker.feed(data):
            inbox.put(message)
    # The parent closed the pipe or died: end at once, also in the middle of a training step.
    os._exit(0)


if __name__ == "__main__":
    main()
