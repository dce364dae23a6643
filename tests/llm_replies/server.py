"""A language model that answers from files: the OpenAI chat protocol over real HTTP, with recorded replies.

A folder holds one Markdown file per reply, `<kind>.<number>.md`. The kind of a question is the word after `# ` at the
start of its first user message; the n-th question of a kind gets the n-th reply, the last one again after that. If
there are files `<kind>.<arm>.<number>.md`, a question about that arm gets the n-th of these instead. A line
`tool: NAME {JSON}` of a reply is a tool call, and a line `thought: ...` is sent as reasoning. Replies are streamed to
those that ask for it.

`python -m llm_replies.server tests/llm_replies/learning_rate` prints its URL and serves until it is ended.
"""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

DROP, HANG, CUT = "drop", "hang", "cut"
"""The connection is closed without an answer: at once, or when the server is `released`, or after `hang_s`. Or it is
closed in the middle of an answer."""
PAGE, BROKEN_JSON, OTHER_JSON = "<html>Bad gateway</html>", '{"choices": [', '{"choices": "none"}'
"""Bodies that are no chat completion."""
LEARNING_RATE = Path(__file__).parent / "learning_rate"
CALL = re.compile(r"^tool: (\w+) (\{.*\})$", re.MULTILINE)
THOUGHT = re.compile(r"^thought: (.*)$", re.MULTILINE)
ARM = re.compile(r'^(?:Arm "|The program of arm "|The arm: |Arm: )(.+?)(?:"|$)', re.MULTILINE)
KIND = re.compile(r"# (\w+):")
ITERATION = re.compile(r"^Iterations?(?: so far)?: (\d+)", re.MULTILINE)


