"""One episode on two servers, from a program that stops after every call and waits for a line on stdin to go on."""

from __future__ import annotations

import json
import sys

import httpx

from swarm import ConnectionStack, SwarmClient, SwarmError, SwarmTeam, Task, WorkflowOutput

PHASES = ("begin", "prepare", "commit")


class StoppingTransport(httpx.BaseTransport):
    """Says which call was answered, as `prepare b`, and waits."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._inner = ConnectionStack()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response = self._inner.handle_request(request)
        phase = request.url.path.rpartition("/")[2]
        if phase in PHASES and response.is_success:
            response.read()
            say(f"{phase} {self._name}")
            sys.stdin.readline()
        return response

    def close(self) -> None:
        self._inner.close()


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    task = Task("Hello", sys.argv[1])
    clients = {
        name: SwarmClient(url, client_id="team", transport=StoppingTransport(name), timeout=10)
        for name, url in zip("ab", sys.argv[2:], strict=True)
    }
    team = SwarmTeam(clients)
    try:
        with httpx.Client(timeout=20) as http, team.open_episodes(task, lease_s=1) as episodes:
            for name, key in episodes.credentials.items():
                reply = http.post(
                    f"{key.base_url}/chat/completions",
                    headers={"authorization": f"Bearer {key.api_key}"},
                    json={"model": "default", "messages": [{"role": "user", "content": "Hello"}]},
                )
                reply.raise_for_status()
                episodes.outputs[name] = WorkflowOutput(reward=1.0)
        say(json.dumps({name: receipt.state for name, receipt in episodes.receipts.items()}))
    except SwarmError as error:
        say(json.dumps({"error": f"{type(error).__name__}: {error}"}))


if __name__ == "__main__":
    main()
