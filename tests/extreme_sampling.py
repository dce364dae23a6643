"""Sampling fields for every route of the model, with values at the ends of what their types hold, and beyond."""

from __future__ import annotations

from random import Random
from typing import Any

from model_bodies import FLAT_TOOL, MINIMAL, OWN_TOOL, TOOL

INF, NAN = float("inf"), float("nan")
EXTREMES: list[Any] = [
    0, -0.0, 5e-324, 1e-320, 1e-45, 1e-39, 1.2e-38, 1e-9, 0.5, 1, 10, 3.5e38, 1e308, INF, -INF, NAN, -1, -1e-39, -1e308,
    10**400, -(10**400), 2**31 - 1, 2**31, 2**63 - 1, 2**63, -(2**63) - 1, True, "1", None, [], {},
]  # fmt: skip
TINY = [5e-324, 1e-320, 1e-300, 1e-45, 1e-39, 1.2e-38, 1e-30, 1e-9, 0.0099, 0.01]
HONOURED = [0.01, 0.01, 0.010000001, 1, 1 - 1e-16, 1 + 1e-16, 2]
PENALTIES = [*TINY, -2, 2, -1e-39, 0, -0.0]
TOKENS = [0, 1, 2, 5, 300, 383, 384, 10**6, 2**31 - 1, 2**31, 2**32 + 1]
BIASES: list[Any] = [*TINY, -100, 100, -100, 100, 101, INF, -INF, NAN, 1e308, 10**400, "1", None]
STRUCTURES: list[Any] = [
    {"regex": r"[^\s\S]"}, {"regex": "a{3}"}, {"regex": "\U0001f642+"}, {"choice": ["\x00"]}, {"choice": [""]},
    {"choice": []}, {"json": {"enum": []}}, {"json": {"type": "integer", "minimum": 2, "maximum": 1}}, {"regex": ""},
    {"json": {"const": "\ud7ff"}}, {"grammar": 'start: "a" start'}, {"grammar": "start: <[5]>"}, {"json": False},
    {"grammar": "start: <[99999]>"}, {"json_object": True}, {"json": {"type": "string", "maxLength": 0}},
    {"regex": "(a|b){1,9}"}, {"regex": "a", "choice": ["a"]},
]  # fmt: skip
STOPS: list[Any] = ["", "a", ["\x00"], ["a"] * 17, "\ud83d", ["x" * 1001], "e\u0301", [["a"]], ["7", "A", "<|im_end|>"]]
EDGES: dict[str, list[Any]] = {
    "temperature": [*TINY, *HONOURED, *HONOURED],
    "top_p": [*TINY, 1 - 1e-16, 1],
    "top_k": [-1, 0, 1, 383, 384, 385, 2**31 - 1],
    "min_p": [*TINY, 0, 1 - 1e-16, 1],
    "presence_penalty": PENALTIES,
    "frequency_penalty": PENALTIES,
    "repetition_penalty": [*TINY, *HONOURED, *HONOURED, 10],
    "seed": [0, -1, 2**63 - 1, -(2**63), 2**64],
    "n": [1, 2, 128],
    "best_of": [1, 2],
    "logprobs": [True, False, 0, 5],
    "top_logprobs": [0, 20],
    "max_tokens": [1, 2, 3, 4],
    "max_completion_tokens": [1, 2],
    "max_output_tokens": [1, 2, 3],
    "min_tokens": [0, 1, 3, 2**31 - 1],
    "ignore_eos": [True, False],
    "stop": STOPS,
    "stop_sequences": STOPS,
    "structured_outputs": STRUCTURES,
    "response_format": [
        {"type": "json_object"}, {"type": "json_schema", "json_schema": {"schema": {"enum": []}}}, {"type": "text"},
    ],
    "text": [{"format": {"type": "json_schema", "name": "x", "schema": {"enum": []}}}],
    "include": [["message.output_text.logprobs"]],
    "tools": [[TOOL], [FLAT_TOOL], [OWN_TOOL], []],
    "tool_choice": ["required", "none", "auto", {"type": "any"}, {"type": "tool", "name": "f"}],
    "tokens": [[token] for token in TOKENS] + [[0] * 5000, []],
    "prompt": [[token] for token in TOKENS] + ["x", "", [0] * 2047, [0] * 2048],
}  # fmt: skip
"""By field: values that are honoured, or nearly."""
REFUSED: dict[str, list[Any]] = {
    "temperature": [1e-39, 5e-324, 0.0099, 1e308, INF, NAN, -1e-39, 10**400],
    "top_p": [0, -1e-300, 1e308, NAN],
    "min_p": [-1e-39, 1.1, INF],
    "top_k": [-2, 2**31, 1.5],
    "repetition_penalty": [0, 1e-39, 5e-324, 1e-9, 1e39, NAN],
    "presence_penalty": [1e39, -1e39, INF],
    "frequency_penalty": [1e39, -1e39, NAN],
    "logit_bias": [{"5": 1e39}, {"5": INF}, {"5": NAN}, {"384": 1}, {"-1": 1}, {"5": 10**400}],
    "stop_token_ids": [[384], [2**31], [-1]],
    "seed": [2**63, -(2**63) - 1],
    "n": [0, -1, 129, 2**64],
    "max_tokens": [0, -1, 2**31, 1e308],
    "logprobs": [-1, 1e39],
    "stop": ["", ["a"] * 17],
    "structured_outputs": [{"regex": r"[^\s\S]"}, {"choice": []}, {"json": {"enum": []}}],
}
"""By field: values that no engine can honour."""
HARD: list[dict[str, Any]] = [
    {"temperature": 0.01, "repetition_penalty": 0.01, "logit_bias": {"5": 100, "6": -100}, "presence_penalty": -2},
    {"temperature": 0.01, "top_p": 1e-300, "min_p": 5e-324, "top_k": 2**31 - 1, "logit_bias": {"5": -100}},
    {"temperature": 0, "repetition_penalty": 0.01, "min_tokens": 4, "stop_token_ids": list(range(128)), "seed": -1},
    {"temperature": 2, "repetition_penalty": 10, "frequency_penalty": 2, "ignore_eos": True, "n": 3, "min_p": 1},
    {"temperature": 0.01, "logit_bias": {"5": 100}, "structured_outputs": {"regex": "A{3}"}, "top_p": 5e-324},
]
"""Sampling that every engine can honour, if barely."""
OFTEN = ["temperature", "repetition_penalty", "logit_bias", "min_tokens", "stop_token_ids"]
ONLY: dict[str, set[str]] = {
    "/v1/messages": {"temperature", "top_p", "top_k", "stop_sequences", "tools", "tool_choice", "max_tokens"},
    "/v1/messages/count_tokens": {"tools", "tool_choice"},
    "/tokenize": {"prompt", "tools"},
    "/detokenize": {"tokens"},
}
APART = {"prompt": {"/v1/completions", "/tokenize"}, "tokens": {"/detokenize"}, "text": {"/v1/responses"},
         "include": {"/v1/responses"}}  # fmt: skip
SAMPLED = ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"]


def value_of(name: str, random: Random) -> Any:
    if random.random() < 0.1:
        return random.choice(EXTREMES)
    if name == "logit_bias":
        return {str(random.choice(TOKENS[:7])): random.choice(BIASES) for _ in range(random.choice([1, 1, 2, 5]))}
    if name == "stop_token_ids":
        return [random.choice(TOKENS[:9]) for _ in range(random.choice([1, 2, 128]))]
    return random.choice(EDGES[name])


def extreme_body(random: Random) -> tuple[str, dict[str, Any]]:
    """A route of the model, and a body for it with one to six extreme fields."""
    route = random.choice(SAMPLED * 4 + sorted(MINIMAL))
    body = {**MINIMAL[route], **({"max_tokens": 3} if route == "/v1/messages" else {})}
    known = ONLY.get(route, {*EDGES, "logit_bias", "stop_token_ids"})
    known = {name for name in known if route in APART.get(name, {route})}
    often = [name for name in OFTEN if name in known]
    names = {random.choice(sorted(known)) for _ in range(random.choice([0, 1, 2, 4]))}
    names |= {random.choice(often)} if often else set()
    return route, body | {name: value_of(name, random) for name in sorted(names)}
