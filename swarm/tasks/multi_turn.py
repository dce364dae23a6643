"""The multi-turn families: a guessing game with hints, and a running total."""

from __future__ import annotations

from random import Random

from swarm.tasks.base import Exchange, Problem, TaskFamily, stable_digest, text_of, user_message
from swarm.tasks.single import draw_word
from swarm.types import Message, Task

LARGEST_SECRET = 12


class GuessExchange(Exchange):
    """An exchange that answers a wrong guess with `higher` or `lower`; a reply that is not a number ends the game."""

    def respond(self, message: Message) -> tuple[Message, ...] | None:
        secret: int = self.task.metadata["secret"]
        text = text_of(message)
        if text == str(secret):
            self.reward = 1.0
            return None
        if not (text.isascii() and text.isdigit() and len(text) <= 4):
            return None
        return (user_message("higher" if int(text) < secret else "lower"),)


class Guess(TaskFamily):
    """A game to find a secret number within four guesses, which always suffice to halve 1..12 down to one.

    Twelve secrets cannot be split into disjoint sets that need the same skill. So each game has a round code, whose
    hash determines the secret. The held-out rounds are therefore never played in training, and a model cannot learn
    their secrets by heart. The game itself is the same in every split.
    """

    name = "guess"
    description = "Guess a secret number from 1 to 12 within four guesses, from the hints higher and lower."
    max_turns = 4
    max_tokens = 4

    def draw(self, rng: Random) -> Problem:
        code = draw_word(rng, 3, 3)
        secret = 1 + stable_digest(f"secret of round {code}") % LARGEST_SECRET
        query = f"Round {code}: guess my number from 1 to {LARGEST_SECRET}."
        return Problem(code, query, {"secret": secret})

    def start(self, task: Task) -> Exchange:
        return GuessExchange(task, self.max_turns)


class ChainExchange(Exchange):
    """An exchange that asks for the next sum whatever the reply was, and judges only the last total."""

    def respond(self, message: Message) -> tuple[Message, ...] | None:
        terms: list[int] = self.task.metadata["terms"]
        if self.turns + 1 < len(terms):
            return (user_message(f"Add {terms[self.turns + 1]}."),)
        self.reward = float(text_of(message) == str(sum(terms)))
        return None


class Chain(TaskFamily):
    name = "chain"
    description = "Keep a running total over three turns; only the last total counts."
    max_turns = 3
    max_tokens = 4

    def draw(self, rng: Random) -> Problem:
        terms = [rng.randint(1, 9) for _ in range(self.max_turns + 1)]
        return Problem("+".join(map(str, terms)), f"What is {terms[0]}+{terms[1]}?", {"terms": terms})

    def start(self, task: Task) -> Exchange:
        return ChainExchange(task, self.max_turns)
