"""The waiting for a language model that gives no answer."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from researcher.errors import LanguageModelUnavailable

FIRST_PAUSE_S = 2.0
LONGEST_PAUSE_S = 300.0
PATIENCE_S = 3600.0


class Backoff:
    """The outages of one language model, as one process sees them.

    `patience_s` counts in seconds from the first failed attempt after an answer. After that time, each question gets
    one attempt, until the model answers again. `sleep` may raise any exception that ends the work. `say` gets the kind
    of an event and a line for people.
    """

    def __init__(
        self,
        model: str,
        *,
        patience_s: float = PATIENCE_S,
        sleep: Callable[[float], None] = time.sleep,
        report: Callable[[str, str], object] = lambda kind, message: None,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._model = model
        self._patience_s = patience_s
        self._sleep = sleep
        self._report = report
        self._clock = clock
        self._jitter = jitter
        self._failures = 0
        self._failed_since: float | None = None
        self._closed_until = 0.0
        self._reason = ""

    def ensure_open(self) -> None:
        """Raise LanguageModelUnavailable while the server has asked not to be called."""
        if self._failed_since is not None and self._clock() < self._closed_until:
            raise self._unavailable()

    def wait(self, reason: str, retry_after_s: float | None = None) -> None:
        """Pause after a failed attempt, for at least `retry_after_s`.

        Raises LanguageModelUnavailable if the outage has lasted for `patience_s`, or would have before the next attempt
        that the server allows.
        """
        now = self._clock()
        if self._failed_since is None:
            self._failed_since = now
        self._failures += 1
        self._reason = reason
        self._closed_until = now + (retry_after_s or 0.0)
        remaining = self._patience_s - (now - self._failed_since)
        if remaining <= 0 or (retry_after_s or 0.0) > remaining:
            raise self._unavailable()
        pause = min(remaining, max(self._pause(), retry_after_s or 0.0))
        self._report(
            "llm.waiting",
            f"No usable answer of {self._model} ({reason}). Attempt {self._failures + 1} is in {_in_words(pause)}; the "
            f"study waits for {_in_words(remaining)} at most.",
        )
        self._sleep(pause)

    def succeed(self) -> None:
        """Record that the model has answered: the next failure begins another outage."""
        if self._failed_since is not None:
            lasted = _in_words(self._clock() - self._failed_since)
            self._report("llm.answering", f"{self._model} answers again, after {lasted}.")
        self._failed_since, self._failures, self._closed_until = None, 0, 0.0

    def _pause(self) -> float:
        # The exponent is bounded, because a power of some thousands overflows a float.
        longest = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(self._failures - 1, 30))
        return self._jitter(longest / 2, longest)

    def _unavailable(self) -> LanguageModelUnavailable:
        assert self._failed_since is not None, "an attempt has failed"
        lasted = _in_words(self._clock() - self._failed_since)
        return LanguageModelUnavailable(
            f"{self._model} has given no usable answer for {lasted}, in {self._failures} attempt(s): {self._reason}"
        )


def _in_words(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
