"""The questions of one study to one language model: asked, answered, and always recorded and charged."""

from __future__ import annotations

import email.utils
import json
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import httpx

from experiments_db import BudgetKind, ExperimentStore
from prompts import digest, names
from researcher.errors import LanguageModelRefused, LanguageModelUnavailable, PlannerError
from researcher.planner.conversation.backoff import Backoff
from researcher.planner.conversation.endpoint import (
    MAX_OUTPUT_TOKENS,
    SILENCE_S,
    LanguageModelServer,
    ModelReply,
    refuses_tools,
    status_of,
)
from researcher.planner.conversation.tool_loop import NoUsableAnswer, ToolLoop, as_message, describe_cut
from researcher.planner.language_model.answers import Unusable
from researcher.planner.tools.base import NO_TOOLS, Toolbox
from researcher.record.budget import BudgetLedger

logger = logging.getLogger(__name__)

T = TypeVar("T")

DEADLINE_S = 3600.0
MAX_TURNS = 12
MAX_TOKENS_OF_QUESTION = 500_000
MAX_ERROR_CHARS = 500
# The ratio of English text and code. It estimates tokens before a call, and where a server reports no usage.
CHARS_PER_TOKEN = 3.5

REFUSED = frozenset({401, 403, 404})
"""Statuses of a rejected key or an unknown model, which only a person can fix."""
MAY_PASS = frozenset({402, 408, 409, 425, 429})
"""Statuses below 500 that may pass: no credit, a timeout, a conflict, too early, too many requests."""


