"""What a client's request must have led to, field by field: nothing that it sent may be dropped in silence.

Place in the flow: chat_fields.py and its neighbours say what the fields of their APIs mean, stage.py applies that to
every answered request of an episode. Written from the published descriptions of the APIs, not from the server's tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from integration.clients.wire import Exchange

from swarm.schemas import TurnView

SERVED = "nano"
"""The one model, on both engines."""


@dataclass(frozen=True)
class Answered:
    """One request of a client with what was answered and the turns that were recorded of it."""

    exchange: Exchange
    turns: Sequence[TurnView]

    @property
    def body(self) -> Mapping[str, Any]:
        return self.exchange.asked

    @property
    def answer(self) -> list[dict[str, Any]]:
        return self.exchange.answered()

    @property
    def params(self) -> Mapping[str, Any]:
        """How its first completion was sampled."""
        return self.turns[0].params

    @property
    def is_constrained(self) -> bool:
        return self.params["grammar"] is not None


Effect = Callable[[Answered, Any], bool]
"""Whether the value of a field had the effect that the API documents."""

Effects = Mapping[str, Effect]


def sampled(name: str) -> Effect:
    """The value went to the engine as this sampling parameter."""
    return lambda answered, value: answered.params[name] == value


def streamed(answered: Answered, value: object) -> bool:
    return answered.exchange.is_streamed is value


def served_model(answered: Answered, _: object) -> bool:
    """Whatever was asked for, the reply names the one model there is."""
    return _reply(answered.answer[0])["model"] == SERVED


def label(_: Answered, __: object) -> bool:
    """Asks nothing of the model."""
    return True


def check_effects(exchange: Exchange, turns: Sequence[TurnView], effects: Effects, ignored: Iterable[str]) -> None:
    """Every field sent had its effect, or is one of those `ignored`, which the server named."""
    reply_id = _reply(exchange.answered()[0])["id"]
    answered = Answered(exchange, [turn for turn in turns if turn.call_id in reply_id])
    assert answered.turns, f"no turn was recorded of {reply_id}"
    unknown = answered.body.keys() - effects.keys()
    other_model = {"model"} if answered.body["model"] not in {"default", SERVED} else set[str]()
    assert exchange.ignored_fields == unknown | other_model
    assert unknown == answered.body.keys() & set(ignored)
    for name, value in answered.body.items():
        if name not in unknown and value is not None:
            assert effects[name](answered, value), f"{name}: {value!r} had no effect"


def _reply(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    """That of a body, or of the first event of a stream."""
    return answer.get("response") or answer.get("message") or answer
