"""News of a study for a webhook: one message for each event that a person may want to act on."""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Self
from urllib.parse import urlsplit

import httpx

from experiments_db import ExperimentStore, StoreError
from researcher.errors import ResearchError
from researcher.report.summary import summarize

logger = logging.getLogger(__name__)

SCHEMA = 1
NEWS: Mapping[str, str] = MappingProxyType(
    {
        "charter.frozen": "begun",
        "analysis.made": "verdicts",
        "study.drained": "paused",
        "study.paused": "paused",
        "study.failed": "failed",
        "study.finished": "finished",
        "servers.lost": "servers_lost",
        "disk.low": "disk_low",
    }
)
"""The name of the news by the kind of the study's event; other kinds are not sent."""

TIMEOUT_S = 5.0
RETRY_AFTER_S = (1.0, 5.0, 30.0)
CLOSE_LIMIT_S = 20.0
"""Seconds for which the end of the work waits for pending news; each is then tried once."""

FAILED = "webhook.failed"
MASK = "***"
_SECRET_NAMES = ("KEY", "TOKEN", "PASSWORD", "SECRET")
_SHORTEST_SECRET = 8


class NotDelivered(Exception):
    """A failed attempt to deliver news; `is_final` if another attempt would make no difference."""

    def __init__(self, message: str, *, is_final: bool) -> None:
        super().__init__(message)
        self.is_final = is_final


@dataclass(frozen=True, slots=True)
class News:
    """One piece of news; `at` is its time in seconds since the epoch."""

    event: str
    message: str
    at: float


class Webhook:
    """A webhook that sends the news of one study to one URL, in order. Redirects are not followed."""

    def __init__(
        self,
        url: str,
        store: ExperimentStore,
        study_id: str,
        *,
        on_failure: Callable[[str], None],
        retry_after_s: tuple[float, ...] = RETRY_AFTER_S,
    ) -> None:
        """Create a webhook; `on_failure` gets one line, without the URL's path, for news that was not delivered."""
        self._url = url
        self._store = store
        self._study_id = study_id
        self._on_failure = on_failure
        self._retry_after_s = retry_after_s
        self._pending: queue.SimpleQueue[News | None] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._deliver_all, name="webhook", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._pending.put(None)
        self._closing.set()
        self._thread.join(CLOSE_LIMIT_S)
        if self._thread.is_alive():
            logger.warning("the webhook does not answer: what is left is not told")

    def tell(self, kind: str, message: str) -> None:
        """Queue the news of an event, if its kind is news. Returns at once."""
        if kind in NEWS:
            self._pending.put(News(NEWS[kind], message, time.time()))

    def _deliver_all(self) -> None:
        # A redirect could lead where the person who named the URL did not mean to send anything.
        with httpx.Client(timeout=TIMEOUT_S, follow_redirects=False) as client:
            while (news := self._pending.get()) is not None:
                try:
                    self._deliver(client, news)
                except Exception as error:  # noqa: BLE001 - the boundary: undelivered news never ends a study
                    self._give_up(news, error)

    def _deliver(self, client: httpx.Client, news: News) -> None:
        """Send one piece of news, with retries. Raises NotDelivered after the last attempt, StoreError."""
        body = without_secrets(describe(self._store, self._study_id, news))
        for wait_s in (*self._retry_after_s, None):
            try:
                _post(client, self._url, body)
                return
            except NotDelivered as error:
                if wait_s is None or error.is_final or self._closing.is_set():
                    raise
                self._closing.wait(wait_s)

    def _give_up(self, news: News, error: Exception) -> None:
        receiver = _receiver(self._url)
        reason = " ".join(str(error).split()).replace(self._url, receiver)
        try:
            self._on_failure(f"{receiver} was not told {news.event!r}: {reason}")
        except StoreError as failure:
            logger.warning("webhook: %s; %s", reason, failure)


def _receiver(url: str) -> str:
    """Return the host and the port of a URL, whose path may be secret."""
    place = urlsplit(url)
    return f"{place.hostname}:{place.port or place.scheme}"


def describe(store: ExperimentStore, study_id: str, news: News) -> dict[str, Any]:
    """Return the body of a POST; docs/operations.md explains its fields. Raises StoreError."""
    study = store.get_study(study_id)
    reports = {item.kind: item.path for item in store.list_artifacts(study_id)}
    try:
        found = summarize(store, study_id)
        answer, verdicts = found.answer, list(found.verdicts)
    except ResearchError:
        # A study that has no charter yet has found nothing.
        answer, verdicts = None, []
    report = reports.get("report.markdown")
    lines = (f"{study.id}: {news.event.replace('_', ' ')}", study.topic, news.message, answer, *verdicts, report)
    return {
        "schema": SCHEMA,
        "text": "\n".join(line for line in lines if line),
        "event": news.event,
        "at": news.at,
        "message": news.message,
        "study": study.id,
        "topic": study.topic,
        "status": study.status.value,
        "reason": study.status_reason,
        "answer": answer,
        "verdicts": verdicts,
        "report": report,
    }


def without_secrets(value: Any) -> Any:
    """Return a JSON document with every secret masked.

    A secret is the value of an environment variable with KEY, TOKEN, PASSWORD or SECRET in its name.
    """
    secrets = [
        text
        for name, text in os.environ.items()
        if len(text) >= _SHORTEST_SECRET and any(word in name.upper() for word in _SECRET_NAMES)
    ]
    return _mask(value, sorted(secrets, key=len, reverse=True))


def _mask(value: Any, secrets: list[str]) -> Any:
    if isinstance(value, str):
        for secret in secrets:
            value = value.replace(secret, MASK)
        return value
    if isinstance(value, dict):
        return {name: _mask(entry, secrets) for name, entry in value.items()}
    return [_mask(entry, secrets) for entry in value] if isinstance(value, list) else value


def _post(client: httpx.Client, url: str, body: Mapping[str, Any]) -> None:
    try:
        answered = client.post(url, json=dict(body))
    except httpx.HTTPError as error:
        raise NotDelivered(f"{type(error).__name__}: {error}", is_final=False) from error
    if answered.is_success:
        return
    if answered.has_redirect_location:
        raise NotDelivered(f"it answers HTTP {answered.status_code}: redirects are not followed", is_final=True)
    is_final = answered.status_code < 500 and answered.status_code not in (408, 425, 429)
    raise NotDelivered(f"it answers HTTP {answered.status_code}", is_final=is_final)
