"""Reads and ends episodes of others, by their ids and by the path that stands for a key."""

import httpx

OTHER = FACTS["episode"]


def agent(task, model, session):
    root = model.base_url.split("/v1")[0]
    headers = {"Authorization": f"Bearer {model.api_key}"}
    body = {"model": "x", "messages": [{"role": "user", "content": "hello"}]}
    attempts = [
        ("GET", f"/v1/swarm/episodes/{OTHER}", None),
        ("GET", f"/v1/swarm/episodes/{OTHER}/samples", None),
        ("GET", "/v1/swarm/episodes", None),
        ("POST", f"/e/{OTHER}/v1/swarm/episodes/{OTHER}/end", {"task_id": "x", "reward": 1.0}),
        ("POST", f"/v1/swarm/episodes/{OTHER}/end", {"task_id": "x", "reward": 1.0}),
        ("POST", f"/e/{OTHER}/v1/chat/completions", body),
        ("POST", f"/e/{OTHER[:-1]}/v1/chat/completions", body),
    ]
    for method, path, document in attempts:
        answer = httpx.request(method, root + path, json=document, headers=headers, verify=False)
        print(path, answer.status_code, "REACHED" if answer.is_success else "")
    print("tried")
    return "?"
