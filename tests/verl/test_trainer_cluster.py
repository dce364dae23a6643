"""A Ray cluster that is there already is used, left as it was, and told apart from one that cannot be used."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from verl_batches import make_batch

from swarm.errors import EngineFailure

pytestmark = [pytest.mark.anyio, pytest.mark.verl, pytest.mark.slow, pytest.mark.timeout(400)]

START_S = 60
NOTICE_S = 30


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a cluster of two slots on this host, without tokens."""
    directory = Path("/tmp") / f"swarm-test-ray-{os.getpid()}"
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--port", "0"]
    command += ["--node-ip-address", "127.0.0.2", "--num-cpus", "16", "--num-gpus", "2", "--temp-dir", str(directory)]
    command += ["--include-dashboard", "false", "--disable-usage-stats"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as head:
            found = directory / "ray_current_cluster"
            for _ in range(10 * START_S):
                if found.exists():
                    break
                assert head.poll() is None
                signal.sigtimedwait([], 0.1)
            yield found.read_text().strip()
            processes = [*psutil.Process(head.pid).children(recursive=True), psutil.Process(head.pid)]
            for each in processes:
                each.kill()


def workers() -> list[psutil.Process]:
    return [each for each in psutil.process_iter() if "ray::WorkerDict" in each.name()]


async def test_driver_that_is_killed_frees_the_cluster_for_the_next(opened: Any, cluster: str, tmp_path: Path) -> None:
    async with opened(tmp_path / "one", ranks=2, ray_address=cluster) as running:
        await running.trainer.train(make_batch(step=1))
        mine = [each for each in workers() if each.is_running()]
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