class ReplyServer:
    """Serves replies on a free port of this machine. `failures` is what the next calls get instead: an HTTP status, one
    of the ways of failing above, or None for the reply after all. Questions of the kinds in `down` get status 503 for
    as long as they stand there. With `retry_after`, statuses come with that header. A request with a field in `unknown`
    gets status 400, which names it. Before each piece of a stream, `pauses` are waited for, with a comment after each.

    With `by_iteration` a question about the n-th plan gets the n-th reply however often it is asked, for a study whose
    process may end before it has stored an answer.

    `requests` keeps every body, `keys` every Authorization header, in order; `failed_at` the time of every failure, by
    the monotonic clock.
    """

    def __init__(
        self,
        replies: Path = LEARNING_RATE,
        *,
        failures: Sequence[int | str | None] = (),
        with_usage: bool = True,
        by_iteration: bool = False,
        hang_s: float | None = None,
    ) -> None:
        self.down: set[str] = set()
        self.unknown: set[str] = set()
        self.pauses: list[float] = []
        self.retry_after: str | None = None
        self.released = threading.Event()
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.asked: Counter[str] = Counter()
        self.failures = list(failures)
        self.failed_at: list[float] = []
        self._by_iteration = by_iteration
        self.hang_s = hang_s
        self._replies = replies
        self._with_usage = with_usage
        self._lock = threading.Lock()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._http.server_port}/v1"

    def __enter__(self) -> Self:
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.released.set()
        self._http.shutdown()
        self._http.server_close()

    def serve_forever(self) -> None:
        self._http.serve_forever()

    def reply_to(self, body: dict[str, Any], key: str) -> tuple[int, dict[str, Any] | str]:
        with self._lock:
            self.requests.append(body)
            self.keys.append(key)
            if refused := sorted(self.unknown & body.keys()):
                message = f"Unrecognized request argument supplied: {refused[0]}"
                return 400, {"error": {"message": message, "type": "invalid_request_error", "code": None}}
            asked = next(message["content"] for message in body["messages"] if message["role"] == "user")
            match = KIND.match(asked)
            if match is None:
                return 400, {"error": {"message": "the question has no kind", "type": "test", "code": "test"}}
            failure = self.failures.pop(0) if self.failures else 503 if match.group(1) in self.down else None
            if failure is not None:
                self.failed_at.append(time.monotonic())
            if isinstance(failure, str):
                return 200, failure
            if failure is not None:
                return failure, {"error": {"message": f"failure {failure} with {key}", "type": "test", "code": "test"}}
            kind = self.kind_of(match.group(1), asked)
            self.asked[kind] += 1
            number = self.asked[kind]
            if self._by_iteration:
                about = ITERATION.search(asked)
                number = int(about.group(1)) if about else 1
            text = self.read(kind, number)
        return 200, self._completion(body, text)

    def replay(self, body: dict[str, Any]) -> dict[str, Any]:
        """The first reply to a question, which counts as none."""
        asked = next(message["content"] for message in body["messages"] if message["role"] == "user")
        return self._completion(body, self.read(KIND.match(asked).group(1), 1))  # pyright: ignore[reportOptionalMemberAccess]

    def kind_of(self, kind: str, asked: str) -> str:
        """The kind of a question, with the arm that it is about where the folder has replies for that arm."""
        about = ARM.search(asked)
        named = f"{kind}.{about.group(1)}" if about else kind
        return named if any(self._replies.glob(f"{named}.*.md")) else kind

    def read(self, kind: str, number: int) -> str:
        files = [path for path in sorted(self._replies.glob(f"{kind}.*.md")) if path.stem[len(kind) + 1 :].isdigit()]
        return files[min(number, len(files)) - 1].read_text()

    def _completion(self, body: dict[str, Any], text: str) -> dict[str, Any]:
        prompt = sum(len(message["content"]) for message in body["messages"]) // 4
        usage = {"prompt_tokens": prompt, "completion_tokens": len(text) // 4, "total_tokens": prompt + len(text) // 4}
        return {
            "id": f"chatcmpl-{len(self.requests)}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": body["model"],
            "choices": [{"index": 0, "finish_reason": "stop", "message": self._message(body, text)}],
            **({"usage": usage} if self._with_usage else {}),
        }

    def _message(self, body: dict[str, Any], text: str) -> dict[str, Any]:
        """The reply with its thoughts and its tool calls, which are text where the request has no tools."""
        thoughts = "\n".join(THOUGHT.findall(text))
        calls = [
            {"id": f"call-{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for number, (name, arguments) in enumerate(CALL.findall(text))
        ]
        content = CALL.sub("", THOUGHT.sub("", text)).strip()
        if calls and "tools" not in body:
            (function,) = (call["function"] for call in calls)
            content = json.dumps({"tool": function["name"], "arguments": json.loads(function["arguments"])})
            calls = []
        message: dict[str, Any] = {"role": "assistant", "content": content}
        return (
            message | ({"reasoning_content": thoughts} if thoughts else {}) | ({"tool_calls": calls} if calls else {})
        )

    def events(self, whole: dict[str, Any], body: dict[str, Any], *, is_cut: bool = False) -> Iterator[str]:
        """The completion as server-sent events: thoughts, text and tool calls in pieces, then the end and the usage."""
        (choice,) = whole["choices"]
        message = choice["message"]
        common = {name: whole[name] for name in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
        for name in ("reasoning_content", "content"):
            text = message.get(name) or ""
            deltas += [{name: text[start : start + 200]} for start in range(0, len(text), 200)]
        for index, call in enumerate(message.get("tool_calls", [])):
            name, arguments = call["function"]["name"], call["function"]["arguments"]
            deltas.append({"tool_calls": [{"index": index, **call, "function": {"name": name, "arguments": ""}}]})
            deltas += [{"tool_calls": [{"index": index, "function": {"arguments": each}}]} for each in arguments]
        for delta in deltas[: len(deltas) // 2 if is_cut else None]:
            yield from self._comments()
            yield self._event(common, choices=[{"index": 0, "delta": delta, "finish_reason": None}])
        if is_cut:
            return
        reason = "tool_calls" if "tool_calls" in message else "stop"
        yield self._event(common, choices=[{"index": 0, "delta": {}, "finish_reason": reason}])
        if "usage" in whole and body.get("stream_options", {}).get("include_usage"):
            yield self._event(common, choices=[], usage=whole["usage"])
        yield "data: [DONE]\n\n"

    def _comments(self) -> Iterator[str]:
        while self.pauses:
            time.sleep(self.pauses.pop(0))
            yield ": still there\n\n"

    def _event(self, common: dict[str, Any], **more: Any) -> str:
        return f"data: {json.dumps(common | more)}\n\n"

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        return type("Handler", (_Handler,), {"owner": self})


class _Handler(BaseHTTPRequestHandler):
    """Answers requests with what its server replies: as a whole, as a stream, or not at all."""

    protocol_version = "HTTP/1.1"
    owner: ReplyServer

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        status, answer = 404, {"error": {"message": "no such route", "type": "test", "code": "test"}}
        if self.path == "/v1/chat/completions":
            status, answer = self.owner.reply_to(body, self.headers.get("authorization", ""))
        if answer == HANG:
            self.owner.released.wait(self.owner.hang_s)
        if answer in (DROP, HANG):
            self.close_connection = True
        elif status == 200 and body.get("stream") and (answer == CUT or isinstance(answer, dict)):
            whole = self.owner.replay(body) if answer == CUT else answer
            self.send_stream(self.owner.events(whole, body, is_cut=answer == CUT))
        else:
            self.send_whole(status, answer)

    def send_stream(self, events: Iterator[str]) -> None:
        self.close_connection = True
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        # The client may have had enough.
        with suppress(OSError):
            for event in events:
                self.wfile.write(event.encode())
                self.wfile.flush()

    def send_whole(self, status: int, answer: dict[str, Any] | str) -> None:
        content = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
        self.send_response(status)
        if status != 200 and self.owner.retry_after is not None:
            self.send_header("retry-after", self.owner.retry_after)
        self.send_header("content-type", "text/html" if answer == PAGE else "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        return


if __name__ == "__main__":
    server = ReplyServer(Path(sys.argv[1]) if len(sys.argv) > 1 else LEARNING_RATE)
    sys.stdout.write(server.url + "\n")
    sys.stdout.flush()
    server.serve_forever()
