"""A Ray cluster that is there already is used, left as it was, and told apart from one that cannot be used."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from process_support import is_running
from ray_nodes import ray_nodes
from verl_batches import make_batch

from swarm.errors import EngineFailure

pytestmark = [pytest.mark.anyio, pytest.mark.verl, pytest.mark.slow, pytest.mark.timeout(900)]

NOTICE_S = 120


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a cluster of two slots."""
    with ray_nodes("trainer") as nodes:
        nodes.start_head(num_cpus=16, num_gpus=2)
        yield nodes.address


def workers() -> list[psutil.Process]:
    return [each for each in psutil.process_iter(["name"]) if "ray::WorkerDict" in each.info["name"]]


async def test_driver_that_is_killed_frees_the_cluster_for_the_next(opened: Any, cluster: str, tmp_path: Path) -> None:
    async with opened(tmp_path / "one", ranks=2, ray_address=cluster) as running:
        await running.trainer.train(make_batch(step=1))
        mine = [each for each in workers() if is_running(each)]
        assert len(mine) >= 2
        os.kill(running.driver.pid, signal.SIGKILL)
        _gone, alive = await asyncio.to_thread(psutil.wait_procs, mine, NOTICE_S)
        assert alive == []
        await running.trainer.start()
        report = await running.trainer.train(make_batch(step=1))
        assert report.weight_version.version == 1


async def test_cluster_that_is_not_there_or_not_named_by_its_own_address_is_refused(
    opened: Any, tmp_path: Path
) -> None:
    for address, says in (("127.0.0.2:9", "cannot be reached"), ("ray://127.0.0.2:10001", "the cluster's own address")):
        with pytest.raises(EngineFailure, match=says):
            async with opened(tmp_path / "none", ray_address=address):
                pass
