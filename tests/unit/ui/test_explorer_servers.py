"""The page of servers, with real servers that have tokens or none, and with what is no server."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import httpx
import pytest
from explorer_samples import HOSTILE, create_database, record_training, words
from store_samples import record_state

from experiments_db import RunStatus
from swarm.job import TrainJob
from ui.servers.calls import READ_STATUS, ServerCallFailed, call_server, check_address

COMMANDER, OBSERVER = "commander-0123456789", "observer-0123456789"
JOB = TrainJob.model_validate({"engine": "fake", "total_steps": 30, "batch_size": 4, "num_repeat": 2})


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """A database with two servers that recorded trainings, one of them for a study, which knows its address."""

    def fill(store, home: Path) -> None:
        record_training(store, home="/srv/swarm")
        arm = store.create_experiment(store.create_study("Which?", planner="rules").id, "a", factors={}, job={})
        run = store.claim_run(arm.id, 1, "key")
        record_state(store, "older", home="/srv/study", model=HOSTILE, step=5, launch_key="key")
        record_state(store, "newer", home="/srv/study", model=HOSTILE, step=2, begun_at=2_000_000_000.0)
        store.update_run(run.id, status=RunStatus.LAUNCHING, server_url="http://127.0.0.1:1")

    return create_database(tmp_path, fill)


@pytest.fixture
def server(start_server) -> str:
    """The address of a server with tokens that rolls."""
    return start_server(JOB, token=COMMANDER, observer_token=OBSERVER).url


@contextmanager
def answering(
    answer: bytes, *, status: int = 200, pause_s: float = 0.0, **headers: str
) -> Iterator[tuple[str, list[str]]]:
    """A web server that answers everything alike; yields its address, and the tokens that it was sent."""
    seen: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers.get("authorization", ""))
            time.sleep(pause_s)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as web:
        Thread(target=web.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{web.server_port}", seen
        web.shutdown()


def connect(page, address: str, token: str = "") -> object:
    field = next(item for item in page.text_input if item.label == "Address")
    field.set_value(address).run()
    press(page, "Connect")
    if token:
        next(item for item in page.text_input if item.label == "Token").set_value(token).run()
    return page


def press(page, label: str) -> object:
    return next(item for item in page.button if item.label == label).click().run()


def labels(page) -> set[str]:
    return {button.label for button in page.button}


def state_of(address: str) -> str:
    return call_server(address, READ_STATUS, COMMANDER).document["state"]


def said(page) -> str:
    return "\n".join(part.value for part in [*page.success, *page.error, *page.warning, *page.info]).replace("\\", "")


def test_recorded_servers_are_listed_and_none_is_called(open_page, database: Path, monkeypatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the page connected before the user asked")

    monkeypatch.setattr(httpx, "Client", refuse)
    page = open_page("servers", database, server="/srv/swarm")
    assert not page.error and not page.warning
    table = page.dataframe[0].value
    rows = table.set_index("Server")[["Address", "Model", "Trainings", "Steps"]].to_dict("index")
    assert rows["/srv/study"] == {"Address": "http://127.0.0.1:1", "Model": HOSTILE, "Trainings": 2, "Steps": 7}
    assert any("silent" in state for state in table["State"])
    assert rows["/srv/swarm"]["Trainings"] == 1 and rows["/srv/swarm"]["Steps"] == 12
    assert "Nothing is called before you connect." in words(page)


def test_the_state_of_a_server_without_tokens_is_read_and_no_command_is_offered(
    open_page, database: Path, start_server
) -> None:
    page = connect(open_page("servers", database), start_server(JOB).url)
    assert not page.exception and not page.error and not page.warning
    figures = {metric.label: metric.value for metric in page.metric}
    assert figures["Step"] == "0 / 30" and figures["Episodes under way"] == "0"
    assert labels(page) == {"Disconnect"} and "swarm stop --engine-only" in words(page)
    press(page, "Disconnect")
    assert not page.exception and not page.metric and "Connect" in labels(page)


def test_a_server_with_tokens_is_read_with_one_and_not_without(open_page, database: Path, server: str) -> None:
    page = connect(open_page("servers", database), server)
    assert not page.exception and not page.metric and "one of its tokens" in said(page)
    wrong = connect(open_page("servers", database), server, "wrong-0123456789")
    assert not wrong.exception and not wrong.metric and "answered 401" in said(wrong)


def test_a_command_is_sent_once_it_is_confirmed(open_page, database: Path, server: str) -> None:
    page = connect(open_page("servers", database), server, COMMANDER)
    press(page, "Stop")
    assert not page.exception and "POST " + server + "/v1/swarm/engine/stop" in words(page)
    assert state_of(server) == "ROLLING"
    press(page, "Cancel")
    assert "Send" not in labels(page) and state_of(server) == "ROLLING"
    press(page, "Stop")
    press(page, "Send")
    assert not page.exception and "the server answered 2" in said(page) and state_of(server) == "OFFLINE"
    press(page, "Start")
    press(page, "Send")
    assert "the server answered 202" in said(page) and state_of(server) != "OFFLINE"


def test_a_policy_and_settings_are_changed(open_page, database: Path, server: str) -> None:
    page = connect(open_page("servers", database), server, COMMANDER)
    page.number_input(key=f"batch_size {server}").set_value(6).run()
    press(page, "Review the policy")
    assert '"batch_size": 6' in words(page) and "num_repeat" not in page.code[-1].value
    press(page, "Send")
    assert "the server answered 200" in said(page)
    page.text_area(key=f"settings {server}").set_value("temperature=0.5").run()
    press(page, "Review the settings")
    press(page, "Send")
    # The policy was a change of the job as well, so the revision that the page has read is the present one.
    assert not page.exception and "the server answered 200" in said(page)
    page.text_area(key=f"settings {server}").set_value("no_such_setting=1").run()
    press(page, "Review the settings")
    press(page, "Send")
    assert "the server answered 400" in said(page) and "no_such_setting" in said(page)


def test_a_command_with_the_token_of_an_observer_shows_the_refusal(open_page, database: Path, server: str) -> None:
    page = connect(open_page("servers", database), server, OBSERVER)
    press(page, "Stop")
    press(page, "Send")
    assert not page.exception and "answered 403" in said(page) and "commander" in said(page)
    assert state_of(server) == "ROLLING"


def test_a_token_is_neither_in_the_address_nor_sent_elsewhere(open_page, database: Path, server: str) -> None:
    page = connect(open_page("servers", database), server, COMMANDER)
    assert COMMANDER not in str(page.query_params)
    press(page, "Disconnect")
    with answering(b'{"error": {"message": "no"}}', status=401) as (address, seen):
        connect(page, address)
        assert not page.exception and "one of its tokens" in said(page) and set(seen) == {""}


@pytest.mark.parametrize(
    ("answer", "words_of_it"),
    [
        (b"<script>alert(1)</script>", "not as a swarm server does"),
        (b"[" * 100_000, "not as a swarm server does"),
        (b"[]", "not as a swarm server does"),
        (b"x" * 3_000_000, "more than a server's answer can be"),
        (b"{}", "not with the status of a swarm server"),
        (b'{"state": 3, "step": "x"}', "not with the status of a swarm server"),
        (b'{"state": "ROLLING", "step": 1}', "not with the status of a swarm server"),
    ],
)
def test_an_address_without_a_server_is_told(open_page, database: Path, answer: bytes, words_of_it: str) -> None:
    with answering(answer) as (address, _):
        page = connect(open_page("servers", database), address)
        assert not page.exception and words_of_it in said(page)


def test_a_hostile_status_is_shown_as_text(open_page, database: Path) -> None:
    evil = f"{HOSTILE} :red[no] **b** \u202e\ud800" + "x" * 5000
    status = {
        "state": evil, "reason": evil, "step": -1, "weight_version": 10**30, "total_steps": 0, "model": evil,
        "project_name": evil, "experiment_name": evil, "policy": {"batch_size": evil}, "tokens_per_second": 1e400,
        "pool": {"tasks": 10**9, "tasks_target": 1}, "last_metrics": {"critic/score/mean": "NaN"}, "now": 1e300,
        "clients": [{"client_id": evil, "last_seen_at": -1e300, "running": 0, "completed": 0, "lost": 0}],
        "warnings": [{"client_id": evil, "message": evil}], "guard": {"did": evil, "step": 1, "sentence": evil},
        "lost": [{"sentence": f"restored from a copy: episodes after 40 unknown {evil}"}],
    }  # fmt: skip
    with answering(json.dumps(status).encode()) as (address, _):
        page = connect(open_page("servers", database), address)
        assert not page.exception and "episodes after 40 unknown" in said(page)
        for part in [*page.markdown, *page.caption, *page.warning, *page.error]:
            # In a code span nothing is markup.
            outside = re.sub(r"`[^`]*`", "", part.value)
            assert ":red[no]" not in outside and HOSTILE not in outside and len(outside) < 4000


def test_a_slow_server_costs_no_more_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ui.servers.calls.LIMIT_S", 0.5)
    with answering(b"{}", pause_s=1.0) as (address, _), pytest.raises(ServerCallFailed, match=r"0\.5 seconds"):
        call_server(address, READ_STATUS)


def test_redirects_are_not_followed() -> None:
    with answering(b"{}") as (inside, seen), answering(b"{}", status=307, location=inside) as (address, _):
        assert call_server(address, READ_STATUS, COMMANDER).status == 307 and seen == []


def test_nothing_listens_at_an_address(open_page, database: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        page = connect(open_page("servers", database), f"http://127.0.0.1:{taken.getsockname()[1]}")
    assert not page.exception and "cannot be reached" in said(page) and "Connect" in labels(page)


@pytest.mark.parametrize(
    "text",
    ["", "127.0.0.1:10086", "file:///etc/passwd", "http://", "http://user:key@host", "http://host/path", "http://h?a=b",
     "http://[", "http://host:99999999", "javascript:alert(1)", "http://a\nb", "http://\ud800"],
)  # fmt: skip
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ServerCallFailed):
        check_address(text)


def test_an_address_may_end_in_a_slash() -> None:
    assert check_address(" http://127.0.0.1:10086/ ") == "http://127.0.0.1:10086"
    assert check_address("https://host") == "https://host"


@pytest.mark.parametrize("token", ["a\nb", "é", "a\x00"])
def test_a_token_that_cannot_be_one_is_refused(token: str) -> None:
    with pytest.raises(ServerCallFailed, match="token"):
        call_server("http://127.0.0.1:1", READ_STATUS, token)


def test_settings_are_read_as_a_job_has_them() -> None:
    from ui.servers.commands import parse_settings

    text = "lr=3e-4\n\n temperature = 0.8 \nkeep_last=null\nbetas=[0.9, 0.95]\nmodel=3b-model\nmixture={words: 1.0}"
    assert parse_settings(text) == {
        "lr": 3e-4, "temperature": 0.8, "keep_last": None, "betas": [0.9, 0.95], "model": "3b-model",
        "mixture": {"words": 1.0},
    }  # fmt: skip


@pytest.mark.parametrize("text", ["lr", "=1", "lr=", "lr={", "lr=" + "[" * 5000])
def test_lines_that_are_no_settings_are_refused(text: str) -> None:
    from ui.servers.commands import parse_settings

    with pytest.raises(ValueError):
        parse_settings(text)
