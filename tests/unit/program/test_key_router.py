"""One address for several servers: each request reaches the one whose key it carries, and nobody else's."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from swarm.program.hosted.key_router import KeyRouter


class Echo(BaseHTTPRequestHandler):
    """Says what it was asked; a stream of two pieces for the path /slow, of which the second waits for its signal."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        key = self.headers["authorization"]
        pieces = [f"{self.path} {key} ".encode(), body]
        self.send_response(429 if body == b"too many" else 200)
        self.send_header("x-request-id", "r1")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for piece in pieces:
            self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            self.wfile.flush()
            if self.path.endswith("/slow"):
                assert isinstance(self.server, Origin)
                self.server.may_go_on.wait(60)
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, format: str, *args: object) -> None:
        pass


class Origin(ThreadingHTTPServer):
    daemon_threads = True
    may_go_on: threading.Event


@contextmanager
def origin() -> Iterator[Origin]:
    with Origin(("127.0.0.1", 0), Echo) as server:
        server.may_go_on = threading.Event()
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.may_go_on.set()
        server.shutdown()
        thread.join()


def base_of(server: Origin, path: str = "/v1") -> str:
    return f"http://127.0.0.1:{server.server_address[1]}{path}"


@pytest.fixture
def router() -> Iterator[KeyRouter]:
    with KeyRouter() as router:
        yield router


def ask(http: httpx.Client, router: KeyRouter, key: str, body: str = "hello", path: str = "/v1/x") -> httpx.Response:
    return http.post(f"{router.url}{path}", content=body, headers={"authorization": f"Bearer {key}"})


def test_each_key_leads_to_its_own_server_over_one_pool_of_connections(router: KeyRouter) -> None:
    with (
        origin() as one,
        origin() as other,
        httpx.Client() as http,
        router.routed({"k1": base_of(one), "k2": base_of(other, "/behind/v1")}),
    ):
        for _ in range(3):
            assert ask(http, router, "k1").text == "/v1/x Bearer k1 hello"
            assert ask(http, router, "k2").text == "/behind/v1/x Bearer k2 hello"
        refused = ask(http, router, "k1", "too many")
        assert (refused.status_code, refused.headers["x-request-id"]) == (429, "r1")
        assert http.post(f"{router.url}/e/k2/v1/y", content="").text == "/behind/v1/y Bearer k2 "
        assert http.post(f"{router.url}/v1/z", content="", headers={"x-api-key": "k1"}).text == "/v1/z Bearer k1 "


def test_what_comes_piece_by_piece_is_passed_on_as_it_comes(router: KeyRouter) -> None:
    with origin() as server, httpx.Client(timeout=60) as http, router.routed({"k": base_of(server)}):
        headers = {"authorization": "Bearer k"}
        with http.stream("POST", f"{router.url}/v1/slow", content="second", headers=headers) as answer:
            pieces = answer.iter_text()
            assert next(pieces) == "/v1/slow Bearer k "
            server.may_go_on.set()
            assert "".join(pieces) == "second"


def test_keys_of_no_attempt_under_way_and_other_routes_reach_nobody(router: KeyRouter) -> None:
    with origin() as server, httpx.Client() as http:
        with router.routed({"k": base_of(server)}):
            assert ask(http, router, "k").status_code == 200
            for key, path in (("other", "/v1/x"), ("-", "/v1/x"), ("k", "/v2/x"), ("k", "/x")):
                refused = ask(http, router, key, path=path)
                assert (refused.status_code, refused.json()["error"]["code"]) == (401, "unauthorized")
        assert ask(http, router, "k").status_code == 401


def test_a_server_that_is_gone_is_told_as_such(router: KeyRouter) -> None:
    with origin() as server:
        base_url = base_of(server)
    with httpx.Client() as http, router.routed({"k": base_url}):
        gone = ask(http, router, "k")
        assert (gone.status_code, gone.json()["error"]["code"]) == (502, "server_unreachable")


@pytest.mark.parametrize("length", ["much", "-1", str(2**40)])
def test_a_request_that_does_not_say_how_long_it_is_or_is_too_long_is_refused(router: KeyRouter, length: str) -> None:
    with router.routed({"k": "http://127.0.0.1:9/v1"}), closing(HTTPConnection(router.url.partition("//")[2])) as raw:
        raw.request("GET", "/v1/x", headers={"authorization": "Bearer k", "content-length": length})
        assert raw.getresponse().status == 413
