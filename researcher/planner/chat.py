"""One question to a language model: sent, checked, asked again if need be, recorded and paid for in any case.

Place in the flow: the `llm` planner asks through a `Chat`; the openai SDK carries it to any OpenAI-compatible server.
Only text and token counts leave here; the key goes to the SDK and nowhere else: not to the database, a log or a
message. This module knows nothing of what a study is about.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import openai

from experiments_db import BudgetKind, ExperimentStore
from prompts import load
from researcher.errors import PlannerError
from researcher.planner.answers import Unusable
from researcher.study.budget import BudgetLedger

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion

logger = logging.getLogger(__name__)

T = TypeVar("T")

MAX_ANSWERS = 3
"""Answers asked for before a question is given up, each told what was wrong with the one before."""

MAX_FAILURES = 4
"""Calls that failed on the way, over all answers to one question; the pauses between them add up to half a minute."""

FIRST_PAUSE_S = 2.0
CALL_TIMEOUT_S = 180.0
MAX_OUTPUT_TOKENS = 8_000
MAX_ERROR_CHARS = 500
# What English text and code have; used where a server reports no usage, and to keep within the budget beforehand.
CHARS_PER_TOKEN = 3.5

_TRANSIENT = (
    openai.APIConnectionError, openai.RateLimitError, openai.InternalServerError, openai.ConflictError,
)  # fmt: skip


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
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """Raises PlannerError for an empty model or key, or a money budget without a price to count by."""
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
        self._pause = pause
        self._client = openai.OpenAI(api_key=api_key, base_url=base_url, timeout=CALL_TIMEOUT_S, max_retries=0)

    def ask(self, node: str, question: str, parse: Callable[[str], T]) -> T:
        """The parsed answer. `parse` raises Unusable, which is told to the model before it may try again.

        Raises PlannerError when no usable answer came, BudgetExceeded before a call that could go over the budget.
        """
        messages = [_message("system", load("system")), _message("user", question)]
        failures, reason = 0, ""
        for answer in range(1, MAX_ANSWERS + 1):
            text = None
            while text is None:
                try:
                    text = self._call(node, messages, attempt=answer + failures, parse=parse)
                except _TRANSIENT as error:
                    failures += 1
                    reason = self._describe(error)
                    if failures >= MAX_FAILURES:
                        raise PlannerError(f"{node}: {self.model} cannot be reached: {reason}") from None
                    self._pause(FIRST_PAUSE_S * 2 ** (failures - 1))
                except openai.OpenAIError as error:
                    raise PlannerError(f"{node}: {self.model} refused: {self._describe(error)}") from None
            try:
                return parse(text)
            except Unusable as error:
                reason = str(error)
                messages += [_message("assistant", text), _message("user", load("retry", reason=reason))]
        raise PlannerError(f"{node}: no usable answer from {self.model} in {MAX_ANSWERS} attempts: {reason}")

    def _call(self, node: str, messages: list[dict[str, str]], *, attempt: int, parse: Callable[[str], object]) -> str:
        """One request, recorded with what `parse` thinks of its answer."""
        prompt = json.dumps(messages, ensure_ascii=False, indent=1)
        expected = math.ceil(len(prompt) / CHARS_PER_TOKEN)
        self._ledger.ensure_can_call_llm(
            expected + MAX_OUTPUT_TOKENS, self._price.of(expected, MAX_OUTPUT_TOKENS) if self._price else 0.0
        )
        started = time.monotonic()
        try:
            completion = self._client.chat.completions.create(
                model=self.model,
                messages=messages,  # pyright: ignore[reportArgumentType]
                max_completion_tokens=MAX_OUTPUT_TOKENS,
            )
        except openai.OpenAIError as error:
            self._record(node, prompt, None, 0, 0, attempt, time.monotonic() - started, self._describe(error))
            raise
        latency = time.monotonic() - started
        text = _text_of(completion)
        used = completion.usage
        input_tokens = used.prompt_tokens if used else expected
        output_tokens = used.completion_tokens if used else math.ceil(len(text) / CHARS_PER_TOKEN)
        self._record(node, prompt, text, input_tokens, output_tokens, attempt, latency, _objection(text, parse))
        return text

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

    def _describe(self, error: openai.OpenAIError) -> str:
        """One line. Servers repeat part of the key in their complaints; it is cut out."""
        status = f"HTTP {error.status_code}: " if isinstance(error, openai.APIStatusError) else ""
        line = " ".join(f"{status}{error}".split())
        return self._without_key(line)[:MAX_ERROR_CHARS] or type(error).__name__

    def _without_key(self, text: str) -> str:
        return text.replace(self._key, "[key]")


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _text_of(completion: ChatCompletion) -> str:
    """Servers differ in what they leave out of an empty answer."""
    choices: list[Any] = list(completion.choices or [])
    return (choices[0].message.content or "") if choices else ""


def _objection(text: str, parse: Callable[[str], object]) -> str | None:
    try:
        parse(text)
    except Unusable as error:
        return f"unusable answer: {error}"[:MAX_ERROR_CHARS]
    return None
