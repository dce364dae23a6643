"""One question to a language model: sent, checked, asked again if need be, recorded and paid for in any case.

Place in the flow: the `llm` planner asks through a `Chat`; the openai SDK carries it to any OpenAI-compatible server.
Only text and token counts leave here; the key goes to the SDK and nowhere else: not to the database, a log or a
message. What fails is classified here, as what waiting may mend and what it does not; backoff.py does the waiting. This
module knows nothing of what a study is about.
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
"""Answers asked for, each told what was wrong with the one before, until a question is begun anew after a pause."""

CALL_TIMEOUT_S = 180.0
"""Without a byte of the answer."""
CALL_LIMIT_S = 900.0
"""For the whole of it: what comes byte by byte must not hold a study for ever."""
MAX_OUTPUT_TOKENS = 8_000
MAX_ERROR_CHARS = 500
# What English text and code have; used where a server reports no usage, and to keep within the budget beforehand.
CHARS_PER_TOKEN = 3.5

REFUSED = frozenset({401, 403, 404})
"""Statuses that say that the key is not accepted, or that there is no such model: a person has to mend it."""
MAY_PASS = frozenset({402, 408, 409, 425, 429})
"""Statuses below 500 that a later attempt may not get: no credit, too slow, a conflict, too early, too many."""


class _NoAnswer(Exception):
    """An attempt that gave nothing usable; another one may."""

    def __init__(self, reason: str, retry_after_s: float | None = None) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars per million tokens."""

    input_usd: float
    output_usd: float

    def of(self, input_tokens: int, output_tokens: int) -> float:
        return (self.input_usd * input_tokens + self.output_usd * output_tokens) / 1e6


class Chat:
    """Questions of one study to one model."""

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
        """`carry` makes a call that it is given and returns what that gives, or raises TimeoutError after so many
        seconds; it may raise whatever ends the work while the call goes on.

        Raises PlannerError for an empty model or key, or a money budget without a price to count by.
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
        """The parsed answer. `parse` raises Unusable, which is told to the model before it may try again.

        Raises LanguageModelUnavailable when the waiting for an answer is over, LanguageModelRefused at once where
        waiting mends nothing, BudgetExceeded before a call that could go over the budget.
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
        """The first usable of a few answers. Raises _NoAnswer if none is, or if one does not come."""
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
        """One request, recorded with what `parse` thinks of its answer."""
        prompt = json.dumps(messages, ensure_ascii=False, indent=1)
        expected = math.ceil(len(prompt) / CHARS_PER_TOKEN)
        self._ledger.ensure_can_call_llm(
            expected + MAX_OUTPUT_TOKENS, self._price.of(expected, MAX_OUTPUT_TOKENS) if self._price else 0.0
        )
        started = time.monotonic()
        try:
            completion: object = self._carry(lambda: self._send(messages), CALL_LIMIT_S)
            text, used = _read(completion)
        # A body that is no JSON, or no completion, comes as a ValueError.
        except (openai.OpenAIError, ValueError, TimeoutError) as error:
            self._record(node, prompt, None, 0, 0, attempt, time.monotonic() - started, self._describe(error))
            raise self._classify(node, error) from None
        latency = time.monotonic() - started
        input_tokens = expected if used is None else used[0]
        output_tokens = math.ceil(len(text) / CHARS_PER_TOKEN) if used is None else used[1]
        self._record(node, prompt, text, input_tokens, output_tokens, attempt, latency, _objection(text, parse))
        return text

    def _send(self, messages: list[dict[str, str]]) -> object:
        """Over a connection of its own, which ends with the call even where nobody waits for it any more."""
        with openai.OpenAI(
            api_key=self._key, base_url=self._base_url, timeout=self._timeout_s, max_retries=0
        ) as client:
            return client.chat.completions.create(
                model=self.model,
                messages=messages,  # pyright: ignore[reportArgumentType]
                max_completion_tokens=MAX_OUTPUT_TOKENS,
            )

    def _classify(self, node: str, error: Exception) -> Exception:
        """What a failed call means: to be waited for, to be mended by a person, or not to be asked again."""
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
        """One line. Servers repeat part of the key in their complaints; it is cut out."""
        status = f"HTTP {error.status_code}: " if isinstance(error, openai.APIStatusError) else ""
        line = " ".join(f"{status}{error}".split())
        return self._without_key(line)[:MAX_ERROR_CHARS] or type(error).__name__

    def _without_key(self, text: str) -> str:
        return text.replace(self._key, "[key]")


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _read(completion: object) -> tuple[str, tuple[int, int] | None]:
    """Text and tokens asked and answered, None where the server reports none.

    Servers differ in what they leave out of an empty answer. Raises ValueError for what is no chat completion: the SDK
    passes on whatever a server says.
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
    """The seconds that the server asks to wait, which it gives as a number or a date (RFC 9110, section 10.2.3).

    None if it asks for no wait.
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
