"""An episode can be named by its path: its key opens there what it opens in a header, and is shown to nobody."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from tests_support import begin, wait_for_state

from swarm import SwarmClient
from swarm.job import TrainJob

TOKEN = "commander-0123456789"


@dataclass(frozen=True)
class Keyed:
    """A running episode on a server that asks for a token. `http` sends none."""

    http: httpx.Client
    episode: dict[str, Any]

    @property
    def key(self) -> str:
        return self.episode["api_key"]


@pytest.fixture(scope="module")
def url(start_shared_server: Any) -> str:
    return start_shared_server(TrainJob(engine="fake", batch_size=1000), token=TOKEN).url


@pytest.fixture
def keyed(url: str) -> Iterator[Keyed]:
    headers = {"authorization": f"Bearer {TOKEN}"}
    with httpx.Client(base_url=url, timeout=60, headers=headers) as commander:
        wait_for_state(commander, "ROLLING")
        episode = begin(commander)
    with httpx.Client(base_url=url, timeout=60) as http:
        yield Keyed(http, episode)


def test_the_path_opens_the_model_routes(keyed: Keyed) -> None:
    assert keyed.http.get(f"/e/{keyed.key}/v1/models").json()["data"][0]["id"] == "nano"
    assert keyed.http.get(f"/e/{keyed.key}/v1/models/default").json()["id"] == "nano"
    assert keyed.http.post(f"/e/{keyed.key}/tokenize", json={"prompt": "hi"}).json()["count"] > 0


@pytest.mark.parametrize("headers", [{"authorization": "Bearer none"}, {"x-api-key": "EMPTY"}])
def test_the_key_of_the_path_wins_over_a_placeholder(keyed: Keyed, headers: dict[str, str]) -> None:
    assert keyed.http.get("/v1/models", headers=headers).status_code == 401
    assert keyed.http.get(f"/e/{keyed.key}/v1/models", headers=headers).status_code == 200


def test_a_wrong_key_in_the_path_is_not_mended_by_a_right_one_in_the_header(keyed: Keyed) -> None:
    reply = keyed.http.get("/e/sk-swarm-wrong/v1/models", headers={"authorization": f"Bearer {keyed.key}"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (401, "unauthorized")


@pytest.mark.parametrize(
    "path",
    [
        "", "/", "/v1", "/v1/", "/v1/nothing", "/v1/swarm", "/v1/swarm/status", "/v1/swarm/episodes", "/health",
        "/metrics", "/openapi.json", "/docs", "/v2/models", "/e/x/v1/models", "//v1/models", "/v1/%73warm/status",
        "/v1/../v1/swarm/status",
    ],
)  # fmt: skip
@pytest.mark.parametrize("secret", ["episode", TOKEN])
def test_the_path_opens_nothing_else(keyed: Keyed, path: str, secret: str) -> None:
    reply = keyed.http.get(f"/e/{keyed.key if secret == 'episode' else secret}{path}")
    assert reply.status_code in {404, 401}, reply.text
    assert keyed.key not in reply.text and TOKEN not in reply.text


def test_an_episode_that_is_over_is_closed_by_path_too(keyed: Keyed) -> None:
    client = SwarmClient(str(keyed.http.base_url), token=TOKEN)
    client.abort_episode(keyed.episode["episode_id"], "over")
    reply = keyed.http.get(f"/e/{keyed.key}/v1/models")
    assert (reply.status_code, reply.json()["error"]["code"]) == (409, "episode_ended")
    client.close()
