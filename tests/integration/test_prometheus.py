"""/metrics over real HTTP: what Prometheus reads is what the status says, and its labels stay few."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests_support import begin, chat, end, wait_for_state, wait_for_step

from swarm.job import TrainJob

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture
def http(start_server: Any) -> Iterator[httpx.Client]:
    job = TrainJob(engine="fake", batch_size=2, num_repeat=2, drain_timeout_s=2, mixture={"math": 0.5, "code": 0.5})
    with httpx.Client(base_url=start_server(job).url, timeout=60) as client:
        wait_for_state(client, "ROLLING")
        yield client


def scrape(http: httpx.Client) -> Samples:
    reply = http.get("/metrics")
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"].startswith("text/plain")
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(reply.text)
        for sample in family.samples
    }


def value(samples: Samples, name: str, /, **labels: str) -> float:
    return samples[name, frozenset(labels.items())]


def attempt(http: httpx.Client, source: str, task_id: str, reward: float) -> dict[str, Any]:
    episode = begin(http, data_source=source)
    end(http, episode, task_id=task_id, reward=reward, call=True)
    return episode


def test_a_scrape_shows_engine_batch_episodes_and_process(http: httpx.Client) -> None:
    for source in ("math", "code"):
        for reward in (0.0, 1.0):
            attempt(http, source, source, reward)
    wait_for_step(http, 1)
    attempt(http, "math", "next", 1.0)
    lost = begin(http, data_source="code")
    http.post(f"/v1/swarm/episodes/{lost['episode_id']}/abort", json={"reason": "tool_crashed"}).raise_for_status()
    running = begin(http, episode_type="eval")
    reply = chat(http, running, "Hello", return_token_ids=True)
    samples = scrape(http)
    assert value(samples, "swarm_engine_state", state="ROLLING") == 1
    assert sum(number for (name, _), number in samples.items() if name == "swarm_engine_state") == 1
    assert (value(samples, "swarm_step"), value(samples, "swarm_weight_version")) == (1, 1)
    assert value(samples, "swarm_training_metric", name="batch/episodes") == 4
    assert (value(samples, "swarm_pool_episodes"), value(samples, "swarm_pool_episodes_target")) == (1, 4)
    assert value(samples, "swarm_pool_tasks_target") == 2
    assert value(samples, "swarm_source_episodes", source="math") == 1
    assert value(samples, "swarm_source_tasks_target", source="code") == 1
    assert value(samples, "swarm_running_episodes", type="eval") == 1
    assert value(samples, "swarm_running_episodes", type="train") == 0
    assert value(samples, "swarm_episodes", state="trained", outcome="") == 4
    assert value(samples, "swarm_episodes", state="aborted", outcome="tool_crashed") == 1
    assert value(samples, "swarm_sampled_tokens_total") >= len(reply["choices"][0]["token_ids"])
    assert value(samples, "swarm_tokens_per_second") > 0
    assert value(samples, "swarm_ledger_commits_total") > 0
    assert value(samples, "swarm_ledger_writes_total") >= value(samples, "swarm_ledger_commits_total")
    assert value(samples, "swarm_ledger_commit_seconds_total") > 0
    assert value(samples, "process_resident_memory_bytes") > 2**20


def test_requests_are_counted_by_route_template_and_class_of_answer(http: httpx.Client) -> None:
    before = scrape(http)
    for number in range(3):
        http.get(f"/v1/swarm/episodes/ep-{number}")
    for number in range(4):
        http.get(f"/nothing/{number}")
    http.request("BREW", "/v1/swarm/status")
    after = scrape(http)
    name = "swarm_http_request_duration_seconds_count"

    def grown(**labels: str) -> float:
        key = (name, frozenset(labels.items()))
        return after.get(key, 0) - before.get(key, 0)

    assert grown(method="GET", route="/v1/swarm/episodes/{episode_id}", status="4xx") == 3
    assert grown(method="GET", route="unmatched", status="4xx") == 4
    assert grown(method="GET", route="/metrics", status="2xx") == 1
    assert {dict(labels)["method"] for key, labels in after if key == name} <= {"GET", "other"}
    buckets = {
        dict(labels)["le"]: number
        for (key, labels), number in after.items()
        if key == "swarm_http_request_duration_seconds_bucket"
        and ("route", "/v1/swarm/episodes/{episode_id}") in labels
    }
    assert buckets["+Inf"] == 3
    assert list(buckets.values()) == sorted(buckets.values())


def test_reasons_that_clients_make_up_do_not_make_up_labels_without_end(http: httpx.Client) -> None:
    for number in range(105):
        episode = begin(http, episode_type="eval")
        http.post(f"/v1/swarm/episodes/{episode['episode_id']}/abort", json={"reason": f"reason {number}"})
    outcomes = {
        dict(labels)["outcome"]: count for (name, labels), count in scrape(http).items() if name == "swarm_episodes"
    }
    assert len(outcomes) == 101
    assert (outcomes["other"], sum(outcomes.values())) == (5, 105)


def test_openmetrics_is_given_to_those_who_ask(http: httpx.Client) -> None:
    reply = http.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
    assert reply.headers["content-type"].startswith("application/openmetrics-text")
    assert reply.text.endswith("# EOF\n")


def test_a_server_without_a_job_is_scraped_as_well(start_server: Any) -> None:
    with httpx.Client(base_url=start_server().url, timeout=60) as http:
        samples = scrape(http)
    assert value(samples, "swarm_engine_state", state="OFFLINE") == 1
    assert not any(name.startswith("swarm_pool") for name, _ in samples)
