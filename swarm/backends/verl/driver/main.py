"""The entry point of the driver process; all training processes end with it."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NoReturn

from swarm.backends.process.wire import Inbox, Message, attempt, open_pipes
from swarm.backends.verl.driver.reaper import start_reaper
from swarm.sampler import EngineLost

if TYPE_CHECKING:
    from swarm.backends.verl.driver.operations import Operations

logger = logging.getLogger(__name__)

END_TIMEOUT_S: Final = 4.0
"""Time for an orderly end after the parent has closed the pipe; the parent kills a second later."""
LOST_STATUS: Final = 3
WORKER_VARIABLES: Final = ("VERL_PLATFORM", "VERL_USE_EXTERNAL_MODULES", "OMP_NUM_THREADS", "HF_HUB_OFFLINE")
"""Environment variables that training processes on other hosts also need."""


def main() -> None:
    start_reaper()
    inbox, send = open_pipes(_end_in_order)
    # Imported late: libraries may print while they load, and the parent may die meanwhile.
    from swarm.backends.verl.driver.operations import Operations

    environment = {name: os.environ[name] for name in WORKER_VARIABLES if name in os.environ}
    operations = Operations(environment, _die)
    try:
        with contextlib.suppress(BrokenPipeError):
            while (message := inbox.get()) is not None:
                answer = _answer(operations, message)
                send(answer)
                if message["op"] == "open" and "error" in answer:
                    # A half-built trainer is useless; the next start is a new driver.
                    return
    finally:
        operations.end()
    # Ray's exit handler would look for a cluster that no longer exists.
    os._exit(0)


def _answer(operations: Operations, message: Mapping[str, Any]) -> Message:
    op: str = message["op"]

    def carry_out() -> Any:
        try:
            return operations.carry_out(op, message["args"])
        except EngineLost as error:
            # The state of this process is unknown: the parent starts another driver.
            _die(error.message)

    return {"id": message["id"], **attempt(op, carry_out)}


def _die(reason: str) -> NoReturn:
    """End at once, with all started processes. The parent reads the reason in the last line of the log."""
    logger.error("%s", reason)
    sys.stderr.flush()
    # Output of other processes is forwarded to the same log, and must not come after the reason.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    os._exit(LOST_STATUS)


def _end_in_order(inbox: Inbox) -> None:
    """End in order, because the parent closed the pipe or died. Do not wait for a long step."""
    inbox.put(None)
    time.sleep(END_TIMEOUT_S)
    os._exit(0)


if __name__ == "__main__":
    main()
