"""A server that answers from a list and keeps what it heard, and can misbehave on the wire."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Canned:
    """One scripted answer. `body` None closes the connection without a word."""

    status: int = 200
    body: Any = field(default_factory=dict[str, Any])
    headers: dict[str, str] = field(default_factory=dict[str, str])
    delay_s: float = 0.0


@dataclass
class Heard:
    """One request as the server received it."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any
    at: float


class ScriptedServer:
    """Answers from a list, in order; the last answer repeats. Speaks HTTP on a real socket."""

    def __init__(self) -> None:
        self.answers: list[Canned] = []
        self.heard: list[Heard] = []
        self.closes_connections = False
        self.ended: dict[str, str] = {}
        self.refusal: Canned | None = None
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                length = int(self.headers.get("content-length") or 0)
                raw = self.rfile.read(length)
                heard = Heard(
                    self.command, self.path, dict(self.headers), json.loads(raw) if raw else None, time.monotonic()
                )
                canned = outer.next_answer(heard)
                time.sleep(canned.delay_s)
                self.close_connection = canned.body is None or outer.closes_connections
                if canned.body is None:
                    return
                content = canned.body if isinstance(canned.body, bytes) else json.dumps(canned.body).encode()
                self.send_response(canned.status)
                for name, value in {**canned.headers, "content-length": str(len(content))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_PUT = do_PATCH = answer

            def log_message(self, format: str, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            # Connections of many threads come at once; one that finds no place waits seconds to ask again.
            request_queue_size = 128

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass

        self._listen = lambda port: Server(("127.0.0.1", port), Handler)
        self._port = 0
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Listen; after a `close`, on the same port as before."""
        self._http = self._listen(self._port)
        self._port = self._http.server_address[1]
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()

    def next_answer(self, heard: Heard) -> Canned:
        with self._lock:
            self.heard.append(heard)
            return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def script(self, *answers: Canned) -> None:
        self.answers = list(answers)

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join(5)


def chat_reply(**message: Any) -> Canned:
    """Return a chat completion with this assistant message."""
    choice = {"index": 0, "message": {"role": "assistant", "content": None, **message}}
    return Canned(body={"choices": [choice], "usage": {"total_tokens": 42}})
