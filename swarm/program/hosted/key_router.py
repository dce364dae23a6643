"""One address for the models of several servers: a request goes to the server whose episode key it carries."""

from __future__ import annotations

import threading
from collections.abc import Generator, Mapping
from contextlib import closing, contextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import httpx

from swarm.client import ConnectionStack
from swarm.errors import BadRequest, ServerUnreachable, Unauthorized
from swarm.schemas import ErrorBody, ErrorDetail

BASE_PATH = "/v1"
"""The end of the base URL of every episode."""
MAX_BODY_BYTES = 64 * 2**20
ANSWER_LIMIT_S = 900.0
"""The longest silence of a server. The libraries of OpenAI and Anthropic wait for 600 s."""
REQUEST_LIMIT_S = 180.0
"""The longest silence of a program in the middle of its request."""
_OF_ONE_CONNECTION = frozenset({"connection", "keep-alive", "transfer-encoding", "upgrade"})
_NOT_CARRIED = _OF_ONE_CONNECTION | {"host", "content-length", "authorization", "x-api-key"}


class KeyRouter:
    """A proxy on a port of the loopback interface. Close it, or use it in a `with` block."""

    def __init__(self) -> None:
        self.base_urls: dict[str, str] = {}
        self.http = httpx.Client(timeout=ANSWER_LIMIT_S, transport=ConnectionStack())
        self._server = _Listener(self)
        self._thread = threading.Thread(target=self._server.serve_forever, name="key router", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self.http.close()

    @contextmanager
    def routed(self, base_urls: Mapping[str, str]) -> Generator[None]:
        """Route requests by key to these base URLs, given by key, until the `with` block ends."""
        self.base_urls.update(base_urls)
        try:
            yield
        finally:
            for key in base_urls:
                self.base_urls.pop(key, None)


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 512

    def __init__(self, router: KeyRouter) -> None:
        self.router = router
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore the error: a client that disconnects is normal."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = REQUEST_LIMIT_S

    def do_GET(self) -> None:
        self._carry()

    def do_POST(self) -> None:
        self._carry()

    def _carry(self) -> None:
        # The next request may carry the key of another server.
        self.close_connection = True
        assert isinstance(self.server, _Listener)
        router = self.server.router
        key, path = self._key_and_path()
        base_url = router.base_urls.get(key)
        if base_url is None or not path.startswith(f"{BASE_PATH}/"):
            self._refuse(
                HTTPStatus.UNAUTHORIZED, Unauthorized.code, "this key belongs to no running episode: use model.api_key"
            )
            return
        length = self.headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > MAX_BODY_BYTES:
            message = f"the request has no valid content-length: send one of at most {MAX_BODY_BYTES >> 20} MiB"
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, BadRequest.code, message)
            return
        headers = [(name, value) for name, value in self.headers.items() if name.lower() not in _NOT_CARRIED]
        headers.append(("authorization", f"Bearer {key}"))
        url, body = base_url + path.removeprefix(BASE_PATH), self.rfile.read(int(length))
        request = router.http.build_request(self.command, url, headers=headers, content=body)
        try:
            answer = router.http.send(request, stream=True)
        except httpx.TransportError as error:
            message = f"no answer from {base_url}: {type(error).__name__}"
            self._refuse(HTTPStatus.BAD_GATEWAY, ServerUnreachable.code, message)
            return
        # If the server's connection breaks during the answer, the one to the program is closed too.
        with closing(answer), suppress(httpx.TransportError):
            self._pass_on(answer)

    def _key_and_path(self) -> tuple[str, str]:
        """Return the key of the request and its path without the key. The model routes take a key in three places."""
        if self.path.startswith("/e/"):
            key, slash, rest = self.path.removeprefix("/e/").partition("/")
            return key, slash + rest
        scheme, _, key = self.headers.get("authorization", "").partition(" ")
        key = key.strip() if scheme.lower() == "bearer" else ""
        return key or self.headers.get("x-api-key", ""), self.path

    def _pass_on(self, answer: httpx.Response) -> None:
        self.send_response_only(answer.status_code)
        for name, value in answer.headers.multi_items():
            if name.lower() not in _OF_ONE_CONNECTION:
                self.send_header(name, value)
        self.send_header("connection", "close")
        self.end_headers()
        for piece in answer.iter_raw():
            self.wfile.write(piece)

    def _refuse(self, status: HTTPStatus, code: str, message: str) -> None:
        self.send_response_only(status)
        detail = ErrorDetail(message=message, type="invalid_request_error", code=code)
        body = ErrorBody(error=detail).model_dump_json().encode()
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.send_header("connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: the servers log their requests."""
