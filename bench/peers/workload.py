"""The workload of both sides: three cases, a fourth for a model of real size, and the common settings.

Place in the flow: read by trl_side.py and service_side.py. It needs the standard library and `swarm.tasks`, which needs
no more than that itself, so that TRL's interpreter can import it. It knows neither TRL nor the service.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from string import ascii_uppercase
from types import MappingProxyType
from typing import Any

from swarm.tasks.base import Exchange, Problem, TaskFamily, text_of, user_message
from swarm.tasks.registry import task_family
from swarm.tasks.single import draw_word
from swarm.types import Message, Task

TASKS, REPEATS = 16, 8
"""Each step trains on so many tasks, with so many episodes of each, if the case says nothing else."""
TEMPERATURE, CLIP, GRAD_CLIP, BETAS = 1.0, 0.2, 1.0, (0.9, 0.95)
GAME_TURNS, LARGEST = 16, 12
NUMBERS = frozenset(str(number) for number in range(1, LARGEST + 1))


class GameExchange(Exchange):
    """An exchange that asks again whatever the reply was.

    The reward is the mean over the turns of how close the guesses came.
    """

    def __init__(self, task: Task, max_turns: int) -> None:
        super().__init__(task, max_turns)
        self._closeness = 0.0

    def respond(self, message: Message) -> tuple[Message, ...] | None:
        secret: int = self.task.metadata["secret"]
        text = text_of(message)
        guess = int(text) if text in NUMBERS else None
        if guess is not None:
            self._closeness += 1 - abs(guess - secret) / (LARGEST - 1)
        if self.turns == GAME_TURNS:
            self.reward = self._closeness / GAME_TURNS
        return (user_message("right" if guess == secret else "lower" if (guess or 0) > secret else "higher"),)


class Game(TaskFamily):
    """A secret number and a hint after each guess. An episode has sixteen turns whatever the model says."""

    name = "game"
    description = "Guess a secret number in each of sixteen turns, from the hints higher, lower and right."
    max_turns = GAME_TURNS
    max_tokens = 4

    def draw(self, rng: Random) -> Problem:
        code, secret = draw_word(rng, 3, 3), rng.randint(1, LARGEST)
        query = f"Round {code}: guess my number from 1 to {LARGEST}."
        return Problem(f"{code} {secret}", query, {"secret": secret})

    def start(self, task: Task) -> Exchange:
        return GameExchange(task, self.max_turns)


class LowerCaseExchange(Exchange):
    """An exchange of one reply, whose reward is the share of its characters that are lower-case letters."""

    def respond(self, message: Message) -> tuple[Message, ...] | None:
        text = text_of(message)
        self.reward = sum(character.islower() for character in text) / max(len(text), 1)
        return None


class LowerCase(TaskFamily):
    """Random letters to be repeated in lower case. A random model earns something else at each attempt."""

    name = "lower_case"
    description = "Repeat letters in lower case."
    max_tokens = 48

    def draw(self, rng: Random) -> Problem:
        letters = "".join(rng.choices(ascii_uppercase, k=60))
        return Problem(letters, f"Repeat this in lower case: {letters}", {})

    def start(self, task: Task) -> Exchange:
        return LowerCaseExchange(task, self.max_turns)


@dataclass(frozen=True, slots=True)
class PeerCase:
    """One comparison. `completion_tokens` is what TRL may spend on a whole conversation, its tools' results included.

    Each step has `repeats` episodes of each task; on TRL's side they go through the model in so many `passes`, on the
    service's in passes of `tokens_at_once`. `dtype` is the number format of the model. A run has at least `least_steps`
    and at most `most_steps`; how many depends on the time that is given. Where `goal` is set, the first step is looked
    for at which the mean reward of three steps reaches it.
    """

    family: TaskFamily
    lr: float
    completion_tokens: int
    least_steps: int
    most_steps: int
    goal: float | None = None
    repeats: int = REPEATS
    passes: int = 1
    tokens_at_once: int = 16_384
    dtype: str = "float32"

    @property
    def episodes(self) -> int:
        """The number of episodes of a step."""
        return TASKS * self.repeats


CASES: Mapping[str, PeerCase] = MappingProxyType(
    {
        "reverse": PeerCase(task_family("reverse"), 3e-3, 12, least_steps=25, most_steps=40, goal=0.9),
        "calc": PeerCase(task_family("calc"), 1e-3, 72, least_steps=8, most_steps=30),
        "game": PeerCase(Game(), 3e-3, 1024, least_steps=8, most_steps=30),
    }
)
"""Those of the bundled model."""
LARGE = "large"
EVERY_CASE: Mapping[str, PeerCase] = MappingProxyType(
    {**CASES, LARGE: PeerCase(LowerCase(), 1e-6, 48, 3, 3, repeats=4, passes=4, tokens_at_once=2400, dtype="bfloat16")}
)


@dataclass(frozen=True, slots=True)
class RunPlan:
    """One run of one side. `seconds` None: exactly `steps`; else as many as fit, within the bounds of the case.

    `model` is a directory, None the bundled model; `sampler` is the service's.
    """

    case: str
    seed: int
    threads: int
    steps: int
    seconds: float | None = None
    model: str | None = None
    sampler: str = "local"


def tasks_of(plan: RunPlan) -> list[Task]:
    """Return the tasks in the order in which both sides take them, `TASKS` for each step."""
    return EVERY_CASE[plan.case].family.tasks("train", TASKS * plan.steps, seed=plan.seed)


def reward_of(family: TaskFamily, task: Task, replies: Sequence[Mapping[str, Any]]) -> float:
    """Return the reward of an attempt from its assistant messages.

    It is computed by the exchange that the service's agents use.
    """
    exchange = family.open(task)
    for reply in replies:
        if exchange.reply(dict(reply)) is None:
            break
    return exchange.reward
