"""Replies of OpenAI's Responses API: one body, or a stream of events."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from swarm.errors import EngineFailure, SwarmError
from swarm.gateway.dialects.chat.reply import OpenAiFrames, token_rows
from swarm.gateway.dialects.endpoint import RECORDED, Dialect, SseEvent
from swarm.gateway.dialects.responses.items import RecordedResponses, ResponseId
from swarm.gateway.dialects.responses.request import ResponseRequest, Shown, parse_response_request
from swarm.gateway.dialects.responses.tools import ClientCallForm, custom_input
from swarm.gateway.http.openapi import model_responses
from swarm.rollout.completion import ModelService
from swarm.rollout.deduplication import CallEvent, CallHead, CallResult, Closed, Completion, Opened, Piece
from swarm.rollout.episodes import RunningEpisode
from swarm.tracker.codec import Codec
from swarm.types import FinishReason, ReasoningPart, ReplyPart, TextPart, TokenDelta, ToolCallPart, Turn

Item = dict[str, Any]


def render_response(request: ResponseRequest, result: CallResult, codec: Codec) -> dict[str, Any]:
    """Return the body of a finished call. Raises EngineFailure for an aborted turn, as its reply is incomplete."""
    (completion,) = result.completions
    return _show(request.shown, result.head, completion, codec)


def _show(shown: Shown, head: CallHead, completion: Completion, codec: Codec) -> dict[str, Any]:
    turn = completion.turn
    status = _status(turn.finish_reason)
    rows = _text_logprobs(codec, completion) if shown.logprobs else []
    return _body(
        shown,
        head,
        status=status,
        completed_at=int(turn.ended_at),
        incomplete_details={"reason": "max_output_tokens"} if status == "incomplete" else None,
        output=_items(shown, head, turn, status, rows),
        usage=_usage(turn, codec),
    )


def _status(reason: FinishReason) -> str:
    if reason is FinishReason.ABORT:
        raise EngineFailure("the engine stopped before the completion was finished: send the request again")
    return "completed" if reason is FinishReason.STOP else "incomplete"


def _body(shown: Shown, head: CallHead, *, status: str, **rest: Any) -> dict[str, Any]:
    return {
        "id": response_id(shown, head),
        "object": "response",
        "created_at": head.created,
        "completed_at": None,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "model": head.model,
        "output": [],
        "usage": None,
        **shown.settings,
        **rest,
    }


def response_id(shown: Shown, head: CallHead) -> str:
    return str(ResponseId(head.call_id, shown.has_instructions, shown.is_stored))


def _items(shown: Shown, head: CallHead, turn: Turn, status: str, rows: list[Item]) -> list[Item]:
    """Return the items of a reply. Only the last one can be incomplete, unless it is a tool call.

    An empty reply is one message without text.
    """
    items: list[Item] = []
    reply = turn.reply
    calls = reply.get("tool_calls") or ()
    if reasoning := reply.get("reasoning_content"):
        items.append(_reasoning_item(shown, head, reasoning, "completed"))
    if reply.get("content") or not calls:
        items.append(_message_item(f"msg_{head.call_id}", reply.get("content") or "", "completed", rows))
    for number, call in enumerate(calls):
        part = ToolCallPart(call["id"], call["function"]["name"], call["function"]["arguments"])
        items.append(_Call.of(shown, head, number, part).item("completed"))
    if not calls:
        items[-1]["status"] = status
    return items


def _numbered(kind: str, head: CallHead, number: int) -> str:
    """Return the id of an item. The first item of a kind has no number."""
    return f"{kind}_{head.call_id}_{number}" if number else f"{kind}_{head.call_id}"


def _reasoning_item(shown: Shown, head: CallHead, text: str, status: str) -> Item:
    item: Item = {"id": f"rs_{head.call_id}", "type": "reasoning", "summary": [], "content": [], "status": status}
    if text:
        item["content"] = [_reasoning_part(text)]
    if shown.encrypted_reasoning:
        item["encrypted_content"] = head.call_id
    return item


def _reasoning_part(text: str) -> Item:
    return {"type": "reasoning_text", "text": text}


def _message_item(item_id: str, text: str, status: str, rows: list[Item]) -> Item:
    content = [] if status == "in_progress" else [_text_part(text, rows)]
    return {"id": item_id, "type": "message", "role": "assistant", "status": status, "content": content}


def _text_part(text: str, rows: list[Item]) -> Item:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": rows}


@dataclass(frozen=True, slots=True)
class _Call:
    """A tool call in the form that the client expects. `text` are its arguments, or the input of a custom tool."""

    item_id: str
    call_id: str
    form: ClientCallForm
    text: str

    @classmethod
    def of(cls, shown: Shown, head: CallHead, number: int, part: ToolCallPart) -> _Call:
        """Return a call of a reply. A call of a tool that was not offered is one of a function."""
        form = shown.forms.get(part.name) or ClientCallForm(part.name)
        item_id = _numbered("ctc" if form.is_custom else "fc", head, number)
        text = custom_input(part.arguments) if form.is_custom else part.arguments
        return cls(item_id, part.call_id, form, text)

    @property
    def events(self) -> str:
        """The name of the events that bring the text, without its last part."""
        return "response.custom_tool_call_input" if self.form.is_custom else "response.function_call_arguments"

    @property
    def parts(self) -> Item:
        """The fields of the event that ends the text."""
        return {"input": self.text} if self.form.is_custom else {"arguments": self.text, "name": self.form.name}

    def item(self, status: str) -> Item:
        text = "" if status == "in_progress" else self.text
        item: Item = {"id": self.item_id, "call_id": self.call_id, "name": self.form.name, "status": status}
        if self.form.namespace is not None:
            item["namespace"] = self.form.namespace
        if self.form.is_custom:
            return {**item, "type": "custom_tool_call", "input": text}
        return {**item, "type": "function_call", "arguments": text}


class ResponseStream(OpenAiFrames):
    """The events of one streamed call.

    Call `push` for each event in order, then `finish`, or `fail` if the call broke off. An item ends when one of
    another kind begins, so text after a tool call is a new item. A piece of text has the logprobs of the tokens sampled
    since the piece before. The logprobs of tokens after the last piece come with an empty text.
    """

    def __init__(self, request: ResponseRequest, head: CallHead, codec: Codec) -> None:
        self._shown = request.shown
        self._head = head
        self._codec = codec
        self._events = 0
        self._items = 0
        self._texts = 0
        self._thoughts = 0
        self._calls = 0
        self._open: _OpenItem | None = None
        self._unsent: list[TokenDelta] = []

    def push(self, event: CallEvent) -> list[SseEvent]:
        match event:
            case Opened():
                body = _body(self._shown, self._head, status="in_progress")
                return [self._frame(f"response.{kind}", response=body) for kind in ("created", "in_progress")]
            case Piece():
                self._unsent.append(event.delta)
                return [frame for part in event.parts for frame in self._part(part)]
            case Closed(completion):
                return self._end(completion)

    def finish(self) -> list[SseEvent]:
        """Return no event, as the last event of `push` ends the stream."""
        return []

    def fail(self, error: SwarmError) -> list[SseEvent]:
        """Return the events of a failure, on which OpenAI's clients raise. The HTTP status has been sent already."""
        failure = {"code": "server_error", "message": error.message}
        body = _body(self._shown, self._head, status="failed", error=failure)
        plain = {"code": error.code, "message": error.message, "param": None}
        nested = {"type": "server_error", **plain}
        return [self._frame("response.failed", response=body), self._frame("error", **plain, error=nested)]

    def _end(self, completion: Completion) -> list[SseEvent]:
        body = _show(self._shown, self._head, completion, self._codec)
        frames: list[SseEvent] = []
        if not self._texts and not self._calls:
            frames += self._part(TextPart(""))
        if self._open is not None and self._unsent:
            frames += self._continue(self._open, "")
        return [*frames, *self._close(body["status"]), self._frame(f"response.{body['status']}", response=body)]

    def _part(self, part: ReplyPart) -> list[SseEvent]:
        if isinstance(part, ToolCallPart):
            self._unsent.clear()
            return [*self._close(), *self._call(part)]
        frames: list[SseEvent] = []
        if self._open is None or self._open.is_reasoning != isinstance(part, ReasoningPart):
            frames += [*self._close(), *self._begin(part)]
        assert self._open is not None
        return [*frames, *self._continue(self._open, part.text)]

    def _begin(self, part: TextPart | ReasoningPart) -> list[SseEvent]:
        if isinstance(part, ReasoningPart):
            opened = _OpenItem(_numbered("rs", self._head, self._thoughts), self._items, is_reasoning=True)
            item = {**_reasoning_item(self._shown, self._head, "", "in_progress"), "id": opened.item_id}
            self._thoughts += 1
        else:
            opened = _OpenItem(_numbered("msg", self._head, self._texts), self._items, is_reasoning=False)
            item = _message_item(opened.item_id, "", "in_progress", [])
            self._texts += 1
        self._open = opened
        added = self._frame("response.output_item.added", output_index=self._items, item=item)
        self._items += 1
        return [added, self._frame("response.content_part.added", **opened.place, part=opened.part())]

    def _continue(self, opened: _OpenItem, text: str) -> list[SseEvent]:
        deltas, self._unsent = self._unsent, []
        rows: list[Item] = []
        if self._shown.logprobs and not opened.is_reasoning:
            # Tokens before the first piece of a text, such as the mark that ends reasoning, are no part of it.
            rows = _delta_logprobs(self._codec, deltas, "" if opened.text else text)
        opened.text += text
        opened.rows += rows
        if opened.is_reasoning:
            return [self._frame("response.reasoning_text.delta", **opened.place, delta=text)] if text else []
        if not text and not rows:
            return []
        return [self._frame("response.output_text.delta", **opened.place, delta=text, logprobs=rows)]

    def _close(self, status: str = "completed") -> list[SseEvent]:
        opened, self._open = self._open, None
        if opened is None:
            return []
        if opened.is_reasoning:
            done = self._frame("response.reasoning_text.done", **opened.place, text=opened.text)
            item = _reasoning_item(self._shown, self._head, opened.text, status) | {"id": opened.item_id}
        else:
            done = self._frame("response.output_text.done", **opened.place, text=opened.text, logprobs=opened.rows)
            item = _message_item(opened.item_id, opened.text, status, opened.rows)
        return [
            done,
            self._frame("response.content_part.done", **opened.place, part=opened.part()),
            self._frame("response.output_item.done", output_index=opened.index, item=item),
        ]

    def _call(self, part: ToolCallPart) -> list[SseEvent]:
        call = _Call.of(self._shown, self._head, self._calls, part)
        place: Item = {"item_id": call.item_id, "output_index": self._items}
        self._calls, self._items = self._calls + 1, self._items + 1
        begun, done = call.item("in_progress"), call.item("completed")
        return [
            self._frame("response.output_item.added", output_index=place["output_index"], item=begun),
            self._frame(f"{call.events}.delta", **place, delta=call.text),
            self._frame(f"{call.events}.done", **place, **call.parts),
            self._frame("response.output_item.done", output_index=place["output_index"], item=done),
        ]

    def _frame(self, event: str, **fields: Any) -> SseEvent:
        number, self._events = self._events, self._events + 1
        return SseEvent({"type": event, "sequence_number": number, **fields}, event)


