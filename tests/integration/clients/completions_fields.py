"""What each field of a plain completion's request must have led to."""

from __future__ import annotations

from types import MappingProxyType

from integration.clients.chat_fields import CHAT_EFFECTS
from integration.clients.fields_sent import Answered, Effects

_SHARED = ("model", "temperature", "max_tokens", "seed", "stop", "stream", "stream_options", "return_token_ids", "user")


def _prompt(answered: Answered, prompt: str | list[int]) -> bool:
    turn = answered.turns[0]
    if isinstance(prompt, str):
        return [message["content"] for message in turn.messages] == [prompt]
    return turn.prompt_ids == prompt


def _logprobs(answered: Answered, alternatives: int) -> bool:
    (choice,) = answered.answer[0]["choices"]
    told, (turn,) = choice["logprobs"], answered.turns
    return told["token_logprobs"] == turn.logprobs and all(len(top) >= alternatives for top in told["top_logprobs"])


COMPLETION_EFFECTS: Effects = MappingProxyType(
    {"prompt": _prompt, "logprobs": _logprobs, **{name: CHAT_EFFECTS[name] for name in _SHARED}}
)
