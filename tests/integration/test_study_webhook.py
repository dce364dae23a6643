"""News of a study at a real receiver: what is told, what a receiver that fails costs, and what is never told."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from experiments_db import ExperimentStore, StudyStatus
from researcher.errors import ServerProblem
from researcher.loop.session import work_on
from researcher.study.requests import create_study
from researcher.study.settings import StudySettings
from researcher.webhook import FAILED, Webhook, without_secrets

TOPIC = "batch size 2 or 3 for tool use at equal steps"
FIELDS = {
    "schema", "text", "event", "at", "message", "study", "topic", "status", "reason", "answer", "verdicts", "report",
}  # fmt: skip


@dataclass
class Receiver:
    """What was posted, by path; `answers` are the statuses of the next replies, then 200."""

    url: str = ""
    answers: list[int] = field(default_factory=list[int])
    posts: list[tuple[str, dict[str, Any]]] = field(default_factory=list[tuple[str, dict[str, Any]]])

    def events(self) -> list[str]:
        return [body["event"] for _, body in self.posts]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    found = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            found.posts.append((self.path, body))
            status = found.answers.pop(0) if found.answers else 200
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("Location", f"{found.url}/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield found
    server.shutdown()
    thread.join()
    server.server_close()


def begin(store: ExperimentStore, webhook: str, **settings: Any) -> str:
    small = {"engine": "fake", "steps": 2, "seeds": 1, "eval_episodes": 6, "parallel": 1}
    return create_study(store, TOPIC, StudySettings.model_validate(small | settings | {"webhook": webhook})).id


def tell_one(store: ExperimentStore, study: str, url: str, *, told: Callable[[], bool] = lambda: True) -> list[str]:
    """The failures of one news, which is told without waits between attempts."""
    failures: list[str] = []
    delivered = threading.Event()
    with Webhook(url, store, study, on_failure=failures.append, retry_after_s=(0.0, 0.0)) as webhook:
        webhook.tell("disk.low", "Too little space.")
        for _ in range(600):
            if failures or told():
                break
            delivered.wait(0.1)
    return failures


def test_study_is_told_from_its_begin_to_its_report(
    store: ExperimentStore, tmp_path: Path, receiver: Receiver, start_server: Callable[..., Any]
) -> None:
    study = begin(store, f"{receiver.url}/hook?key=own", servers=[start_server().url])

    work_on(store, study, tmp_path)

    assert receiver.events() == ["begun", "verdicts", "finished"]
    assert {path for path, _ in receiver.posts} == {"/hook?key=own"}
    assert all(set(body) == FIELDS and body["study"] == study and body["schema"] == 1 for _, body in receiver.posts)
    first, judged, last = (body for _, body in receiver.posts)
    assert all(text in last["text"] for text in (f"{study}: finished", TOPIC, last["message"], last["answer"]))
    assert first["report"] is None
    assert judged["verdicts"] and judged["status"] in ("running", "finished")
    assert last["status"] == "finished" and last["answer"] and Path(last["report"]).is_file()


def test_study_that_fails_tells_why(store: ExperimentStore, tmp_path: Path, receiver: Receiver) -> None:
    study = begin(store, receiver.url, servers=["http://127.0.0.1:9"], max_outage_hours=1e-6)

    with pytest.raises(ServerProblem):
        work_on(store, study, tmp_path)

    assert receiver.events()[-1] == "failed"
    last = receiver.posts[-1][1]
    assert last["status"] == "failed" and "no server has answered" in last["reason"]


@pytest.mark.slow
def test_receiver_that_is_not_there_costs_a_study_nothing(store: ExperimentStore, tmp_path: Path) -> None:
    study = begin(store, "http://127.0.0.1:9/secret-path")

    outcome = work_on(store, study, tmp_path)

    assert outcome.study.status is StudyStatus.FINISHED
    warnings = store.list_events(study, kind=FAILED)
    assert [event.message.partition(": ")[0] for event in warnings] == [
        f"127.0.0.1:9 was not told '{news}'" for news in ("begun", "verdicts", "finished")
    ]
    assert not any("secret-path" in event.message for event in warnings)


def test_receiver_that_is_busy_is_asked_again(store: ExperimentStore, receiver: Receiver) -> None:
    receiver.answers = [503, 429]
    study = begin(store, receiver.url)

    assert tell_one(store, study, receiver.url, told=lambda: len(receiver.posts) == 3) == []
    assert receiver.events() == ["disk_low"] * 3


@pytest.mark.parametrize(("status", "reason"), [(302, "redirects are not followed"), (404, "HTTP 404")])
def test_redirect_is_not_followed_and_a_refusal_not_repeated(
    store: ExperimentStore, receiver: Receiver, status: int, reason: str
) -> None:
    receiver.answers = [status]
    study = begin(store, receiver.url)

    (failure,) = tell_one(store, study, receiver.url, told=lambda: False)

    assert reason in failure
    assert [path for path, _ in receiver.posts] == ["/"]


@pytest.mark.parametrize("url", ["nowhere://example.com", "example.com", "https://"])
def test_url_that_nothing_can_be_sent_to_is_refused_at_once(url: str) -> None:
    with pytest.raises(ValueError, match="a webhook is an http:// or https:// URL"):
        StudySettings.model_validate({"webhook": url})


def test_value_of_a_secret_variable_is_in_no_body(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "canary-of-a-key")
    monkeypatch.setenv("SWARM_TOKEN", "canary-of-a-token")

    body = without_secrets({"reason": "401 for canary-of-a-key", "verdicts": ["at canary-of-a-token"], "at": 1.0})

    assert body == {"reason": "401 for ***", "verdicts": ["at ***"], "at": 1.0}
