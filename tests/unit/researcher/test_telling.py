"""The test of added text: how often it names a text that knows nothing, and how little knowledge it finds."""

from __future__ import annotations

import random
from collections.abc import Callable
from string import ascii_lowercase

import pytest

from researcher.evaluation.added_text import AskedTask
from researcher.evaluation.telling import ALPHA, Telling, find_told
from swarm.schemas import TurnView

Hint = Callable[[random.Random, str], str]


def ask(question: str, *hints: str, said: str = "?") -> list[TurnView]:
    """Requests that begin with the question, each with one hint, and the reply of the model to each."""
    return [
        TurnView.model_construct(
            messages=[{"role": "user", "content": question}, {"role": "system", "content": hint}],
            reply={"role": "assistant", "content": said}, tools=[], params={},
        )
        for hint in hints
    ]  # fmt: skip


def tell(seed: int, attempts: int, hint: Hint, *, numbers: bool = False, share: float = 1.0) -> Telling:
    """What is found in requests whose hint is made from the answer, in a part of the attempts."""
    chance = random.Random(seed)

    def draw() -> str:
        return str(chance.randrange(10, 1000)) if numbers else "".join(chance.sample(ascii_lowercase, 5))

    tasks: list[AskedTask] = []
    for number in range(attempts):
        answer = draw()
        shuffled = "".join(chance.sample(answer, len(answer)))
        question = f"Question {number}" if numbers else f"Arrange {shuffled}"
        about = answer if chance.random() < share else draw()
        tasks.append(AskedTask(ask(question, f"Note: {hint(chance, about)}."), question, answer))
    return find_told(tasks, [draw() for _ in range(200)])


def random_words(chance: random.Random, _answer: str) -> str:
    return f"{chance.randrange(1000)} {''.join(chance.sample(ascii_lowercase, 6))}"


def letter_of_it(chance: random.Random, answer: str) -> str:
    return chance.choice(answer)


@pytest.mark.slow
@pytest.mark.parametrize("numbers", [False, True])
@pytest.mark.parametrize("hint", [random_words, letter_of_it])
def test_a_text_that_knows_nothing_is_hardly_ever_named(hint: Hint, numbers: bool) -> None:
    """A letter of the task is no news of its answer; a digit of the answer alone is some."""
    if numbers and hint is letter_of_it:
        pytest.skip("the task has no digit of its answer")
    named = sum(bool(tell(seed, 40, hint, numbers=numbers).attempts) for seed in range(500))
    assert named <= 3, f"{named} of 500, at most {ALPHA:.1%} are due"


@pytest.mark.parametrize(
    ("hint", "numbers"),
    [
        (lambda _, answer: answer[0], False),
        (lambda _, answer: answer[1:4], False),
        (lambda _, answer: f"{int(answer):x}", True),
        (lambda _, answer: answer[-1], True),
    ],
    ids=["first letter", "some letters", "base 16", "last digit"],
)
def test_a_hint_is_found_in_fifty_attempts(hint: Hint, numbers: bool) -> None:
    assert all(tell(seed, 50, hint, numbers=numbers).attempts for seed in range(3))


def test_an_answer_is_found_that_is_told_in_a_few_attempts() -> None:
    assert all(tell(seed, 100, lambda _, answer: answer, share=0.05).attempts for seed in range(5))


def test_what_the_model_has_said_may_be_said_again_and_what_code_adds_to_it_may_not() -> None:
    def told(second: Callable[[str], str]) -> int:
        tasks: list[AskedTask] = []
        for number in range(30):
            answer = f"{number + 100}"
            said = f"It is {int(answer) + 1}."
            turns = [*ask("Question", "Think.", said=said), *ask("Question", second(answer))]
            tasks.append(AskedTask(turns, "Question", answer))
        return len(find_told(tasks, [task.answer or "" for task in tasks]).attempts)

    assert told(lambda answer: f"You said: It is {int(answer) + 1}. Look again.") == 0
    assert told(lambda answer: f"You said: It is {int(answer) + 5}; take 5 away.") == 30