class _OpenItem:
    """An item of text or reasoning that is not complete yet."""

    def __init__(self, item_id: str, index: int, *, is_reasoning: bool) -> None:
        self.item_id = item_id
        self.index = index
        self.is_reasoning = is_reasoning
        self.text = ""
        self.rows: list[Item] = []

    @property
    def place(self) -> Item:
        return {"item_id": self.item_id, "output_index": self.index, "content_index": 0}

    def part(self) -> Item:
        return _reasoning_part(self.text) if self.is_reasoning else _text_part(self.text, [*self.rows])


def _usage(turn: Turn, codec: Codec) -> dict[str, Any]:
    prompt, output = len(turn.prompt_ids), len(turn.output_ids_T)
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": _reasoning_tokens(turn, codec)},
        "total_tokens": prompt + output,
    }


def _reasoning_tokens(turn: Turn, codec: Codec) -> int:
    """Return the number of tokens up to the end of the reasoning."""
    end = _end_of_reasoning(turn, codec.raw_text(turn.output_ids_T))
    return _tokens_of(codec, turn.output_ids_T, end)


def _end_of_reasoning(turn: Turn, text: str) -> int:
    reasoning = turn.reply.get("reasoning_content") or ""
    return max(text.find(reasoning), 0) + len(reasoning) if reasoning in text else 0


