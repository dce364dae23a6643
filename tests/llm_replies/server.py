"""A language model that answers from files: the OpenAI chat protocol over real HTTP, with recorded replies.

A folder holds one Markdown file per reply, `<kind>.<number>.md`. The kind of a question is the word after `# ` at the
start of its first user message; the n-th question of a kind gets the n-th reply, the last one again after that.

`python -m llm_replies.server tests/llm_replies/learning_rate` prints its URL and serves until it is ended.
"""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

DROP, HANG = "drop", "hang"
"""The connection is closed without an answer: at once, or when the server is `released`, or after `hang_s`."""
PAGE, BROKEN_JSON, OTHER_JSON = "<html>Bad gateway</html>", '{"choices": [', '{"choices": "none"}'
"""Bodies that are no chat completion."""
LEARNING_RATE = Path(__file__).parent / "learning_rate"
KIND = re.compile(r"# (\w+):")
ITERATION = re.compile(r"^Iterations?(?: so far)?: (\d+)", re.MULTILINE)


class ReplyServer:
    """Serves replies on a free port of this machine. `failures` is what the next calls get instead: an HTTP status, or
    one of the ways of failing below. Questions of the kinds in `down` get status 503 for as long as they stand there.
    With `retry_after`, statuses come with that header.

    With `by_iteration` a question about the n-th plan gets the n-th reply however often it is asked, for a study whose
    process may end before it has stored an answer.

    `requests` keeps every body, `keys` every Authorization header, in order; `failed_at` the time of every failure, by
    the monotonic clock.
    """

    def __init__(
        self,
        replies: Path = LEARNING_RATE,
        *,
        failures: Sequence[int | str] = (),
        with_usage: bool = True,
        by_iteration: bool = False,
        hang_s: float | None = None,
    ) -> None:
        self.down: set[str] = set()
        self.retry_after: str | None = None
        self.released = threading.Event()
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.asked: Counter[str] = Counter()
        self.failures = list(failures)
        self.failed_at: list[float] = []
        self._by_iteration = by_iteration
        self._hang_s = hang_s
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
            self.asked[match.group(1)] += 1
            number = self.asked[match.group(1)]
            if self._by_iteration:
                about = ITERATION.search(asked)
                number = int(about.group(1)) if about else 1
            text = self._read(match.group(1), number)
        return 200, self._completion(body, text)

    def _read(self, kind: str, number: int) -> str:
        files = sorted(self._replies.glob(f"{kind}.*.md"))
        return files[min(number, len(files)) - 1].read_text()

    def _completion(self, body: dict[str, Any], text: str) -> dict[str, Any]:
        prompt = sum(len(message["content"]) for message in body["messages"]) // 4
        usage = {"prompt_tokens": prompt, "completion_tokens": len(text) // 4, "total_tokens": prompt + len(text) // 4}
        return {
            "id": f"chatcmpl-{len(self.requests)}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": body["model"],
            "choices": [
                {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}},
            ],
            **({"usage": usage} if self._with_usage else {}),
        }

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                if self.path == "/v1/chat/completions":
                    status, answer = owner.reply_to(body, self.headers.get("authorization", ""))
                else:
                    status, answer = 404, {"error": {"message": "no such route", "type": "test", "code": "test"}}
                if answer == HANG:
                    owner.released.wait(owner._hang_s)
                if answer in (DROP, HANG):
                    self.close_connection = True
                    return
                content = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
                self.send_response(status)
                if status != 200 and owner.retry_after is not None:
                    self.send_header("retry-after", owner.retry_after)
                self.send_header("content-type", "text/html" if answer == PAGE else "application/json")
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: object) -> None:
                return

        return Handler


if __name__ == "__main__":
    server = ReplyServer(Path(sys.argv[1]) if len(sys.argv) > 1 else LEARNING_RATE)
    sys.stdout.write(server.url + "\n")
    sys.stdout.flush()
    server.serve_forever()
