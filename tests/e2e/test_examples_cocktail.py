"""The cocktail example as three real client processes: shares are the quotas, whoever is faster, and change live."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import httpx
import pytest
import yaml
from example_programs import changed_job, run_example

FIRST = {"reverse": 0.4, "sort": 0.3, "count": 0.3}
LATER = {"reverse": 0.2, "sort": 0.3, "count": 0.5}


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_shares_are_the_quotas_though_one_client_is_five_times_faster(swarm_process: str, tmp_path: Path) -> None:
    # Sixteen tasks do not divide by the quotas: what is lost by rounding in one batch is made up for in the next.
    quick = changed_job(tmp_path, "cocktail", engine="fake", batch_size=16, num_repeat=2, total_steps=16)
    assert yaml.safe_load(Path(quick).read_text())["mixture"] == FIRST
    output = run_example("cocktail", "--url", swarm_process, "--job", quick)
    first, later = batches_of_each_mixture(swarm_process)
    assert len(first) + len(later) == 16
    for mixture, batches in ((FIRST, first), (LATER, later)):
        assert len(batches) >= 6
        for source, quota in mixture.items():
            share = sum(batch[source] for batch in batches) / sum(batch.total() for batch in batches)
            assert abs(share - quota) <= 0.02, (source, share, output)
            # The change shows in the very next batch, and no batch is off by a whole task.
            assert all(abs(batch[source] / 2 - 16 * quota) < 1 for batch in batches), output
    printed = [Counter({source: int(n) for source, n in pairs}) for pairs in map(read_counts, output.splitlines())]
    assert printed[:16] == [*first, *later]
    assert "trained shares, later mixture" in output


def read_counts(line: str) -> list[tuple[str, str]]:
    return re.findall(r"(reverse|sort|count) +(\d+)(?= )", line)


def batches_of_each_mixture(url: str) -> tuple[list[Counter[str]], list[Counter[str]]]:
    """Episodes of each trained batch by source: those begun under the first mixture, and those after the change."""
    with httpx.Client(base_url=f"{url}/v1/swarm", timeout=60) as http:
        events = http.get("/events", params={"limit": 1000}).json()["events"]
        changed_at = next(event["event_id"] for event in events if event["kind"] == "job.changed")
        closed = [event for event in events if event["kind"] == "batch.closed"]
        before = sum(event["event_id"] < changed_at for event in closed)
        batches = [
            Counter(
                episode["data_source"]
                for episode in http.get(
                    "/episodes", params={"batch_id": event["detail"]["batch_id"], "state": "trained", "limit": 1000}
                ).json()["episodes"]
            )
            for event in closed
        ]
    # The batch being filled at the time of the change keeps its quotas.
    return batches[: before + 1], batches[before + 1 :]
