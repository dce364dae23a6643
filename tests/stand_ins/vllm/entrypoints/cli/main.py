"""Stands where vLLM's command line stands: speaks the part of its HTTP API that replicas use, without a model.

Tokens follow from the sequence so far and from the weights, so a completion that goes on elsewhere shows every mistake.
Two files say how it behaves: STAND_IN_FAULTS, read anew at every turn, maps a port, or "all", to faults; what was asked
is appended to STAND_IN_JOURNAL.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import uvicorn

VOCABULARY = 384
FOREVER_S = 3600.0

Query = dict[str, str]


def next_token(sequence: Sequence[int], weights: int) -> int:
    return 40 + (3 * len(sequence) + sum(sequence[-2:]) + 5 * weights) % 20


def logprob_of(token_id: int) -> float:
    return -0.125 * (token_id % 8)


class StandIn:
    def __init__(self, options: argparse.Namespace) -> None:
        self.port = options.port
        self.context_length = options.max_model_len or 2048
        self.weights = 0
        self.pending = 0
        self.unpaused = asyncio.Event()
        self.unpaused.set()

    def fault(self, name: str) -> Any:
        faults = json.loads(Path(os.environ["STAND_IN_FAULTS"]).read_text())
        return {**faults.get("all", {}), **faults.get(str(self.port), {})}.get(name)

    def note(self, what: str, **details: Any) -> None:
        line = json.dumps({"port": self.port, "what": what, **details})
        with Path(os.environ["STAND_IN_JOURNAL"]).open("a") as journal:
            journal.write(line + "\n")

    async def complete(self, body: dict[str, Any]) -> AsyncGenerator[str]:
        sequence, count, finish = list(body["prompt"]), 0, None
        try:
            while finish is None:
                await asyncio.sleep(self.fault("token_delay_s") or 0)
                await self.unpaused.wait()
                if self.fault("core_hangs"):
                    await asyncio.sleep(FOREVER_S)
                if count == self.fault("breaks_after"):
                    yield "data: " + json.dumps({"error": {"message": "told to break", "code": 500}}) + "\n\n"
                    return
                token = next_token(sequence, self.weights)
                sequence.append(token)
                count += 1
                is_end = token in body["stop_token_ids"] and count > body["min_tokens"]
                finish = "stop" if is_end else "length" if count == body["max_tokens"] else None
                yield "data: " + json.dumps({"choices": [self.choice(token, finish, body)]}) + "\n\n"
                if count == self.fault("dies_after"):
                    os.kill(os.getpid(), signal.SIGKILL)
            yield "data: [DONE]\n\n"
        finally:
            self.note("completed" if finish else "aborted", request_id=body["request_id"], tokens=count)

    def choice(self, token: int, finish: str | None, body: dict[str, Any]) -> dict[str, Any]:
        is_overflow = self.fault("overflows") and body["temperature"] != 1
        value = None if self.fault("not_finite") or is_overflow else logprob_of(token)
        top = {f"token_id:{token}": value, f"token_id:{token - 1}": -2.0, f"token_id:{token + 1}": -9999.0}
        return {
            "token_ids": [token],
            "finish_reason": finish,
            "logprobs": {"token_logprobs": [value], "top_logprobs": [top]},
        }


class Routes:
    """Methods named as their paths: from the query and the body to the answer, and its status where that is not 200."""

    def __init__(self, stand_in: StandIn) -> None:
        self._stand_in = stand_in

    async def health(self, query: Query, body: Any) -> Any:
        return (503 if self._stand_in.fault("is_dead") else 200), ""

    async def completions(self, query: Query, body: Any) -> Any:
        self._stand_in.note("asked", body=body, **{name: body[name] for name in ("prompt", "max_tokens")})
        if self._stand_in.fault("refuses_requests"):
            return 400, {"error": {"message": "grammar error", "code": 400}}
        return self._stand_in.complete(body)

    async def is_paused(self, query: Query, body: Any) -> Any:
        return {"is_paused": not self._stand_in.unpaused.is_set()}

    async def models(self, query: Query, body: Any) -> Any:
        return {"data": [{"id": "policy", "max_model_len": self._stand_in.context_length}]}

    async def pause(self, query: Query, body: Any) -> Any:
        self._stand_in.unpaused.clear()
        return {"status": "paused"}

    async def resume(self, query: Query, body: Any) -> Any:
        self._stand_in.unpaused.set()
        return {"status": "resumed"}

    async def start_weight_update(self, query: Query, body: Any) -> Any:
        return {}

    async def update_weights(self, query: Query, body: Any) -> Any:
        info = body["update_info"]
        if "path" in info:
            path = Path(info["path"])
            self._stand_in.pending = _number_of(path)
        else:
            self._stand_in.pending = len(info["names"])
        return {}

    async def finish_weight_update(self, query: Query, body: Any) -> Any:
        self._stand_in.weights = self._stand_in.pending
        self._stand_in.note("version", version=body["weight_version"])
        return {}

    async def init_weight_transfer_engine(self, query: Query, body: Any) -> Any:
        self._stand_in.note("joined", **body["init_info"])
        return {}

    async def reset_prefix_cache(self, query: Query, body: Any) -> Any:
        return {"success": True}

    async def sleep(self, query: Query, body: Any) -> Any:
        return {}

    async def wake_up(self, query: Query, body: Any) -> Any:
        return {}


def _number_of(path: Path) -> int:
    """What stands for the weights in a file: its text, or the version that a file of real weights is named by."""
    if path.is_dir():
        return 0
    return int(path.name[1:9]) if path.suffix == ".safetensors" else int(path.read_text())


READ = ("/health", "/is_paused", "/v1/models", "/openapi.json")
DONE = (
    "/v1/completions", "/pause", "/resume", "/start_weight_update", "/update_weights", "/finish_weight_update",
    "/init_weight_transfer_engine", "/reset_prefix_cache", "/sleep", "/wake_up",
)  # fmt: skip


class Application:
    """ASGI."""

    def __init__(self, stand_in: StandIn) -> None:
        self._stand_in = stand_in
        self._routes = Routes(stand_in)
        self._paths = {path for path in (*READ, *DONE) if path not in (stand_in.fault("lacks") or ())}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            while (await receive())["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})
            await send({"type": "lifespan.shutdown.complete"})
            return
        content = b""
        while (message := await receive()).get("more_body"):
            content += message["body"]
        content += message["body"]
        query = {name: values[0] for name, values in parse_qs(scope["query_string"].decode()).items()}
        status, answer = await self._answer(scope["path"], query, json.loads(content) if content else None)
        if isinstance(answer, AsyncGenerator):
            await self._stream(answer, receive, send)
        else:
            await send({"type": "http.response.start", "status": status, "headers": []})
            await send({"type": "http.response.body", "body": answer.encode()})

    async def _answer(self, path: str, query: Query, body: Any) -> tuple[int, Any]:
        stand_in = self._stand_in
        if path not in self._paths:
            return 404, "{}"
        if path not in READ:
            stand_in.note(path, query=query)
        if stand_in.fault("hangs") or path in (stand_in.fault("hangs_at") or ()):
            await asyncio.sleep(FOREVER_S)
        await asyncio.sleep((stand_in.fault("late_s") or {}).get(path, 0))
        if path == stand_in.fault("dies_at"):
            os.kill(os.getpid(), signal.SIGKILL)
        if path == stand_in.fault("refuses"):
            return 500, json.dumps({"error": {"message": "told to refuse", "code": 500}})
        if path == "/openapi.json":
            return 200, json.dumps({"paths": {path: _described(path) for path in self._paths}})
        handler = getattr(self._routes, path.rsplit("/", 1)[-1])
        answer = await handler(query, body)
        status = 200
        if isinstance(answer, tuple):
            status, answer = answer
        return status, json.dumps(answer) if isinstance(answer, dict) else answer

    async def _stream(self, events: AsyncGenerator[str], receive: Any, send: Any) -> None:
        async def write() -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            async for event in events:
                await send({"type": "http.response.body", "body": event.encode(), "more_body": True})
            await send({"type": "http.response.body", "body": b""})

        writing, leaving = asyncio.create_task(write()), asyncio.create_task(receive())
        await asyncio.wait({writing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        writing.cancel()
        leaving.cancel()
        await asyncio.gather(writing, leaving, return_exceptions=True)
        await events.aclose()


def _described(path: str) -> dict[str, Any]:
    parameters = [{"name": "reset_running_requests"}] if path == "/reset_prefix_cache" else []
    return {"post" if path in DONE else "get": {"parameters": parameters}}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("command")
    parser.add_argument("model")
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parser.add_argument("--max-model-len", type=int)
    parser.add_argument("--middleware")
    parser.add_argument("--seed", type=int)
    for name in (
        "served-model-name", "dtype", "max-num-seqs", "tensor-parallel-size", "generation-config", "logprobs-mode",
        "max-logprobs", "structured-outputs-config", "weight-transfer-config", "worker-extension-cls",
    ):  # fmt: skip
        parser.add_argument(f"--{name}", required=True)
    for name in ("disable-uvicorn-access-log", "enforce-eager", "enable-sleep-mode"):
        parser.add_argument(f"--{name}", action="store_true")
    options = parser.parse_args()
    stand_in = StandIn(options)
    stand_in.note("started", seed=options.seed, pid=os.getpid(), devices=os.environ.get("CUDA_VISIBLE_DEVICES"))
    # Something else that must not outlive the replica.
    child = os.fork()
    if child == 0:
        signal.pause()
        os._exit(0)
    stand_in.note("forked", pid=child)
    if message := stand_in.fault("fails_at_start"):
        sys.stderr.write(f"ValueError: {message}\n")
        os._exit(1)
    if stand_in.fault("killed_at_start"):
        os.kill(os.getpid(), signal.SIGKILL)
    module, name = options.middleware.rsplit(".", 1)
    middleware = getattr(importlib.import_module(module), name)
    uvicorn.run(
        middleware(Application(stand_in)),
        host=options.host,
        port=options.port,
        log_level="warning",
        timeout_graceful_shutdown=1,
    )


if __name__ == "__main__":
    main()
