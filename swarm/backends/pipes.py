"""The child's end of the pipes between a backend's process and the server: messages in, messages out, and a log.

Place in the flow: opened first by every process that a `WorkerProcess` starts. The process itself carries out the
messages; this module knows nothing of what they ask for.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable

from swarm.backends.local.wire import Message, Unpacker, pack

READ_BYTES = 2**18


Inbox = queue.SimpleQueue[Message | None]


def open_pipes(on_close: Callable[[Inbox], None]) -> tuple[Inbox, Callable[[Message], None]]:
    """The messages that come in on standard input, and how to send one on what was standard output.

    `on_close` is called, in a thread and with what came in, when the parent has closed the pipe or died.
    """
    faulthandler.enable()
    # A Ctrl-C is for the parent, which then stops this process in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    inbox: Inbox = queue.SimpleQueue()
    threading.Thread(target=_read_input, args=(inbox, on_close), daemon=True).start()
    return inbox, _claim_output()


def _claim_output() -> Callable[[Message], None]:
    """Keep standard output for messages alone; what libraries print goes to standard error from now on."""
    output = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def send(message: Message) -> None:
        data = memoryview(pack(message))
        while data:
            data = data[os.write(output, data) :]

    return send


def _read_input(inbox: Inbox, on_close: Callable[[Inbox], None]) -> None:
    unpacker = Unpacker()
    while data := os.read(sys.stdin.fileno(), READ_BYTES):
        for message in unpacker.feed(data):
            inbox.put(message)
    on_close(inbox)
