"""The child's end of the pipes between a backend's process and the server: messages in, messages out, and a log.

Place in the flow: every process that a `WorkerProcess` starts opens its pipes first. The process itself carries out the
messages. This module does not know what the messages ask for.
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

from swarm.backends.process.wire import Message, Unpacker, pack

READ_BYTES = 2**18


Inbox = queue.SimpleQueue[Message | None]


def open_pipes(on_close: Callable[[Inbox], None]) -> tuple[Inbox, Callable[[Message], None]]:
    """Return the messages that arrive on standard input, and a function that sends one on the former standard output.

    When the parent has closed the pipe or died, `on_close` is called in a thread with the inbox.
    """
    faulthandler.enable()
    # A Ctrl-C is meant for the parent, which then stops this process in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    inbox: Inbox = queue.SimpleQueue()
    threading.Thread(target=_read_input, args=(inbox, on_close), daemon=True).start()
    return inbox, _claim_output()


def _claim_output() -> Callable[[Message], None]:
    """Reserve standard output for messages; output of libraries goes to standard error from now on."""
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
