"""Sampled tokens as chat completions: one body, or a stream of chunks, in the OpenAI shape.

Place in the flow: between tracker and HTTP, on the way out. `app.py` frames the dicts as JSON or as server-sent events
and adds `[DONE]`. Knows nothing of engines or episodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from swarm.errors import EngineFailure
from swarm.gateway.dialects.chat import ChatRequest
from swarm.tracker.codec import Codec
from swarm.types import FinishReason, Message, TokenDelta, Turn

_FINISH_REASONS: Mapping[FinishReason, str] = MappingProxyType(
    {FinishReason.STOP: "stop", FinishReason.LENGTH: "length"}
)


def render_completion(
    request: ChatRequest, turn: Turn, codec: Codec, *, completion_id: str, created: int, model: str
) -> dict[str, Any]:
    """The body of a finished turn; `turn.reply` is what `codec.parse_reply` made of its output.

    Raises EngineFailure for an aborted turn, which has no complete reply.
    """
    choice: dict[str, Any] = {
        "index": 0,
        "message": {"refusal": None, **turn.reply},
        "logprobs": _logprobs(codec, turn.output_ids_T, turn.logprobs_T) if request.logprobs else None,
        "finish_reason": _finish_reason(turn.finish_reason, turn.reply),
    }
    body: dict[str, Any] = {
        "id": completion_id,
        "object": "chat.completion",
        "created": created,
        "model": model,
        "choices": [choice],
        "usage": _usage(len(turn.prompt_ids), len(turn.output_ids_T)),
    }
    if request.return_token_ids:
        body["prompt_token_ids"] = list(turn.prompt_ids)
        choice["token_ids"] = list(turn.output_ids_T)
    return body


class ChunkStream:
    """Chunks of one streamed completion: `start()` once, then `push` for each delta of the engine.

    The delta that carries the finish reason yields the closing chunks, and the usage chunk if the request asked.
    After it `reply` is the whole assistant message, as it was sent. A chunk carries the logprobs and ids of the tokens
    sampled since the chunk before it, those whose text is held back or hidden included.
    """

    def __init__(
        self,
        request: ChatRequest,
        codec: Codec,
        *,
        completion_id: str,
        created: int,
        model: str,
        prompt_ids: Sequence[int],
        turn_index: int,
    ) -> None:
        self._request = request
        self._codec = codec
        self._head = {"id": completion_id, "object": "chat.completion.chunk", "created": created, "model": model}
        self._prompt_ids = tuple(prompt_ids)
        self._reply = codec.reply_stream(request.callable_tools, turn_index=turn_index, stop=request.params.stop)
        self._calls_sent = 0
        self._output_tokens = 0
        self._unsent_ids: list[int] = []
        self._unsent_logprobs: list[float] = []

    @property
    def reply(self) -> Message:
        return self._reply.message

    def start(self) -> list[dict[str, Any]]:
        """The first chunk, which names the role and, if asked, the prompt's token ids."""
        chunk = self._chunk({"role": "assistant", "content": ""})
        if self._request.return_token_ids:
            chunk["prompt_token_ids"] = list(self._prompt_ids)
        return [chunk]

    def push(self, delta: TokenDelta) -> list[dict[str, Any]]:
        """Chunks for the text and calls that are now certain. Raises EngineFailure if the completion was aborted."""
        self._output_tokens += len(delta.token_ids_T)
        self._unsent_ids.extend(delta.token_ids_T)
        self._unsent_logprobs.extend(delta.logprobs_T)
        parts = self._reply.push(delta.token_ids_T)
        if delta.finish_reason is None:
            return [self._part_chunk(part) for part in parts]
        parts += self._reply.finish()
        finish_reason = _finish_reason(delta.finish_reason, self.reply)
        chunks = [self._part_chunk(part) for part in parts]
        chunks.append(self._chunk({}, finish_reason))
        if self._request.include_usage:
            usage = _usage(len(self._prompt_ids), self._output_tokens)
            chunks.append({**self._head, "choices": [], "usage": usage})
        return chunks

    def _part_chunk(self, part: str | dict[str, Any]) -> dict[str, Any]:
        if isinstance(part, str):
            return self._chunk({"content": part})
        index, self._calls_sent = self._calls_sent, self._calls_sent + 1
        return self._chunk({"tool_calls": [{"index": index, **part}]})

    def _chunk(self, delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
        ids, logprobs = self._unsent_ids, self._unsent_logprobs
        self._unsent_ids, self._unsent_logprobs = [], []
        choice: dict[str, Any] = {
            "index": 0,
            "delta": delta,
            "logprobs": _logprobs(self._codec, ids, logprobs) if self._request.logprobs and ids else None,
            "finish_reason": finish_reason,
        }
        if self._request.return_token_ids:
            choice["token_ids"] = ids
        return {**self._head, "choices": [choice]}


def _finish_reason(reason: FinishReason, reply: Message) -> str:
    if reason is FinishReason.STOP and reply.get("tool_calls"):
        return "tool_calls"
    if reason not in _FINISH_REASONS:
        raise EngineFailure("the engine stopped before the completion was finished: send the request again")
    return _FINISH_REASONS[reason]


def _usage(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def _logprobs(codec: Codec, token_ids: Sequence[int], logprobs: Sequence[float]) -> dict[str, Any]:
    """One entry per sampled token, the stop token included. `bytes` is null for a token that is half a character."""
    content: list[dict[str, Any]] = []
    for text, logprob in zip(codec.token_text(token_ids), logprobs, strict=True):
        spelled = None if "\ufffd" in text else list(text.encode())
        content.append({"token": text, "logprob": logprob, "bytes": spelled, "top_logprobs": []})
    return {"content": content, "refusal": None}
