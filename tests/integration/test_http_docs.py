"""docs/http-api.md against a running server: the same routes, the same rights, and calls that work as they stand."""

from __future__ import annotations

import json
import re
import shlex
import string
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from tests_support import begin, wait_for_state

PAGE = Path(__file__).parents[2] / "docs" / "http-api.md"
TOKENS = {
    "token": "commander-0123456789",
    "rollout_token": "rollout-0123456789",
    "observer_token": "observer-0123456789",
}
COMMANDER = f"authorization: Bearer {TOKENS['token']}"
LAST = ("load", "stop", "launch", "shutdown")
"""Sent after all others, in this order: each keeps those before from working."""
TRANSACTION = "rT6mXlq0Zc1YpS9uWvKd3A"

Route = tuple[str, str]


@dataclass(frozen=True)
class Command:
    """A curl command of the page, its variables not yet filled in."""

    method: str
    url: str
    headers: tuple[str, ...]
    data: str | None

    @property
    def path(self) -> str:
        return self.url.removeprefix("$S").partition("?")[0]


def commands() -> list[Command]:
    text = PAGE.read_text().replace("\\\n", " ")
    return [_parse(line) for line in re.findall(r"^    (curl .*)$", text, re.MULTILINE)]


def _parse(line: str) -> Command:
    words = iter(shlex.split(line)[1:])
    method, url, data = None, "", None
    headers: list[str] = []
    for word in words:
        if word == "-X":
            method = next(words)
        elif word == "-H":
            headers.append(next(words))
        elif word == "-d":
            data = next(words)
        elif word != "-N":
            url = word
    return Command(method or ("GET" if data is None else "POST"), url, tuple(headers), data)


def documented() -> dict[Route, str]:
    """The roles column of every route in the page's tables."""
    rows = re.findall(r"^\| `([A-Z]+) (/\S*)` \| ([^|]+) \|", PAGE.read_text(), re.MULTILINE)
    found = {(method, path): roles for method, path, roles in rows}
    assert len(found) == len(rows), "a route stands there twice"
    return found


def described(http: httpx.Client) -> dict[Route, dict[str, Any]]:
    paths = http.get("/openapi.json").json()["paths"]
    return {
        (method.upper(), path.replace(":path}", "}")): operation
        for path, operations in paths.items()
        for method, operation in operations.items()
    }


def test_every_route_is_on_the_page_with_its_rights_and_no_other(start_server: Any) -> None:
    with httpx.Client(base_url=start_server().url, timeout=60) as http:
        routes = described(http)
    page = documented()
    assert set(page) == set(routes)
    for route, operation in routes.items():
        if "x-roles" in operation:
            assert page[route] == ", ".join(operation["x-roles"]), route
        else:
            assert page[route] == ("an episode's key" if "security" in operation else "everybody"), route


def test_every_route_has_a_call_on_the_page() -> None:
    values = {
        r"\$ID": "{episode_id}",
        r"^/e/\$KEY": "",
        r"/models/default$": "/models/{model_id}",
        TRANSACTION: "{transaction_id}",
    }
    called: set[Route] = set()
    for command in commands():
        path = command.path
        for value, name in values.items():
            path = re.sub(value, name, path)
        called.add((command.method, path))
    assert called == set(documented())


def test_all_calls_work_as_they_stand(start_server: Any) -> None:
    server = start_server(**TOKENS)
    with httpx.Client(base_url=server.url, timeout=60) as http:
        values = {"S": "", "A": COMMANDER}
        ranks = {name: rank for rank, name in enumerate(LAST, start=1)}
        for command in sorted(commands(), key=lambda command: ranks.get(command.path.rpartition("/")[2], 0)):
            reply = _send(http, command, values)
            if command.path.endswith("/engine/load"):
                assert reply.json()["error"]["code"] == "not_found", reply.text
            else:
                assert reply.status_code < 400, (command, reply.text)
            if command.path.endswith("/engine/start"):
                http.headers["authorization"] = COMMANDER.partition(" ")[2]
                wait_for_state(http, "ROLLING")
                values["KEY"] = begin(http, episode_type="eval")["api_key"]
                del http.headers["authorization"]
            elif command.path.endswith("/begin"):
                values["ID"] = reply.json()["episode_id"]


def _send(http: httpx.Client, command: Command, values: dict[str, str]) -> httpx.Response:
    headers = dict(string.Template(header).substitute(values).split(": ", 1) for header in command.headers)
    url = string.Template(command.url).substitute(values)
    data = command.data
    if command.method == "PUT" and command.path.endswith("/job") and data is not None:
        # The engine without a model boots at once.
        data = json.dumps({"job": {**json.loads(data)["job"], "engine": "fake"}})
    elif data is not None:
        data = string.Template(data).safe_substitute(values)
    with http.stream(command.method, url, headers=headers, content=data) as reply:
        if "/events" in command.path and reply.headers["content-type"].startswith("text/event-stream"):
            assert next(line for line in reply.iter_lines() if line.startswith("data: "))
        else:
            reply.read()
    return reply
