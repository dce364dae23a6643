"""One question to a language model: sent, checked, repeated if necessary, and always recorded and charged.

Place in the flow: the `llm` planner asks through a `Chat`. The openai SDK sends each call to any OpenAI-compatible
server. This module classifies failures into those that waiting may cure and others; backoff.py does the waiting. The
key goes only to the SDK, never to the database, a log or a message. This module knows nothing of a study's subject.
"""

from __future__ import annotations

import email.utils
import json
import logging
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeVar

import openai

from experiments_db import BudgetKind, ExperimentStore
from prompts import load
from researcher.errors import LanguageModelRefused, LanguageModelUnavailable, PlannerError
from researcher.planner.language_model.answers import Unusable
from researcher.planner.language_model.backoff import Backoff
from researcher.study.budget import BudgetLedger

logger = logging.getLogger(__name__)

T = TypeVar("T")

MAX_ANSWERS = 3
"""The number of answers per attempt; each repetition tells the model the fault of the previous answer."""

CALL_TIMEOUT_S = 180.0
"""The longest time without a byte of the answer."""
CALL_LIMIT_S = 900.0
"""The longest time for a whole answer: a server that sends byte by byte must not block a study for ever."""
MAX_OUTPUT_TOKENS = 8_000
MAX_ERROR_CHARS = 500
# The ratio of English text and code. It estimates tokens before a call, and where a server reports no usage.
CHARS_PER_TOKEN = 3.5

REFUSED = frozenset({401, 403, 404})
"""Statuses of a rejected key or an unknown model, which only a person can fix."""
MAY_PASS = frozenset({402, 408, 409, 425, 429})
"""Statuses below 500 that may pass: no credit, a timeout, a conflict, too early, too many requests."""


class _NoAnswer(Exception):
    """An attempt without a usable answer, after which another attempt may succeed."""

    def __init__(self, reason: str, retry_after_s: float | None = None) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class Price:
    """The price of tokens, in US dollars per million."""

    input_usd: float
    output_usd: float

    def of(self, input_tokens: int, output_tokens: int) -> float:
        return (self.input_usd * input_tokens + self.output_usd * output_tokens) / 1e6


