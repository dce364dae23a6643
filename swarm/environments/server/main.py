"""The process of an environment server: `python -m swarm.environments.server.main NAME FOLDER`."""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import socketserver
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import parse_qsl, urlsplit

from pydantic import BaseModel, ValidationError

from swarm.environments.registry import load_environment
from swarm.environments.server.protocol import (
    DIGEST_HEADER,
    MAX_PAGE,
    AttemptReplies,
    Failure,
    Graded,
    Reference,
)
from swarm.environments.server.service import CallOverdue, EnvironmentService
from swarm.environments.user_code import exit_by_raising
from swarm.errors import BadRequest, EnvironmentFailure, Forbidden, SwarmError
from swarm.processes.child import claim_stdout
from swarm.tasks.base import Split

MAX_BODY_BYTES = 64 * 2**20
IDLE_CONNECTION_S = 600.0
FLUSH_S = 0.2
_end = os._exit
"""The end of this process. In `main`, `os._exit` itself becomes an error, for the user's code."""
STUCK_EXIT_CODE = 3
"""Exit code after a call that took too long. The thread of such a call can only be ended with its process."""


class UnixListener(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """A server on one Unix socket, which lists and grades the tasks of `splits`.

    It returns solutions only if `splits` contains all three.
    """

    daemon_threads = True
    request_queue_size = 512

    def __init__(self, path: Path, service: EnvironmentService, splits: frozenset[Split]) -> None:
        path.unlink(missing_ok=True)
        self.service = service
        self.splits = splits
        super().__init__(str(path), _Handler)
        os.chmod(path, 0o600)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore the error: a caller that disconnects is normal."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = IDLE_CONNECTION_S
    # Buffered, so that the head and the body of a small answer leave together.
    wbufsize = -1

    @property
    def listener(self) -> UnixListener:
        assert isinstance(self.server, UnixListener)
        return self.server

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = dict(parse_qsl(parts.query))
        routes: dict[str, Callable[[], BaseModel]] = {
            "/v1/environment": self.listener.service.describe,
            "/v1/tasks": lambda: self._list_tasks(query),
        }
        self._answer(routes.get(parts.path))

    def do_POST(self) -> None:
        length = int(self.headers.get("content-length", 0))
        if length > MAX_BODY_BYTES:
            self.close_connection = True
            self._send(413, Failure(code="bad_request", message=f"the request is longer than {MAX_BODY_BYTES} bytes"))
            return
        body = self.rfile.read(length)
        service = self.listener.service
        routes: dict[str, Callable[[], BaseModel]] = {
            "/v1/messages": lambda: service.continue_attempt(self._allowed(AttemptReplies.model_validate_json(body))),
            "/v1/grades": lambda: service.grade(self._allowed(Graded.model_validate_json(body))),
            "/v1/solutions": lambda: service.solve(self._for_evaluator(Reference.model_validate_json(body))),
        }
        self._answer(routes.get(self.path))

    def _list_tasks(self, query: dict[str, str]) -> BaseModel:
        try:
            split, numbers = Split(query["split"]), [int(query[name]) for name in ("seed", "start", "count")]
        except (KeyError, ValueError) as error:
            raise BadRequest(f"a list of tasks needs split, seed, start and count: {error}") from None
        self._check(split)
        return self.listener.service.list_tasks(split, numbers[0], max(0, numbers[1]), min(numbers[2], MAX_PAGE))

    def _allowed(self, request: AttemptReplies | Graded) -> Any:
        self._check(request.task.split)
        return request

    def _for_evaluator(self, reference: Reference) -> Reference:
        if self.listener.splits != frozenset(Split):
            raise Forbidden("only the evaluator may ask for solutions")
        return reference

    def _check(self, split: Split) -> None:
        if split not in self.listener.splits:
            raise Forbidden(f"the split {split} is held out: only the evaluator may see and grade its tasks")

    def _answer(self, route: Callable[[], BaseModel] | None) -> None:
        if route is None:
            self._send(404, Failure(code="not_found", message=f"there is no route {self.path}"))
            return
        try:
            if not self.path.startswith("/v1/environment"):
                self.listener.service.check_digest(self.headers.get(DIGEST_HEADER))
            self._send(200, route())
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            self._send(400, Failure(code="bad_request", message=f"{where}: {first['msg']}"))
        except CallOverdue as error:
            self._send(504, Failure(code=error.code, message=error.message))
            self.wfile.flush()
            # Callers repeat their other running calls once this process has been restarted.
            threading.Timer(FLUSH_S, _end, (STUCK_EXIT_CODE,)).start()
        except SwarmError as error:
            self._send(
                500 if isinstance(error, EnvironmentFailure) else 400, Failure(code=error.code, message=error.message)
            )

    def _send(self, status: int, answer: BaseModel) -> None:
        document = answer.model_dump(mode="json")
        body = json.dumps({"error": document} if isinstance(answer, Failure) else document).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: there is a request for every turn of every attempt."""


TRAIN_SOCKET = "train.sock"
EVALUATOR_SOCKET = "evaluator.sock"
BEAT_S = 1.0
BLOCKED_MARGIN_S = 10.0
"""Seconds beyond the time limit of a call. The service ends a call at its limit, if its thread gets to run."""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("folder", type=Path)
    options = parser.parse_args(argv)
    announcement = claim_stdout()
    # A user's tasks may import modules beside them; those come last, so that none hides a module of a library.
    sys.path.append(os.getcwd())
    exit_by_raising()
    try:
        environment = load_environment(options.name)
    except SwarmError as error:
        _announce(announcement, {"error": {"code": error.code, "message": error.message}})
        return 2
    service = EnvironmentService(environment)
    programs = UnixListener(options.folder / TRAIN_SOCKET, service, frozenset({Split.TRAIN}))
    evaluator = UnixListener(options.folder / EVALUATOR_SOCKET, service, frozenset(Split))
    threading.Thread(target=programs.serve_forever, daemon=True).start()
    threading.Thread(target=_end_when_blocked, args=(environment.time_limit_s + BLOCKED_MARGIN_S,), daemon=True).start()
    _announce(announcement, service.describe().model_dump(mode="json"))
    evaluator.serve_forever()
    return 0


def _end_when_blocked(limit_s: float) -> None:
    """End this process once no other Python thread has run for `limit_s` seconds.

    Code in C can block the interpreter, for example a regular expression that backtracks without end. Then nothing
    written in Python can end the process.
    """
    while True:
        faulthandler.dump_traceback_later(limit_s, exit=True)
        time.sleep(BEAT_S)


def _announce(announcement: TextIO, document: dict[str, Any]) -> None:
    announcement.write(json.dumps(document) + "\n")
    announcement.flush()


if __name__ == "__main__":
    sys.exit(main())
