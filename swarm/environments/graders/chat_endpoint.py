"""A client for one question to an OpenAI-compatible endpoint, on the standard library alone."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, replace
from http.client import HTTPException, HTTPMessage
from typing import IO, Any, cast
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, OpenerDirector, Request, build_opener

from swarm.errors import EnvironmentInvalid

MAX_ANSWER_BYTES = 4 * 2**20
CHUNK_BYTES = 64 * 1024
MAX_ERROR_CHARS = 300
MIN_KEY_CHARS = 8
"""Shorter keys are placeholders, which may occur in ordinary text and are not removed from it."""


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """An answer; `tokens` counts those of prompt and answer, and is None if the server does not report them."""

    text: str
    tokens: int | None


class CallFailed(Exception):
    """A failed call, described in one line.

    If `is_temporary`, another try may succeed, after `retry_after_s` seconds if the server asks for a pause.
    """

    def __init__(self, message: str, *, is_temporary: bool, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.is_temporary = is_temporary
        self.retry_after_s = retry_after_s


class ChatEndpoint:
    """An endpoint and its model. Each call reads the key from the environment and sends it in a header.

    The key is never in an error or an answer, and no redirect is followed, which could carry it to another server.
    """

    def __init__(self, url: str, model: str, key_env: str, timeout_s: float) -> None:
        """Check the URL.

        Raises EnvironmentInvalid for one that is not a URL of HTTP, or that contains a password.
        """
        _check(url)
        self.model = model
        self._url, self._key_env, self._timeout_s = f"{url.rstrip('/')}/chat/completions", key_env, timeout_s
        self._opener: OpenerDirector = build_opener(_NoRedirects())

    def ask(self, prompt: str) -> ChatAnswer:
        """Return the answer at temperature 0.

        Raises CallFailed.
        """
        body = {"model": self.model, "messages": [{"role": "user", "content": prompt}], "temperature": 0}
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get(self._key_env, "").strip():
            headers["Authorization"] = f"Bearer {key}"
        request = Request(self._url, json.dumps(body).encode(), headers, method="POST")
        try:
            answer = _answer_in(self._sent(request))
            return replace(answer, text=self.without_key(answer.text))
        except HTTPError as error:
            with error:
                raise self._refused(error) from None
        except (OSError, HTTPException) as error:
            message = self.without_key(f"no answer from {self._url}: {getattr(error, 'reason', None) or error!r}")
            raise CallFailed(message, is_temporary=True) from None

    def without_key(self, text: str) -> str:
        """Return the text without the key.

        Servers repeat the key in error messages, and a model may answer anything.
        """
        key = os.environ.get(self._key_env, "").strip()
        return text.replace(key, "[key]") if len(key) >= MIN_KEY_CHARS else text

    def _sent(self, request: Request) -> bytes:
        """Send a request and return the body of the answer.

        The timeout of a socket bounds each read; the deadline bounds all of them together.
        """
        deadline = time.monotonic() + self._timeout_s
        document = b""
        with self._opener.open(request, timeout=self._timeout_s) as response:
            while chunk := response.read1(CHUNK_BYTES):
                document += chunk
                if len(document) > MAX_ANSWER_BYTES or time.monotonic() > deadline:
                    raise TimeoutError(f"the answer took longer than {self._timeout_s:g} s, or is too long")
        return document

    def _refused(self, error: HTTPError) -> CallFailed:
        try:
            reason = " ".join(error.read(CHUNK_BYTES).decode(errors="replace").split())
        except (OSError, HTTPException):
            reason = "and closed the connection"
        hint = f" (the key is read from ${self._key_env})" if error.code in (401, 403) else ""
        return CallFailed(
            self.without_key(f"{self._url} answered HTTP {error.code}{hint}: {reason}")[:MAX_ERROR_CHARS],
            is_temporary=error.code == 429 or error.code >= 500,
            retry_after_s=_seconds(error.headers.get("retry-after")),
        )


def _check(url: str) -> None:
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_url, parts = False, urlsplit("")
    if parts.username or parts.password:
        message = "judge_url contains a name or a password: put the key into the variable that judge_key_env names"
        raise EnvironmentInvalid(message, param="judge_url")
    if not is_url:
        message = f"judge_url {url[:80]!r} is not the URL of a server: expected http://HOST:PORT/v1"
        raise EnvironmentInvalid(message, param="judge_url")


class _NoRedirects(HTTPRedirectHandler):
    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> None:
        return None


def _answer_in(body: bytes) -> ChatAnswer:
    """Return the answer in a chat completion, which is empty if it has no text.

    Raises CallFailed for any other document. Servers differ in the fields that they leave out.
    """
    try:
        document: Any = json.loads(body)
        text: object = document["choices"][0]["message"]["content"]
        usage: object = document.get("usage")
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        raise CallFailed(f"the answer is not a chat completion: {body[:80]!r}", is_temporary=True) from None
    tokens = cast(dict[str, object], usage).get("total_tokens") if isinstance(usage, dict) else None
    return ChatAnswer(text if isinstance(text, str) else "", tokens if isinstance(tokens, int) else None)


def _seconds(header: str | None) -> float | None:
    return float(header) if header is not None and header.isdigit() else None
