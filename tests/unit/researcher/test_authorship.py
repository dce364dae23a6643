"""Recorded attempts show whether the model solved a task, or the code of the program."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import pytest

from researcher.evaluation.authorship import MOST_TASKS, Authorship, count_authorship, read_answers
from swarm.environments import Environment, Grade, load_environment
from swarm.program import EndedAttempt
from swarm.schemas import EpisodeDetail, EpisodeView, TurnView
from swarm.tasks import Split
from swarm.types import Task

Call = tuple[str, str]
"""A request of an agent, and the reply of the model."""


@pytest.fixture(scope="module")
def environment() -> Iterator[Environment]:
    opened = load_environment("reverse")
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def answers(environment: Environment) -> dict[str, str]:
    return read_answers(environment, Split.TRAIN)


@dataclass(frozen=True)
class Given:
    """A task of word reversal with its answer."""

    task: Task
    answer: str

    @property
    def word(self) -> str:
        return self.answer[::-1]

    def attempt(
        self, calls: Sequence[Call], final: str, *, share: float | None = 1.0
    ) -> tuple[EndedAttempt, EpisodeDetail]:
        transcript = [{"role": "user", "content": self.task.main_query}, {"role": "assistant", "content": final}]
        is_solved = final == self.answer
        ended = EndedAttempt(self.task, "e", transcript, Grade(float(is_solved), is_solved))
        turns = [
            TurnView.model_construct(
                messages=[{"role": "user", "content": asked}], reply={"role": "assistant", "content": said}, tools=[],
                params={},
            )
            for asked, said in calls
        ]  # fmt: skip
        return ended, EpisodeDetail.model_construct(episode=EpisodeView.model_construct(model_share=share), turns=turns)


@pytest.fixture(scope="module")
def tasks(environment: Environment, answers: dict[str, str]) -> list[Given]:
    """Tasks whose question does not hold the answer, as that of a palindrome does."""
    read = [
        (item.task, environment.solution(item) or "") for item in islice(environment.tasks(Split.TRAIN), MOST_TASKS)
    ]
    return [Given(task, answer) for task, answer in read if answer != answer[::-1]]


def plain(given: Given) -> tuple[EndedAttempt, EpisodeDetail]:
    return given.attempt([(given.task.main_query, given.answer)], given.answer)


@pytest.mark.parametrize(
    "ask",
    [
        lambda given: f"Repeat: {given.answer}",
        lambda given: f"Write {' '.join(given.answer.lower())} without blanks.",
        lambda given: "-".join(given.answer),
    ],
    ids=["as it is", "letter by letter", "with marks"],
)
def test_answer_in_the_first_request_gives_code_away(
    tasks: list[Given], answers: dict[str, str], ask: Callable[[Given], str]
) -> None:
    found = count_authorship([each.attempt([(ask(each), each.answer)], each.answer) for each in tasks[:20]], answers)
    assert found.told == 20 and "tells the model about the answer" in found.to_json()["problem"]


@pytest.mark.parametrize(
    "ask",
    [
        lambda given: given.task.main_query,
        lambda given: f"Write the letters in the opposite order: {' '.join(given.word)}",
        lambda given: "Reverse: house is esuoh. Reverse: qwertz is ztrewq. " + given.task.main_query,
        lambda given: " ".join("ABCDEFGHIJKLMNOPQRSTUVWXYZ") + given.word,
    ],
    ids=["the task", "its letters", "examples", "the alphabet"],
)
def test_honest_requests_tell_no_answer(
    tasks: list[Given], answers: dict[str, str], ask: Callable[[Given], str]
) -> None:
    found = count_authorship([each.attempt([(ask(each), each.answer)], each.answer) for each in tasks], answers)
    assert found.find_problem() is None and found.by_code <= 1


def test_prompt_with_the_answers_of_other_tasks_tells_none_of_them(tasks: list[Given], answers: dict[str, str]) -> None:
    listed = " ".join(each.answer for each in tasks)
    found = count_authorship([each.attempt([(listed, each.answer)], each.answer) for each in tasks], answers)
    assert found.told == 0


def test_answer_that_the_model_has_said_may_stand_in_later_requests(
    tasks: list[Given], answers: dict[str, str]
) -> None:
    def told(said: Callable[[Given], str]) -> int:
        calls = {each.answer: [(each.word, said(each)), (f"Is {each.answer} right?", "yes")] for each in tasks[:9]}
        attempts = [each.attempt(calls[each.answer], each.answer) for each in tasks[:9]]
        return count_authorship(attempts, answers).told

    assert told(lambda given: given.answer) == 0
    assert told(lambda _: "?") == 9


def test_solving_replies_that_the_model_did_not_write_are_those_of_the_code(
    tasks: list[Given], answers: dict[str, str]
) -> None:
    written = [plain(each) for each in tasks[:20]]
    unwritten = [each.attempt([(each.word, "?")], each.answer, share=0.0) for each in tasks[20:24]]
    assert count_authorship([*written, *unwritten], answers).find_problem() is not None
    assert count_authorship([*written, *unwritten[:2]], answers).find_problem() is None
    wrong = [each.attempt([(each.word, "?")], "none", share=0.0) for each in tasks[:20]]
    assert count_authorship(wrong, answers) == Authorship(attempts=20)


def replies_to(given: Given, chance: random.Random, share: float, number: int) -> list[str]:
    """Replies of a model that is right with the probability `share`, and otherwise wrong in a way of its own."""
    return [given.answer if chance.random() < share else f"wrong{chance.random()}" for _ in range(number)]


def choose_first(given: Given, replies: list[str]) -> tuple[list[str], str]:
    return replies, replies[0]


def choose_most_frequent(given: Given, replies: list[str]) -> tuple[list[str], str]:
    return replies, max(replies, key=replies.count)


def retry_until_the_length_is_right(given: Given, replies: list[str]) -> tuple[list[str], str]:
    """Half of the wrong replies have the right length."""
    mended = [each if len(each) < 6 or hash(each) % 2 else each[: len(given.word)] for each in replies]
    fitting = next((index for index, each in enumerate(mended) if len(each) == len(given.word)), len(mended) - 1)
    return mended[: fitting + 1], mended[fitting]


def choose_right(given: Given, replies: list[str]) -> tuple[list[str], str]:
    return replies, given.answer if given.answer in replies else replies[0]


def retry_until_right(given: Given, replies: list[str]) -> tuple[list[str], str]:
    last = replies.index(given.answer) if given.answer in replies else len(replies) - 1
    return replies[: last + 1], replies[last]


@pytest.mark.parametrize(
    ("choose", "is_found"),
    [
        (choose_first, False),
        (choose_most_frequent, False),
        (retry_until_the_length_is_right, False),
        (choose_right, True),
        (retry_until_right, True),
    ],
)
@pytest.mark.parametrize("share", [0.3, 0.7])
def test_program_that_always_chooses_the_right_reply_knows_the_answer(
    tasks: list[Given],
    answers: dict[str, str],
    choose: Callable[..., tuple[list[str], str]],
    share: float,
    is_found: bool,
) -> None:
    chance = random.Random(int(10 * share))
    attempts = list[tuple[EndedAttempt, EpisodeDetail]]()
    for given in tasks:
        seen, final = choose(given, replies_to(given, chance, share, 4))
        attempts.append(given.attempt([(given.task.main_query, each) for each in seen], final))
    problem = count_authorship(attempts, answers).find_problem()
    assert (problem is not None) is is_found
    assert problem is None or "knows the answers" in problem


def test_choice_by_the_model_is_no_choice_of_the_code(tasks: list[Given], answers: dict[str, str]) -> None:
    """An agent that asks for an answer and then for a better one replies with the second."""
    attempts = [
        each.attempt([(each.task.main_query, "wrong"), (f"Mend: wrong, {each.word}", each.answer)], each.answer)
        for each in tasks
    ]
    assert count_authorship(attempts, answers).choices == 0
