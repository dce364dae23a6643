"""A small server of OpenAI's completions route whose answers have token ids. Usage: MODEL_DIRECTORY HOST PORT."""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import sys
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from swarm.backends.grammar import GrammarCompiler
from swarm.model_path import read_tokenizer
from swarm.types import Grammar, GrammarKind

CONTEXT_LENGTH = 2048
VOCABULARY = 384
LETTERS = range(40, 60)
TOKEN_DELAY_S = 0.003


class Model:
    def __init__(self, directory: Path) -> None:
        self.version = 0
        self.unpaused = asyncio.Event()
        self.unpaused.set()
        self._grammars = GrammarCompiler(read_tokenizer(directory), VOCABULARY, ())

    async def complete(self, body: dict[str, Any]) -> AsyncGenerator[str]:
        sequence, ends = list(body["prompt"]), body["stop_token_ids"]
        source = random.Random(body["seed"])
        kind, text = body["grammar"] or (None, "")
        constraint = self._grammars.start(Grammar(GrammarKind(kind), text), ()) if kind else None
        for count in range(1, body["max_tokens"] + 1):
            await asyncio.sleep(TOKEN_DELAY_S)
            await self.unpaused.wait()
            allowed = LETTERS if constraint is None else _ids(constraint.allowed())
            token, logprob = self._draw(sequence, allowed, body["temperature"], source)
            sequence.append(token)
            if constraint is not None:
                constraint.take(token)
            is_over = token in ends or (constraint is not None and constraint.is_over)
            finish = "stop" if is_over else "length" if count == body["max_tokens"] else None
            logprobs = {"token_logprobs": [logprob], "top_logprobs": [{f"token_id:{token}": logprob}]}
            choice = {"token_ids": [token], "finish_reason": finish, "logprobs": logprobs}
            yield f"data: {json.dumps({'choices': [choice]})}\n\n"
            if finish:
                break
        yield "data: [DONE]\n\n"

    def _draw(
        self, sequence: Sequence[int], allowed: Sequence[int], temperature: float, source: random.Random
    ) -> tuple[int, float]:
        shift = sum(sequence[-2:]) + 5 * self.version
        weights = [math.exp((7 * token + shift) % 11 / (4 * (temperature or 1.0))) for token in allowed]
        best = max(range(len(allowed)), key=weights.__getitem__)
        place = best if temperature == 0 else source.choices(range(len(allowed)), weights)[0]
        return allowed[place], math.log(weights[place] / sum(weights))


def _ids(words: Any) -> list[int]:
    """Return the tokens whose bits are set."""
    return [each for each in range(VOCABULARY) if words[each // 32] >> each % 32 & 1]


class Routes:
    def __init__(self, model: Model) -> None:
        self._model = model

    async def health(self, request: Request) -> Response:
        return JSONResponse({})

    async def models(self, request: Request) -> Response:
        return JSONResponse({"data": [{"id": "policy", "max_model_len": CONTEXT_LENGTH}]})

    async def completions(self, request: Request) -> Response:
        return StreamingResponse(self._model.complete(await request.json()), media_type="text/event-stream")

    async def pause(self, request: Request) -> Response:
        self._model.unpaused.clear()
        return JSONResponse({})

    async def resume(self, request: Request) -> Response:
        self._model.unpaused.set()
        return JSONResponse({})

    async def weights(self, request: Request) -> Response:
        path = Path((await request.json())["path"])
        self._model.version = 0 if path.is_dir() else int(path.name[1:9])
        return JSONResponse({})


class RequireKey:
    """ASGI middleware that refuses requests without the key."""

    def __init__(self, app: Any, key: str) -> None:
        self._app = app
        self._expected = f"Bearer {key}".encode()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and dict(scope["headers"]).get(b"authorization") != self._expected:
            await JSONResponse({"error": {"message": "no such key"}}, 401)(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def main(directory: str, host: str, port: str) -> None:
    routes = Routes(Model(Path(directory)))
    read = [Route("/health", routes.health), Route("/v1/models", routes.models)]
    done = {
        "/v1/completions": routes.completions,
        "/pause": routes.pause,
        "/resume": routes.resume,
        "/weights": routes.weights,
    }
    application = Starlette(routes=[*read, *(Route(path, done[path], methods=["POST"]) for path in done)])
    uvicorn.run(
        RequireKey(application, os.environ["OPENAI_API_KEY"]),
        host=host,
        port=int(port),
        log_level="warning",
        timeout_graceful_shutdown=1,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
