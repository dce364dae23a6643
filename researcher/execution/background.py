"""Background threads for work that takes longer than a node may: booting engines and measuring scores."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")

CHECK_S = 0.2
"""Seconds between two looks at whether a call should be left."""


class Drained(BaseException):
    """Raised inside background work once the study is asked to stop.

    It is not an Exception, so that code that repeats failed attempts does not repeat this one.
    """


class BackgroundTasks:
    """Background tasks by key; `stop` asks the running tasks to end early."""

    def __init__(self, workers: int) -> None:
        self.stop = threading.Event()
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="background")
        self._tasks: dict[str, Future[Any]] = {}
        self._changed = threading.Event()

    def submit(self, key: str, task: Callable[[], Any]) -> None:
        future = self._pool.submit(task)
        self._tasks[key] = future
        future.add_done_callback(lambda _: self._changed.set())

    def take(self, key: str) -> Future[Any] | None:
        """Return the task of this key and forget it, if it has ended; None while it runs or if there is none."""
        future = self._tasks.get(key)
        if future is None or not future.done():
            return None
        return self._tasks.pop(key)

    @contextmanager
    def ended(self, key: str) -> Generator[Future[Any] | None]:
        """Yield the task of this key if it has ended, else None; forget it at the end of the block.

        After an error in the block, such as a result that cannot be stored now, the next call yields the task again.
        """
        future = self._tasks.get(key)
        if future is not None and not future.done():
            future = None
        yield future
        if future is not None and self._tasks.get(key) is future:
            del self._tasks[key]

    def await_end(self, key: str) -> None:
        """Wait until the task of this key has ended, if there is one, and forget it.

        Raises Drained as soon as the work should end.
        """
        future = self._tasks.get(key)
        while future is not None and not wait([future], CHECK_S).done:
            self.check()
        self._tasks.pop(key, None)

    def abandon(self, key: str, on_result: Callable[[Any], None]) -> None:
        """Forget a task; if it still returns a result, call `on_result` with the result in the task's thread."""
        future = self._tasks.pop(key, None)
        if future is not None and not future.cancel():
            future.add_done_callback(lambda done: _hand_over(done, on_result))

    def wait(self, timeout_s: float) -> None:
        """Wait until a task ends, `wake` is called, or the time is over."""
        self._changed.wait(timeout_s)
        self._changed.clear()

    def wake(self) -> None:
        self._changed.set()

    def request_stop(self) -> None:
        """Ask the running tasks to end; safe in a signal handler."""
        self.stop.set()
        self.wake()

    def join(self) -> None:
        """Drop the queued tasks and wait for the running ones."""
        self.request_stop()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def check(self) -> None:
        """Raise Drained if the work should end."""
        if self.stop.is_set():
            raise Drained

    def sleep(self, seconds: float) -> None:
        """Sleep for so many seconds. Raises Drained as soon as the work should end."""
        if self.stop.wait(seconds):
            raise Drained

    def carry(self, call: Callable[[], T], limit_s: float) -> T:
        """Return the result of `call`, which runs in a daemon thread.

        Raises Drained as soon as the work should end, TimeoutError after `limit_s`. The call is then left to itself,
        and does not keep the process from ending.
        """
        deadline = time.monotonic() + limit_s
        future: Future[T] = Future()
        threading.Thread(target=_settle, args=(future, call), name="call", daemon=True).start()
        while not wait([future], CHECK_S).done:
            self.check()
            if time.monotonic() > deadline:
                raise TimeoutError(f"not done after {limit_s:.0f} s")
        return future.result()


def _settle(future: Future[T], call: Callable[[], T]) -> None:
    try:
        future.set_result(call())
    except BaseException as error:  # noqa: BLE001 - the boundary: it is raised in the thread that asked
        future.set_exception(error)


def _hand_over(done: Future[Any], on_result: Callable[[Any], None]) -> None:
    if not done.cancelled() and done.exception() is None:
        on_result(done.result())