class _ToolsRefused(Exception):
    """A server that takes no tools: the conversation begins anew without them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatSettings:
    """The model, its server and the bounds of a question.

    The model may think about one question for `deadline_s`. It may look with tools for `turns` turns, or until the
    question has taken `tokens`. `price` is that of the tokens of prompts and of answers, in US dollars per million.
    """

    model: str
    base_url: str | None
    api_key: str = field(repr=False)
    price: tuple[float, float] | None = None
    deadline_s: float = DEADLINE_S
    silence_s: float = SILENCE_S
    turns: int = MAX_TURNS
    tokens: int = MAX_TOKENS_OF_QUESTION


@dataclass(slots=True)
class _Question(Generic[T]):
    """A question as it is asked: its kind, the check of its answer, its tools, and what it has taken so far."""

    node: str
    parse: Callable[[str], T]
    toolbox: Toolbox
    requests: int = 0
    tokens: int = 0
    usd: float = 0.0
    calls: list[str] = field(default_factory=list[str])


class Chat:
    """The questions of one study to one model."""

    def __init__(
        self,
        settings: ChatSettings,
        *,
        store: ExperimentStore,
        study_id: str,
        ledger: BudgetLedger,
        toolbox: Toolbox = NO_TOOLS,
        backoff: Backoff | None = None,
        carry: Callable[[Callable[[], Any], float], Any] = lambda call, limit_s: call(),
        report: Callable[[str, str], object] = lambda kind, message: None,
    ) -> None:
        """Create a chat.

        `toolbox` has the tools that the model may call. `carry` makes the call
        that it is given and returns its result. It raises TimeoutError after the given number of seconds, and may raise
        any exception that ends the work meanwhile. `report` gets the kind of an event and a line for people.

        Raises PlannerError for an empty model or key, or for a money budget without a price.
        """
        if not settings.model:
            raise PlannerError("no language model is named: give --model")
        if not settings.api_key:
            raise PlannerError("no key for the language model: set OPENAI_API_KEY (any text if the server needs none)")
        if ledger.budget.max_llm_usd is not None and settings.price is None:
            raise PlannerError(
                "--max-llm-usd needs the model's prices: give --llm-price INPUT,OUTPUT in $ per 1M tokens"
            )
        self._settings = settings
        self._model = settings.model
        self._endpoint = LanguageModelServer(settings.model, settings.base_url, settings.api_key, settings.silence_s)
        self._store = store
        self._study_id = study_id
        self._ledger = ledger
        self._toolbox = toolbox
        self._backoff = backoff or Backoff(settings.model)
        self._carry = carry
        self._report = report

    @property
    def name(self) -> str:
        return f"llm:{self._model}"

    def ask(self, node: str, question: str, parse: Callable[[str], T]) -> T:
        """Return the parsed answer to a question of the kind `node`.

        `parse` raises Unusable; the model sees the message before it tries again. Raises LanguageModelUnavailable when
        the waiting for an answer is over, LanguageModelRefused at once if waiting cannot help, and BudgetExceeded
        before a call that could exceed the budget.
        """
        self._backoff.ensure_open()
        asked = _Question(node, parse, self._toolbox)
        while True:
            try:
                answer: T = self._begin(asked).run(question)
            except _ToolsRefused:
                self._toolbox = asked.toolbox = NO_TOOLS
                self._report("llm.no_tools", f"The server of {self._model} takes no tools: it answers without looking.")
            except NoUsableAnswer as failure:
                self._backoff.wait(f"{node}: {failure}", failure.retry_after_s)
            else:
                self._backoff.succeed()
                self._report("llm.answered", self._describe_cost(asked))
                return answer

    def _begin(self, asked: _Question[Any]) -> ToolLoop:
        return ToolLoop(
            send=lambda loop: self._request(asked, loop),
            parse=asked.parse,
            toolbox=asked.toolbox,
            max_turns=self._settings.turns,
            max_tokens=self._settings.tokens,
        )

    def _request(self, asked: _Question[Any], loop: ToolLoop) -> ModelReply:
        """Return the reply to the messages of a conversation, which are sent until there is one.

        What the model has looked at is not lost by an outage. Raises NoUsableAnswer after the question's deadline.
        """
        left_s = self._settings.deadline_s - loop.seconds
        if left_s <= 0:
            raise NoUsableAnswer(f"no answer within {self._settings.deadline_s / 60:g} minutes (--llm-deadline)")
        while True:
            try:
                reply = self._call(asked, loop, left_s)
            except NoUsableAnswer as failure:
                self._backoff.wait(f"{asked.node}: {failure}", failure.retry_after_s)
                continue
            if reply is not None:
                if reply.calls:
                    self._backoff.succeed()
                return reply

    def _call(self, asked: _Question[Any], loop: ToolLoop, limit_s: float) -> ModelReply | None:
        """Make one request and record it; None if the server refused a field that the next request leaves out.

        An answer is recorded with the objection of `parse` to it. Raises NoUsableAnswer if waiting may help,
        _ToolsRefused if the server takes no tools, and ResearchError for good.
        """
        # Imported here, because the SDK takes a second to load.
        from openai import OpenAIError

        expected = math.ceil(len(json.dumps(loop.messages, ensure_ascii=False)) / CHARS_PER_TOKEN)
        self._ledger.ensure_can_call_llm(expected + MAX_OUTPUT_TOKENS, self._cost(expected, MAX_OUTPUT_TOKENS))
        tools = asked.toolbox.as_functions()
        prompt = json.dumps(loop.messages[loop.first_new :], ensure_ascii=False, indent=1)
        asked.requests += 1
        started = time.monotonic()
        try:
            reply: ModelReply = self._carry(
                lambda: self._endpoint.send(loop.messages, tools, may_call=loop.may_call, limit_s=limit_s), limit_s
            )
        # A body that is not JSON, or not a completion, raises ValueError.
        except (OpenAIError, httpx.HTTPError, ValueError, TimeoutError) as error:
            reason, latency = self._describe(error), time.monotonic() - started
            self._record(asked, prompt, None, (0, 0), latency, reason)
            if tools and refuses_tools(error):
                raise _ToolsRefused(reason) from None
            if self._endpoint.learn(error):
                return None
            raise self._classify(asked.node, error) from None
        latency = time.monotonic() - started
        if not loop.may_call:
            reply = replace(reply, calls=())
        answered = json.dumps([reply.text, reply.reasoning, [as_message(call) for call in reply.calls]])
        used = reply.usage or (expected, math.ceil(len(answered) / CHARS_PER_TOKEN))
        asked.calls += [call.name for call in reply.calls]
        objection = None if reply.calls else _objection(reply, asked.parse)
        self._record(asked, prompt, _as_text(reply), used, latency, objection)
        loop.tokens += sum(used)
        loop.seconds += latency
        return reply

    def _classify(self, node: str, error: Exception) -> Exception:
        """Return the error that a failed call means: wait and retry, let a person fix it, or do not ask again."""
        reason = self._describe(error)
        status = status_of(error)
        if status in REFUSED:
            return LanguageModelRefused(
                f"{node}: {self._model} refused: {reason}: set OPENAI_API_KEY, OPENAI_BASE_URL and --model right"
            )
        if status is not None and status < 500 and status not in MAY_PASS:
            return LanguageModelUnavailable(f"{node}: {self._model} refused: {reason}")
        return NoUsableAnswer(f"no answer: {reason}", _retry_after_s(error))

    def _record(
        self,
        asked: _Question[Any],
        prompt: str,
        response: str | None,
        tokens: tuple[int, int],
        latency_s: float,
        error: str | None,
    ) -> None:
        cost = self._cost(*tokens)
        call = self._store.record_llm_call(
            self._study_id,
            node=asked.node,
            model=self._model,
            prompt=self._without_key(prompt),
            response=None if response is None else self._without_key(response),
            input_tokens=tokens[0],
            output_tokens=tokens[1],
            cost_usd=cost,
            latency_s=latency_s,
            attempt=asked.requests,
            error=error,
            prompt_hash=digest(asked.node) if asked.node in names() else None,
        )
        key = f"llm-call-{call.id}"
        self._ledger.charge(BudgetKind.LLM_TOKENS, sum(tokens), key)
        self._ledger.charge(BudgetKind.COST_USD, cost, key)
        asked.tokens += sum(tokens)
        asked.usd += cost
        logger.info("%s: %s answered in %.1f s (%d tokens)", asked.node, self._model, latency_s, tokens[1])

    def _cost(self, input_tokens: int, output_tokens: int) -> float:
        of_input, of_output = self._settings.price or (0.0, 0.0)
        return (of_input * input_tokens + of_output * output_tokens) / 1e6

    def _describe_cost(self, asked: _Question[Any]) -> str:
        looked = f", {len(asked.calls)} tool calls ({', '.join(dict.fromkeys(asked.calls))})" if asked.calls else ""
        cost = "" if self._settings.price is None else f", ${asked.usd:.4f}"
        taken = f"{asked.requests} request(s){looked}: {asked.tokens:,} tokens{cost}"
        return f"{asked.node}: {self._model} answered in {taken}."

    def _describe(self, error: Exception) -> str:
        """Return the error in one line, without the key, because servers repeat part of it in their messages."""
        status = status_of(error)
        line = " ".join(f"{'' if status is None else f'HTTP {status}: '}{error}".split())
        return self._without_key(line)[:MAX_ERROR_CHARS] or type(error).__name__

    def _without_key(self, text: str) -> str:
        return text.replace(self._settings.api_key, "[key]")


def _as_text(reply: ModelReply) -> str:
    """Return a reply for the record: its text, or JSON if there is more to it."""
    if not reply.calls and not reply.reasoning:
        return reply.text
    parts = {
        "reasoning": reply.reasoning,
        "content": reply.text,
        "tool_calls": [as_message(call) for call in reply.calls],
    }
    return json.dumps({name: part for name, part in parts.items() if part}, ensure_ascii=False, indent=1)


def _retry_after_s(error: Exception) -> float | None:
    """Return the seconds that the server asks to wait, or None.

    The header has a number or a date (RFC 9110, section 10.2.3).
    """
    response: httpx.Response | None = getattr(error, "response", None)
    if response is None:
        return None
    value = response.headers.get("retry-after", "").strip()
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except ValueError:
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


def _objection(reply: ModelReply, parse: Callable[[str], object]) -> str | None:
    try:
        parse(reply.text)
    except Unusable as error:
        return f"unusable answer: {error}{describe_cut(reply)}"[:MAX_ERROR_CHARS]
    return None
