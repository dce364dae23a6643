"""Hostile bodies at every model route: an answer that says what is wrong, never a fault of the server, and its memory
stays where it was."""

from __future__ import annotations

import copy
import json
import random
import re
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from extreme_sampling import HARD, REFUSED, SAMPLED, extreme_body
from model_bodies import ASKING, MINIMAL, TOOL, rich_body
from server_processes import serving
from tests_support import begin, wait_for_state

EPISODE_BODIES = 400
"""Bodies to one episode: what it holds of its turns is not what is looked for."""

UNAVAILABLE = {503, 507}
MAX_GROWTH = 150 * 2**20
MAX_PEAK_GROWTH = 500 * 2**20
"""Bytes. The largest body of nothing but empty lists takes 300 MiB once it is parsed."""

ANSWERED_WITHIN_CPU_S = 10.0
"""It takes three seconds at most."""

SETTLED_WITHIN_S = 60.0
"""After an answer, what it took is given back."""

RICH = {route: rich_body(route) for route in MINIMAL}


@dataclass
class Target:
    """A server in a process of its own, with a running episode that is replaced now and then."""

    http: httpx.Client
    process: psutil.Process
    routes: list[str]
    key: str = ""
    sent: int = 0
    faults: list[str] = field(default_factory=list[str])
    answers: Counter[tuple[str, int]] = field(default_factory=Counter[tuple[str, int]])

    def post(self, route: str, content: bytes) -> httpx.Response:
        if self.sent % EPISODE_BODIES == 0:
            self.key = begin(self.http, episode_type="eval", idle_timeout_s=600)["api_key"]
        self.sent += 1
        headers = {"authorization": f"Bearer {self.key}", "content-type": "application/json"}
        reply = self.http.post(route, content=content, headers=headers)
        self.answers[route, reply.status_code] += 1
        if reply.status_code >= 500 and reply.status_code not in UNAVAILABLE:
            self.faults.append(f"{route}: {content[:300]!r}: {reply.status_code} {reply.text}")
        elif reply.status_code >= 400:
            check_error(reply, content)
        return reply

    def take_faults(self) -> list[str]:
        """Those since the last time."""
        faults, self.faults = self.faults, []
        return faults

    def rss(self) -> int:
        return self.process.memory_info().rss

    def cpu_s(self) -> float:
        times = self.process.cpu_times()
        return times.user + times.system

    def peak(self) -> int:
        """The most the process ever had."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def check_error(reply: httpx.Response, content: bytes) -> None:
    """In the shape of every API, in one line that does not repeat the body."""
    error = reply.json()["error"]
    assert isinstance(error["message"], str) and error["message"], content[:300]
    assert len(error["message"]) < 1000 and "\n" not in error["message"], content[:300]


@contextmanager
def serving_engine(home: Path, engine: str) -> Iterator[Target]:
    with serving(home, stderr=subprocess.DEVNULL) as (process, http, _):
        job = {"engine": engine, "batch_size": 1000, "max_response_length": 8}
        http.put("/v1/swarm/job", json={"job": job}).raise_for_status()
        http.post("/v1/swarm/engine/start", json={}).raise_for_status()
        wait_for_state(http, "ROLLING")
        yield Target(http, psutil.Process(process.pid), routes_of(http))


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with serving_engine(tmp_path_factory.mktemp("fuzz"), "fake") as target:
        for route in target.routes:
            for _ in range(5):
                target.post(route, json.dumps(RICH[route]).encode())
        yield target


@pytest.fixture(scope="module")
def local_target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with serving_engine(tmp_path_factory.mktemp("local"), "local") as target:
        yield target


def routes_of(http: httpx.Client) -> list[str]:
    """Every model route that takes a body."""
    paths = http.get("/openapi.json").json()["paths"]
    posts = {path: each["post"] for path, each in paths.items() if "post" in each}
    found = [path for path, post in posts.items() if "model" in post["tags"] and "requestBody" in post]
    assert set(found) <= RICH.keys(), "a route without a body to begin with"
    return sorted(found)


LEAVES: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63) - 1, 10**400, 0.5, -0.0, 1e308, float("nan"), float("inf"),
    "", "x", "\x00", "\ud800", "\udfff\ud800", "<|im_end|>", "e\u0301🙂", "x" * 3000, "default", "null", "NaN",
    [], {}, [[]], [None], [True], ["x", 1], {"": None}, {"type": "text"}, {"type": None}, {"role": "user"},
    {"$ref": "#"}, {"type": "object", "properties": {"a": {"$ref": "#"}}}, [{}] * 300, ["x"] * 300, [0] * 300,
    {str(number): number for number in range(300)},
]  # fmt: skip


def nested(depth: int) -> Any:
    value: Any = "x"
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


def paths_of(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Of everything in a body but the body itself."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        yield (*path, key)
        yield from paths_of(inner, (*path, key))


def replaced(body: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(body)
    place: Any = changed
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return changed


NEEDED = {"model", "messages", "prompt", "input", "max_tokens", "tokens", "tools"}
APART = {"/tokenize": ({"prompt"}, {"messages", "tools", "add_generation_prompt"})}
"""By route: sets of fields of which only one may be sent."""


def around(route: str, name: str) -> dict[str, Any]:
    """Part of a rich body: what every call needs, and what goes with this field."""
    kept = {*NEEDED, name, *ASKING[route].get(name, {})}
    for one in APART.get(route, ()):
        others = set().union(*APART[route]) - one
        kept -= others if name in one else set()
    return {field: value for field, value in RICH[route].items() if field in kept}


def check_alive(target: Target, before: int, peak: int) -> None:
    assert target.take_faults() == []
    deadline = time.monotonic() + SETTLED_WITHIN_S
    while target.rss() - before > MAX_GROWTH and time.monotonic() < deadline:
        time.sleep(0.1)
        assert target.http.get("/v1/swarm/status").json()["state"] == "ROLLING"
    assert target.rss() - before < MAX_GROWTH
    assert target.peak() - peak < MAX_PEAK_GROWTH


@pytest.mark.parametrize("number", [4, pytest.param(len(LEAVES), marks=[pytest.mark.slow, pytest.mark.timeout(1800)])])
def test_every_place_of_every_body_takes_a_wrong_value(target: Target, number: int) -> None:
    generator = random.Random(0)
    before, peak = target.rss(), target.peak()
    target.answers.clear()
    for route in target.routes:
        for path in paths_of(RICH[route]):
            body = around(route, path[0])
            for value in (*generator.sample(LEAVES, number), nested(generator.randrange(250))):
                target.post(route, json.dumps(replaced(body, path, value)).encode())
            text = json.dumps(body)
            cut = generator.randrange(len(text))
            target.post(route, (text[:cut] + generator.choice("{}[]\"'\x00") + text[cut:]).encode())
    assert {(route, status) for route in target.routes for status in (200, 400)} <= target.answers.keys()
    check_alive(target, before, peak)


def check_extremes(target: Target, number: int, seed: int) -> None:
    """No engine fails, and each answer is 200 or a refusal that names a field of the request."""
    generator = random.Random(seed)
    target.answers.clear()
    for _ in range(number):
        route, body = extreme_body(generator)
        content = json.dumps(body).encode()
        reply = target.post(route, content)
        assert reply.status_code in {200, 400}, (content, reply.text)
        if reply.status_code == 400:
            error = reply.json()["error"]
            named = error.get("param") or [name for name in body if name in error["message"]]
            assert named or UNNAMED.search(error["message"]), (content, error)
    assert {(route, status) for route in SAMPLED for status in (200, 400)} <= target.answers.keys()
    assert target.take_faults() == []
    assert target.http.get("/v1/swarm/status").json()["state"] == "ROLLING"


UNNAMED = re.compile("not valid JSON|to follow (cannot|allows|is)")
"""What is wrong is no field, or a grammar, which has another name in each API."""


@pytest.mark.parametrize("name", REFUSED)
def test_value_that_no_engine_can_honour_is_refused_by_its_name(local_target: Target, name: str) -> None:
    for value in REFUSED[name]:
        reply = local_target.post("/v1/completions", json.dumps({**MINIMAL["/v1/completions"], name: value}).encode())
        assert reply.status_code == 400, (value, reply.text)
        error = reply.json()["error"]
        assert name in (error["param"] or "") or UNNAMED.search(error["message"]), (value, error)


@pytest.mark.parametrize("sampling", HARD, ids=str)
def test_hard_but_possible_sampling_is_honoured(local_target: Target, sampling: dict[str, Any]) -> None:
    reply = local_target.post("/v1/completions", json.dumps({**MINIMAL["/v1/completions"], **sampling}).encode())
    assert reply.status_code == 200, reply.text


def test_no_sampling_parameters_end_an_engine(local_target: Target) -> None:
    check_extremes(local_target, 250, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("engine", ["local_target", "target"])
def test_no_sampling_parameters_of_thousands_end_an_engine(request: pytest.FixtureRequest, engine: str) -> None:
    check_extremes(request.getfixturevalue(engine), 5000, seed=2)


MESSAGE = b'{"role":"user","content":"x"}'
LARGE: dict[str, bytes] = {
    "nesting": b'{"model":"default","messages":' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}",
    "nested objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "ten megabytes of text": b'{"model":"default","max_tokens":8,"messages":[{"role":"user","content":"'
    + b"x " * 5_000_000
    + b'"}],"prompt":"'
    + b"y" * 10
    + b'","input":"z","tokens":[1]}',
    "ten megabytes of prompt": b'{"model":"default","prompt":"' + b"x y " * 2_500_000 + b'"}',
    "a million token ids": b'{"model":"default","prompt":[' + b"5," * 1_000_000 + b'5],"tokens":['
    + b"5," * 1_000_000 + b"5]}",
    "100,000 messages": b'{"model":"default","max_tokens":8,"messages":[' + b",".join([MESSAGE] * 100_000)
    + b'],"input":[' + b",".join([MESSAGE] * 100_000) + b"]}",
    "100,000 tools": b'{"model":"default","max_tokens":8,"messages":[' + MESSAGE + b'],"input":"x","tools":['
    + b",".join([json.dumps(TOOL).encode()] * 100_000) + b"]}",
    "300,000 fields": b'{"model":"default",' + b",".join(b'"f%d":1' % number for number in range(300_000)) + b"}",
    "empty lists": b'{"model":"default","messages":[' + b"[]," * 3_000_000 + b"[]]}",
    "a long number": b'{"model":"default","seed":' + b"9" * 4_000_000 + b"}",
    "over the limit": b'{"model":"' + b"x" * (17 * 2**20) + b'"}',
}  # fmt: skip


SLOW = {"ten megabytes of prompt", "a million token ids", "100,000 messages", "100,000 tools", "empty lists"}


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] if kind in SLOW else []) for kind in LARGE]
)
def test_large_bodies_are_answered_soon(target: Target, kind: str) -> None:
    before, peak = target.rss(), target.peak()
    took = {}
    for route in target.routes:
        began = target.cpu_s()
        target.post(route, LARGE[kind])
        took[route] = target.cpu_s() - began
    assert max(took.values()) < ANSWERED_WITHIN_CPU_S, took
    check_alive(target, before, peak)
