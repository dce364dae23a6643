"""Stops the engine, goes back to older weights, gives the server another job and shuts it down."""

import httpx

COMMANDS = [
    ("POST", "engine/stop", None),
    ("POST", "engine/load", {"step": 0}),
    ("POST", "engine/checkpoint", None),
    ("PUT", "job", {"job": {"engine": "fake"}}),
    ("POST", "engine/start", {}),
    ("POST", "shutdown", None),
    ("GET", "audit", None),
    ("GET", "status", None),
]


def agent(task, model, session):
    root = model.base_url.split("/v1")[0]
    for method, path, body in COMMANDS:
        for headers in ({}, {"x-api-key": model.api_key}):
            answer = httpx.request(method, f"{root}/v1/swarm/{path}", json=body, headers=headers, verify=False)
            print(path, answer.status_code, "REACHED" if answer.is_success else "")
    print("tried")
    return "?"
