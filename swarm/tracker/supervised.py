"""Demonstrations as training samples, through the codec that encodes the model's own turns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from swarm.demonstrations import Demonstration
from swarm.errors import BadRequest
from swarm.tracker.codec import Codec
from swarm.tracker.merge import merge
from swarm.types import FinishedEpisode, FinishReason, SamplingParams, Turn

NOT_SAMPLED = -1
"""The weight version of tokens that no weights sampled."""
REWARD = 1.0


def encode_demonstrations(codec: Codec, demonstrations: Sequence[Demonstration]) -> tuple[FinishedEpisode, ...]:
    """Return each demonstration as an episode that trains its replies.

    The prompt of a reply is what the service would sample it from, and the reply ends with a stop token. Raise
    BadRequest, which names the demonstration by its number, for one that the chat template refuses.
    """
    return tuple(_encode(codec, each, f"demonstration-{number}") for number, each in enumerate(demonstrations, start=1))


def _encode(codec: Codec, given: Demonstration, name: str) -> FinishedEpisode:
    turns: list[Turn] = []
    try:
        for place in given.trained:
            turns.append(_turn(codec, given, place, name, turns))
    except BadRequest as error:
        raise BadRequest(f"{name}: {error.message}", param="demonstrations") from error
    return FinishedEpisode(
        episode_id=name, task_id=name, client_id="", reward=REWARD, is_success=None, samples=merge(turns), ended_at=0.0
    )


def _turn(codec: Codec, given: Demonstration, place: int, name: str, earlier: Sequence[Turn]) -> Turn:
    before, reply = given.messages[:place], given.messages[place]
    extension = codec.extend(earlier[-1], before, given.tools) if earlier else None
    follows = extension is not None and extension.prompt_ids is not None
    output_ids = codec.encode_reply(before, reply, given.tools)
    prompt_ids = (extension.prompt_ids if extension else None) or codec.render(before, given.tools)
    _require_shown(codec.raw_text(output_ids), [call["function"]["name"] for call in reply.get("tool_calls") or ()])
    _require_shown(codec.raw_text(prompt_ids), [tool["function"]["name"] for tool in given.tools])
    return Turn(
        episode_id=name,
        index=len(earlier),
        prompt_ids=prompt_ids,
        output_ids_T=output_ids,
        logprobs_T=(0.0,) * len(output_ids),
        weight_versions_T=(NOT_SAMPLED,) * len(output_ids),
        finish_reason=FinishReason.STOP,
        params=SamplingParams(max_tokens=len(output_ids)),
        messages=before,
        reply=reply,
        tools=given.tools,
        parent=earlier[-1].index if follows else None,
        fork_reason=None if follows or extension is None else extension.reason,
        started_at=0.0,
        ended_at=0.0,
    )


def _require_shown(text: str, names: Iterable[str]) -> None:
    """Raise BadRequest if a chat template leaves out tools or their calls: the model would learn to say nothing."""
    for name in names:
        if name not in text:
            raise BadRequest(
                f"the model's chat template does not show the tool {name}: take a model whose template knows tools, or"
                " write tools and calls as text",
                param="messages",
            )
