"""Answers as the worker of verifiers does, without the library: what goes wrong there can be had here at will.

Tests name it as the interpreter that has verifiers. Options of the taskset say what it does:

    count, split_values, is_endless     its tasks; with `overlap` both of its own splits have the first one
    reward                              of every rollout; without it the model is called and 0.5 is paid
    together                            rollouts that it waits for before it answers any
    begun                               a pipe that it writes to when it is asked for a rollout
    die                                 a path: it is killed at its first rollouts, and leaves a file there
    fail                                the status of a model call that failed
    open                                library, unknown, options: the error it opens with; exit: it ends instead;
                                        noise: it says something else
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import urllib.request
from pathlib import Path
from typing import Any

QUESTION = "Say the number {}."


def main() -> None:
    settings: dict[str, Any] = {}
    waiting: list[dict[str, Any]] = []
    for line in sys.stdin:
        request = json.loads(line)
        parameters = request["parameters"]
        if request["method"] == "open":
            settings = parameters["settings"].get("taskset", {})
            opened = open_with(settings)
            send(request["number"], opened)
        elif request["method"] == "tasks":
            send(request["number"], {"result": page(settings, **parameters)})
        else:
            waiting.append(request)
            if "begun" in settings:
                Path(settings["begun"]).write_text("begun", encoding="utf-8")
            if len(waiting) >= settings.get("together", 1):
                finish(settings, waiting)
                waiting.clear()


def send(number: int, said: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"number": number, **said}) + "\n")
    sys.stdout.flush()


def open_with(settings: dict[str, Any]) -> dict[str, Any]:
    kind = settings.get("open")
    if kind == "exit":
        sys.stderr.write("ImportError: a library is broken\n")
        sys.exit(3)
    if kind == "noise":
        sys.stdout.write("hello, this is no answer\n")
        sys.stdout.flush()
    if kind is not None:
        return {"error": {"kind": kind, "message": f"the {kind} is\nwrong"}}
    return {
        "result": {
            "versions": {"verifiers": "0.4.0", "package": str(settings.get("version", "1"))},
            "sources": [],
            "split_values": settings.get("split_values", []),
            "is_endless": settings.get("is_endless", False),
            "description": "Numbers to be said.",
        }
    }


def page(settings: dict[str, Any], source: str | None, start: int, size: int) -> dict[str, Any]:
    count = 10**9 if settings.get("is_endless") else settings.get("count", 60)
    numbers = range(start, min(count, start + size))
    shift = 0 if source is None or settings.get("overlap") else 10**6 * settings["split_values"].index(source)
    return {"tasks": [task(number + shift) for number in numbers], "is_last": len(numbers) < size}


def task(number: int) -> dict[str, Any]:
    question = QUESTION.format(number)
    digest = hashlib.sha256(question.encode()).hexdigest()
    return {"key": digest, "content": digest, "prompt": question}


def finish(settings: dict[str, Any], requests: list[dict[str, Any]]) -> None:
    if (left := settings.get("die")) and not Path(left).exists():
        Path(left).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    for request in requests:
        asked = request["parameters"]
        if status := settings.get("fail"):
            send(request["number"], {"error": {"kind": "failed", "message": "ProviderError: no", "status": status}})
            continue
        question = task(asked["number"])["prompt"]
        reply = "1" if "reward" in settings else ask_model(asked, question)
        transcript = [{"role": "user", "content": question}, {"role": "assistant", "content": reply}]
        reward = {"nan": float("nan")}.get(settings.get("reward", 0.5), settings.get("reward", 0.5))
        result = {"reward": reward, "rewards": {"said": reward}, "metrics": {}, "transcript": transcript}
        send(request["number"], {"result": result})


def ask_model(asked: dict[str, Any], question: str) -> str:
    body = {
        "model": asked["model"],
        "messages": [{"role": "user", "content": question}],
        "max_tokens": asked["max_tokens"],
    }
    headers = {"Authorization": f"Bearer {asked['api_key']}", "Content-Type": "application/json"}
    call = urllib.request.Request(f"{asked['base_url']}/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(call) as answered:
        return json.load(answered)["choices"][0]["message"]["content"]


if __name__ == "__main__":
    main()
