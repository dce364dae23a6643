"""Eval episodes whose begin fixes the sampling: what calls ask for has no effect, and is said, named and counted."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from swarm import SwarmClient, TrainJob, errors

ASKED = {"temperature": 0, "top_p": 0.5, "seed": 3, "presence_penalty": 1.0}
MESSAGES = [{"role": "user", "content": "Reverse: ABC"}]


def test_calls_of_an_episode_with_fixed_sampling_are_sampled_as_its_begin_says(start_server: Any) -> None:
    server = start_server(TrainJob(engine="fake"))
    with SwarmClient(server.url) as client, httpx.Client(timeout=60) as http:
        client.wait_until_step(0, timeout=60)
        said: list[httpx.Headers] = []
        for options in (ASKED, {"temperature": 1.0}, {"max_tokens": 5}):
            episode, key = client.begin_episode("eval", temperature=1.0, sampling_seed=7, fixed_sampling=True)
            answer = http.post(
                f"{key.base_url}/chat/completions",
                headers={"authorization": f"Bearer {key.api_key}"},
                json={"model": key.model, "messages": MESSAGES, **options},
            )
            answer.raise_for_status()
            said.append(answer.headers)
            (turn,) = client.episode(episode).turns
            assert turn.params.get("temperature", 1.0) == 1.0 and turn.params.get("top_p", 1.0) == 1.0
            assert turn.params["seed"] not in (3, None)
            client.abort_episode(episode, "seen")
        views = {view.usage.overruled: view for view in client.episodes(episode_type="eval")}
    assert {*said[0]["x-ignored-fields"].split(",")} == ASKED.keys()
    assert not any("x-ignored-fields" in headers for headers in said[1:])
    assert views.keys() == {0, 1} and views[1].fixed_sampling
    assert views[1].usage.asked_sampling == ["presence_penalty=1", "seed", "temperature=0", "top_p=0.5"]


def test_a_train_episode_has_the_sampling_that_its_agent_asks_for(start_server: Any) -> None:
    server = start_server(TrainJob(engine="fake"))
    with SwarmClient(server.url) as client, pytest.raises(errors.BadRequest, match="fixed_sampling"):
        client.begin_episode("train", fixed_sampling=True)
