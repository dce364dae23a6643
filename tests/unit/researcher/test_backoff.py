"""How long a study waits for its language model: pauses that grow, what a server asks for, and the end of the wait."""

from __future__ import annotations

import pytest

from researcher.errors import LanguageModelUnavailable
from researcher.planner.conversation.backoff import LONGEST_PAUSE_S, Backoff


class Sleeper:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []
        self.said: list[tuple[str, str]] = []

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds

    def say(self, kind: str, message: str) -> None:
        self.said.append((kind, message))

    def backoff(self, patience_s: float = 3600.0) -> Backoff:
        return Backoff(
            "m",
            patience_s=patience_s,
            sleep=self.sleep,
            report=self.say,
            clock=lambda: self.now,
            jitter=lambda least, most: most,
        )


@pytest.fixture
def sleeper() -> Sleeper:
    return Sleeper()


def fail_until_the_end(backoff: Backoff) -> LanguageModelUnavailable:
    with pytest.raises(LanguageModelUnavailable) as ended:
        while True:
            backoff.wait("no answer")
    return ended.value


def test_pauses_double_up_to_a_bound_and_fill_the_patience(sleeper: Sleeper) -> None:
    ended = fail_until_the_end(sleeper.backoff(1000.0))

    assert sleeper.pauses[:4] == [2.0, 4.0, 8.0, 16.0]
    assert max(sleeper.pauses) <= LONGEST_PAUSE_S
    assert sum(sleeper.pauses) == pytest.approx(1000.0)
    assert "no usable answer for 17 min" in str(ended) and str(ended).endswith("no answer")


def test_a_server_that_asks_for_a_longer_pause_gets_it(sleeper: Sleeper) -> None:
    backoff = sleeper.backoff()
    backoff.wait("HTTP 429", retry_after_s=120.0)
    backoff.wait("HTTP 429", retry_after_s=0.0)
    assert sleeper.pauses == [120.0, 4.0]


def test_a_server_that_asks_for_more_than_the_patience_is_not_called_before(sleeper: Sleeper) -> None:
    backoff = sleeper.backoff(60.0)
    with pytest.raises(LanguageModelUnavailable):
        backoff.wait("HTTP 429", retry_after_s=7200.0)
    assert sleeper.pauses == []
    with pytest.raises(LanguageModelUnavailable):
        backoff.ensure_open()
    sleeper.now += 7200.0
    backoff.ensure_open()


def test_once_the_patience_is_over_each_question_is_tried_once(sleeper: Sleeper) -> None:
    backoff = sleeper.backoff(10.0)
    fail_until_the_end(backoff)
    slept = len(sleeper.pauses)
    backoff.ensure_open()
    with pytest.raises(LanguageModelUnavailable):
        backoff.wait("no answer")
    assert len(sleeper.pauses) == slept


def test_an_answer_begins_the_count_anew(sleeper: Sleeper) -> None:
    backoff = sleeper.backoff(10.0)
    fail_until_the_end(backoff)
    backoff.succeed()
    sleeper.pauses.clear()
    fail_until_the_end(backoff)
    assert sum(sleeper.pauses) == pytest.approx(10.0)


def test_every_pause_and_the_return_of_the_model_are_told(sleeper: Sleeper) -> None:
    backoff = sleeper.backoff()
    backoff.wait("HTTP 503")
    backoff.succeed()
    backoff.succeed()
    assert [kind for kind, _ in sleeper.said] == ["llm.waiting", "llm.answering"]
    assert "(HTTP 503). Attempt 2 is in 2 s; the study waits for 60 min at most." in sleeper.said[0][1]
    assert sleeper.said[1][1] == "m answers again, after 2 s."


def test_without_patience_the_first_failure_ends_the_wait(sleeper: Sleeper) -> None:
    with pytest.raises(LanguageModelUnavailable):
        sleeper.backoff(0.0).wait("no answer")
    assert sleeper.pauses == []