def _tokens_of(codec: Codec, token_ids: Sequence[int], characters: int) -> int:
    """Return the smallest number of leading tokens whose text has at least `characters` characters."""
    counts = range(len(token_ids))
    return bisect_left(counts, characters, key=lambda count: len(codec.raw_text(token_ids[:count])))


def _text_logprobs(codec: Codec, completion: Completion) -> list[Item]:
    """Return the logprobs of the tokens of a reply's content.

    If no tool call follows, the stop token is included. If the sampled text does not contain the content in one piece,
    all tokens are.
    """
    turn = completion.turn
    ids, content = turn.output_ids_T, turn.reply.get("content") or ""
    text = codec.raw_text(ids)
    start = text.find(content, _end_of_reasoning(turn, text))
    span = slice(0, len(ids))
    if start >= 0:
        end = _tokens_of(codec, ids, start + len(content)) if turn.reply.get("tool_calls") else len(ids)
        span = slice(_tokens_before(codec, ids, start), end)
    top = completion.top_logprobs_T
    rows = None if top is None else top[span]
    return token_rows(codec, ids[span], turn.logprobs_T[span], rows, no_bytes=[])


def _tokens_before(codec: Codec, token_ids: Sequence[int], characters: int) -> int:
    """Return the number of leading tokens whose text has at most `characters` characters."""
    return max(_tokens_of(codec, token_ids, characters + 1) - 1, 0)


def _delta_logprobs(codec: Codec, deltas: Sequence[TokenDelta], begins_with: str) -> list[Item]:
    ids = [token for delta in deltas for token in delta.token_ids_T]
    logprobs = [logprob for delta in deltas for logprob in delta.logprobs_T]
    top = [row for delta in deltas for row in delta.top_logprobs_T or ()]
    start = codec.raw_text(ids).find(begins_with)
    span = slice(_tokens_before(codec, ids, max(start, 0)), None)
    return token_rows(codec, ids[span], logprobs[span], top[span] if top else None, no_bytes=[])


def _parse(body: Mapping[str, Any], service: ModelService, episode: RunningEpisode) -> ResponseRequest:
    recorded = RecordedResponses(episode.tree.turns)
    return parse_response_request(body, service.defaults(episode), recorded, service.codec.reads_option)


RESPONSES = Dialect(
    path="responses",
    summary="Sample a response",
    description=f"Sample a response. {RECORDED.format(status=503)}",
    responses=model_responses(
        "OpenAI's response. With `stream`, its events.",
        example='event: response.created\ndata: {"type":"response.created"}\n\n',
    ),
    parse=_parse,
    render=render_response,
    open_stream=ResponseStream,
)
