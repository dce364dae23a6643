"""Two servers for the client: a scripted one that can misbehave on the wire, and the real one on the fake engine."""

from __future__ import annotations

import json
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest


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


@pytest.fixture
def scripted() -> Iterator[ScriptedServer]:
    server = ScriptedServer()
    yield server
    server.close()


@pytest.fixture
def canned() -> type[Canned]:
    return Canned


@pytest.fixture
def refusal() -> Callable[..., Canned]:
    """An error answer in the shape of the contract."""

    def make(status: int, code: str, message: str = "no", **headers: str) -> Canned:
        body = {"error": {"message": message, "type": "x", "param": None, "code": code}}
        return Canned(status, body, {name.replace("_", "-"): value for name, value in headers.items()})

    return make


@pytest.fixture
def swarm_double(scripted: ScriptedServer, canned: type[Canned]) -> Any:
    """Answers every call of an episode's life. `ended` is what heartbeats are told, unless there is a `refusal`."""
    begun = iter(range(1_000_000))

    def answer(heard: Heard) -> Canned:
        scripted.heard.append(heard)
        if heard.path == "/v1/swarm/heartbeat":
            return scripted.refusal or canned(body={"ended": scripted.ended})
        if heard.path.endswith("/begin"):
            body = {"episode_id": f"e{next(begun)}", "base_url": "http://x/v1", "api_key": "k", "model": "m"}
            return canned(201, {**body, "weight_version": 0, "deadline_s": 60.0, "lease_s": heard.body["lease_s"]})
        if heard.path.endswith("/end"):
            ended = {"state": "completed", "outcome": None, "batch_id": None, "replayed": False}
            return canned(body={"episode_id": heard.path.split("/")[4], **ended})
        if heard.path.endswith("/abort"):
            view = {"episode_type": "train", "state": "aborted", "client_id": "c", "task_id": None, "turns": 0}
            nothing = dict.fromkeys(("reward", "is_success", "turn_rewards", "ended_at", "batch_id"))
            view |= {"data_source": "default", "outcome": heard.body["reason"], "begun_at": 0.0, "last_seen_at": 0.0}
            return canned(body={"episode_id": heard.path.split("/")[4], "weight_versions": [], **view, **nothing})
        return canned(404, {"error": {"message": heard.path, "type": "x", "param": None, "code": "not_found"}})

    scripted.next_answer = answer
    return scripted


@pytest.fixture
def free_port() -> int:
    with socketserver.TCPServer(("127.0.0.1", 0), socketserver.BaseRequestHandler) as server:
        return server.server_address[1]


@pytest.fixture
def server_url(start_server: Any) -> str:
    """A real server with nothing started, over HTTP."""
    return start_server().url