class Chat:
    """The questions of one study to one model."""

    def __init__(
        self,
        *,
        model: str,
        base_url: str | None,
        api_key: str,
        store: ExperimentStore,
        study_id: str,
        ledger: BudgetLedger,
        price: Price | None = None,
        backoff: Backoff | None = None,
        carry: Callable[[Callable[[], Any], float], Any] = lambda call, limit_s: call(),
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> None:
        """Create a chat.

        `carry` makes the call that it is given and returns its result. It raises TimeoutError after the given number of
        seconds, and may raise any exception that ends the work meanwhile.

        Raises PlannerError for an empty model or key, or for a money budget without a price.
        """
        if not model:
            raise PlannerError("no language model is named: give --model")
        if not api_key:
            raise PlannerError("no key for the language model: set OPENAI_API_KEY (any text if the server needs none)")
        if ledger.budget.max_llm_usd is not None and price is None:
            raise PlannerError(
                "--max-llm-usd needs the model's prices: give --llm-price INPUT,OUTPUT in $ per 1M tokens"
            )
        self.model = model
        self._key = api_key
        self._store = store
        self._study_id = study_id
        self._ledger = ledger
        self._price = price
        self._backoff = backoff or Backoff(model)
        self._carry = carry
        self._base_url = base_url
        self._timeout_s = timeout_s

    def ask(self, node: str, question: str, parse: Callable[[str], T]) -> T:
        """Return the parsed answer to a question.

        `parse` raises Unusable; the model sees the message before it tries again. Raises LanguageModelUnavailable when
        the waiting for an answer is over, LanguageModelRefused at once if waiting cannot help, and BudgetExceeded
        before a call that could exceed the budget.
        """
        self._backoff.ensure_open()
        attempts = count(1)
        while True:
            try:
                answer = self._converse(node, question, parse, attempts)
            except _NoAnswer as failure:
                self._backoff.wait(f"{node}: {failure}", failure.retry_after_s)
            else:
                self._backoff.succeed()
                return answer

    def _converse(self, node: str, question: str, parse: Callable[[str], T], attempts: Iterator[int]) -> T:
        """Return the first usable of a few answers.

        Raises _NoAnswer if none is usable, or if a call fails.
        """
        messages = [_message("system", load("system")), _message("user", question)]
        reason = ""
        for _ in range(MAX_ANSWERS):
            text = self._call(node, messages, attempt=next(attempts), parse=parse)
            try:
                return parse(text)
            except Unusable as error:
                reason = str(error)
                messages += [_message("assistant", text), _message("user", load("retry", reason=reason))]
        raise _NoAnswer(f"{MAX_ANSWERS} answers that cannot be used: {reason}")

    def _call(self, node: str, messages: list[dict[str, str]], *, attempt: int, parse: Callable[[str], object]) -> str:
        """Make one request, and record it with the objection of `parse` to its answer."""
        prompt = json.dumps(messages, ensure_ascii=False, indent=1)
        expected = math.ceil(len(prompt) / CHARS_PER_TOKEN)
        self._ledger.ensure_can_call_llm(
            expected + MAX_OUTPUT_TOKENS, self._price.of(expected, MAX_OUTPUT_TOKENS) if self._price else 0.0
        )
        started = time.monotonic()
        try:
            completion: object = self._carry(lambda: self._send(messages), CALL_LIMIT_S)
            text, used = _read(completion)
        # A body that is not JSON, or not a completion, raises ValueError.
        except (openai.OpenAIError, ValueError, TimeoutError) as error:
            self._record(node, prompt, None, 0, 0, attempt, time.monotonic() - started, self._describe(error))
            raise self._classify(node, error) from None
        latency = time.monotonic() - started
        input_tokens = expected if used is None else used[0]
        output_tokens = math.ceil(len(text) / CHARS_PER_TOKEN) if used is None else used[1]
        self._record(node, prompt, text, input_tokens, output_tokens, attempt, latency, _objection(text, parse))
        return text

    def _send(self, messages: list[dict[str, str]]) -> object:
        """Send the messages over a connection of their own, which closes with the call.

        It closes even if nobody waits for the call any more.
        """
        with openai.OpenAI(
            api_key=self._key, base_url=self._base_url, timeout=self._timeout_s, max_retries=0
        ) as client:
            return client.chat.completions.create(
                model=self.model,
                messages=messages,  # pyright: ignore[reportArgumentType]
                max_completion_tokens=MAX_OUTPUT_TOKENS,
            )

    def _classify(self, node: str, error: Exception) -> Exception:
        """Return the error that a failed call means: wait and retry, let a person fix it, or do not ask again."""
        reason = self._describe(error)
        status = error.status_code if isinstance(error, openai.APIStatusError) else None
        if status in REFUSED:
            return LanguageModelRefused(
                f"{node}: {self.model} refused: {reason}: set OPENAI_API_KEY, OPENAI_BASE_URL and --model right"
            )
        if status is not None and status < 500 and status not in MAY_PASS:
            return LanguageModelUnavailable(f"{node}: {self.model} refused: {reason}")
        return _NoAnswer(f"no answer: {reason}", _retry_after_s(error))

    def _record(
        self,
        node: str,
        prompt: str,
        response: str | None,
        input_tokens: int,
        output_tokens: int,
        attempt: int,
        latency_s: float,
        error: str | None,
    ) -> None:
        cost = self._price.of(input_tokens, output_tokens) if self._price else 0.0
        call = self._store.record_llm_call(
            self._study_id,
            node=node,
            model=self.model,
            prompt=self._without_key(prompt),
            response=None if response is None else self._without_key(response),
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            cost_usd=cost,
            latency_s=latency_s,
            attempt=attempt,
            error=error,
        )
        key = f"llm-call-{call.id}"
        self._ledger.charge(BudgetKind.LLM_TOKENS, input_tokens + output_tokens, key)
        self._ledger.charge(BudgetKind.COST_USD, cost, key)
        logger.info("%s: %s answered in %.1f s (%d tokens)", node, self.model, latency_s, output_tokens)

    def _describe(self, error: Exception) -> str:
        """Return the error in one line, without the key, because servers repeat part of it in their messages."""
        status = f"HTTP {error.status_code}: " if isinstance(error, openai.APIStatusError) else ""
        line = " ".join(f"{status}{error}".split())
        return self._without_key(line)[:MAX_ERROR_CHARS] or type(error).__name__

    def _without_key(self, text: str) -> str:
        return text.replace(self._key, "[key]")


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _read(completion: object) -> tuple[str, tuple[int, int] | None]:
    """Return the text, and the prompt and completion tokens or None if the server reports none.

    Servers omit different fields from an empty answer. Raises ValueError if `completion` is not a chat completion,
    because the SDK passes on whatever a server sends.
    """
    choices: Any = getattr(completion, "choices", None)
    if not hasattr(completion, "choices") or not isinstance(choices, list | None):
        raise ValueError("the server's answer is no chat completion")
    message: Any = getattr(choices[0], "message", None) if choices else None
    text: Any = getattr(message, "content", None) or ""
    if not isinstance(text, str):
        raise ValueError("the server's answer has a message without text")
    usage: Any = getattr(completion, "usage", None)
    tokens = tuple(getattr(usage, name, None) for name in ("prompt_tokens", "completion_tokens"))
    if all(isinstance(each, int) and each >= 0 for each in tokens):
        return text, (int(tokens[0] or 0), int(tokens[1] or 0))
    return text, None


def _retry_after_s(error: Exception) -> float | None:
    """Return the seconds that the server asks to wait, or None.

    The header has a number or a date (RFC 9110, section 10.2.3).
    """
    if not isinstance(error, openai.APIStatusError):
        return None
    value = error.response.headers.get("retry-after", "").strip()
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except ValueError:
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


def _objection(text: str, parse: Callable[[str], object]) -> str | None:
    try:
        parse(text)
    except Unusable as error:
        return f"unusable answer: {error}"[:MAX_ERROR_CHARS]
    return None
