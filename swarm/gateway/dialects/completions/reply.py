"""Replies of OpenAI's older completions API: one body, or a stream of chunks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from swarm.gateway.dialects.chat.reply import CompletionChunks, finish_reason, usage
from swarm.gateway.dialects.completions.request import CompletionBody, parse_completion_request
from swarm.gateway.dialects.endpoint import Dialect, SseEvent
from swarm.gateway.dialects.fields import CheckedCall
from swarm.gateway.http.openapi import model_responses
from swarm.rollout.deduplication import CallEvent, CallHead, CallResult, Closed, Completion, Opened, Piece
from swarm.tracker.codec import Codec
from swarm.types import ReplyPart, TextPart, TokenDelta, TokenLogprobs


def render_text_completion(request: CheckedCall[CompletionBody], result: CallResult, codec: Codec) -> dict[str, Any]:
    """Return the body of a finished call. Raises EngineFailure for an aborted turn, as its text is incomplete."""
    return {
        **_head(result.head),
        "choices": [_choice(request, completion, codec) for completion in result.completions],
        "usage": usage(request.call, result.completions),
    }


def _head(head: CallHead) -> dict[str, Any]:
    """Return the fields that bodies and chunks share in this API."""
    return {
        "id": f"cmpl-{head.call_id}",
        "object": "text_completion",
        "created": head.created,
        "model": head.model,
    }


def _choice(request: CheckedCall[CompletionBody], completion: Completion, codec: Codec) -> dict[str, Any]:
    turn = completion.turn
    before = _echoed(request, completion.choice, turn.prompt_ids, codec) if request.body.echo else ""
    logprobs = None
    if request.body.logprobs is not None:
        scribe = _LogprobScribe(request, codec, turn.index)
        delta = TokenDelta(turn.output_ids_T, turn.logprobs_T, (), None, completion.top_logprobs_T)
        logprobs = scribe.write([delta])
    choice: dict[str, Any] = {
        "index": completion.choice,
        "text": before + (turn.reply.get("content") or ""),
        "logprobs": logprobs,
        "finish_reason": finish_reason(turn.finish_reason, {}),
    }
    if request.body.return_token_ids:
        choice |= {"token_ids": list(turn.output_ids_T), "prompt_token_ids": list(turn.prompt_ids)}
    return choice


class TextCompletionStream(CompletionChunks[CompletionBody]):
    """The chunks of one streamed text completion. The first chunk of a choice has its echo, or no text."""

    def __init__(self, request: CheckedCall[CompletionBody], head: CallHead, codec: Codec) -> None:
        super().__init__(request, _head(head), codec)
        self._scribes: dict[int, _LogprobScribe] = {}

    def push(self, event: CallEvent) -> list[SseEvent]:
        match event:
            case Opened():
                return [SseEvent(self._opening(event))]
            case Piece():
                self._unsent[event.choice].append(event.delta)
                return [SseEvent(self._chunk(event.choice, text)) for text in _texts(event.parts)]
            case Closed(completion):
                self._completions.append(completion)
                return [SseEvent(self._chunk(event.choice, "", finish_reason(completion.turn.finish_reason, {})))]

    def _opening(self, event: Opened) -> dict[str, Any]:
        self._unsent[event.choice] = []
        self._scribes[event.choice] = _LogprobScribe(self._request, self._codec, event.turn_index)
        echo = _echoed(self._request, event.choice, event.prompt_ids, self._codec) if self._request.body.echo else ""
        chunk = self._chunk(event.choice, echo)
        if self._request.body.return_token_ids:
            chunk["choices"][0]["prompt_token_ids"] = list(event.prompt_ids)
        return chunk

    def _chunk(self, choice: int, text: str, reason: str | None = None) -> dict[str, Any]:
        deltas = self._take_unsent(choice)
        body: dict[str, Any] = {"index": choice, "text": text, "logprobs": None, "finish_reason": reason}
        if self._request.body.logprobs is not None and deltas:
            body["logprobs"] = self._scribes[choice].write(deltas)
        if self._request.body.return_token_ids:
            body["token_ids"] = [token for delta in deltas for token in delta.token_ids_T]
        return {**self._head, "choices": [body]}


class _LogprobScribe:
    """The logprobs of one choice, written piece by piece.

    `text_offset` is the position in the choice's text where a token begins. Tokens that share a character get its
    position. Tokens without visible text get the position where their text would begin.
    """

    def __init__(self, request: CheckedCall[CompletionBody], codec: Codec, turn_index: int) -> None:
        self._as_ids = bool(request.body.return_tokens_as_token_ids)
        self._codec = codec
        self._reply = codec.raw_reply_stream(turn_index=turn_index)
        self._offset = 0

    def write(self, deltas: Iterable[TokenDelta]) -> dict[str, Any]:
        body: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for delta in deltas:
            tops: Sequence[TokenLogprobs] = delta.top_logprobs_T or [()] * len(delta.token_ids_T)
            for token_id, logprob, top in zip(delta.token_ids_T, delta.logprobs_T, tops, strict=True):
                name = self._name(token_id)
                # The sampled token is always named, so there may be one more than the request asked for.
                named = {name: logprob}
                for other, other_logprob in top:
                    named.setdefault(self._name(other), other_logprob)
                body["tokens"].append(name)
                body["token_logprobs"].append(logprob)
                body["top_logprobs"].append(named)
                body["text_offset"].append(self._offset)
                self._offset += sum(map(len, _texts(self._reply.push([token_id]))))
        return body

    def _name(self, token_id: int) -> str:
        return f"token_id:{token_id}" if self._as_ids else self._codec.token_text([token_id])[0]


def _texts(parts: Sequence[ReplyPart]) -> list[str]:
    return [part.text for part in parts if isinstance(part, TextPart)]


def _echoed(request: CheckedCall[CompletionBody], choice: int, prompt_ids: Sequence[int], codec: Codec) -> str:
    """Return the prompt as it was given. A prompt of token ids is decoded, with special tokens by name."""
    prompt = request.call.prompts[choice // request.call.choices]
    text = getattr(prompt, "text", None)
    return codec.raw_text(prompt_ids) if text is None else text


COMPLETIONS = Dialect(
    path="completions",
    summary="Continue a text",
    description="Continue a text. The model gets the prompt as it is.\n\nNo chat template and no special tokens are"
    " added, except those that the prompt spells out. If the prompt extends an earlier turn of the episode (its prompt"
    " and completion), it keeps the tokens of that turn.",
    responses=model_responses(
        "OpenAI's text completion. With `stream`, its chunks.", example="data: {...}\n\ndata: [DONE]\n\n"
    ),
    parse=lambda body, service, episode: parse_completion_request(body, service.defaults(episode)),
    render=render_text_completion,
    open_stream=TextCompletionStream,
)
