"""Replicas on the nodes of a Ray cluster: placed where there is room, and brought back after the loss of a node.

vLLM is a stand-in here, so that nodes can be lost within seconds; Ray is real.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from ray_nodes import RayNodes, ray_nodes
from vllm_stand_in import LIMITS, StandIns, complete, expected_tokens, until

from swarm.backends.replicas.sampler import ReplicaSampler
from swarm.errors import EngineFailure
from swarm.sampler import EngineLost

pytestmark = [pytest.mark.anyio, pytest.mark.verl, pytest.mark.timeout(900)]

PROMPT = (1, 2, 3)
PATIENT = replace(LIMITS, boot_timeout_s=300, healthy_s=0.1)
NOTICE_S = 120


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandIns]:
    made = StandIns(tmp_path_factory.mktemp("cluster"))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in made.environment.items():
            patch.setenv(name, value)
        patch.setenv("TMPDIR", str(made.directory))
        yield made


@pytest.fixture(scope="module")
def nodes(stand_ins: StandIns) -> Iterator[RayNodes]:
    """A head that has no room, and two nodes with room for one replica each."""
    with ray_nodes("sampler") as made:
        made.start_head(num_cpus=0)
        made.add(3, num_cpus=1, num_gpus=1)
        made.add(4, num_cpus=1, num_gpus=1)
        yield made


def places(sampler: ReplicaSampler) -> list[str | None]:
    return [urlsplit(replica.base_url).hostname if replica.base_url else None for replica in sampler.replicas]


async def test_replicas_live_on_nodes_with_room_and_come_back_when_theirs_is_lost(
    nodes: RayNodes, stand_ins: StandIns
) -> None:
    sampler = stand_ins.sampler(replicas=2, limits=PATIENT, ray_address=nodes.address, layout={"device": "cuda"})
    await sampler.start()
    assert sorted(map(str, places(sampler))) == ["127.0.0.3", "127.0.0.4"]
    completion = await complete(sampler, PROMPT)
    assert completion.token_ids == expected_tokens(PROMPT, 12)
    await sampler.publish(stand_ins.weights(5, version=1))

    first_place = places(sampler)[0]
    pid = sampler.replicas[0].pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    await until(lambda: sampler.replicas[0].pid not in {None, pid} and sampler.replicas[0].state == "serving", NOTICE_S)
    assert places(sampler)[0] == first_place

    nodes.kill(4)
    await until(lambda: "127.0.0.4" not in places(sampler), NOTICE_S)
    during = await complete(sampler, PROMPT, "during")
    assert (during.token_ids, set(during.versions)) == (expected_tokens(PROMPT, 12, weights=5), {1})
    nodes.add(5, num_cpus=1, num_gpus=1)
    await until(lambda: "127.0.0.5" in places(sampler), NOTICE_S)
    await until(lambda: all(replica.state == "serving" for replica in sampler.replicas), NOTICE_S)
    assert {replica.version for replica in sampler.replicas} == {1}

    await sampler.stop()
    await until(lambda: not stand_ins.living())


async def test_a_replica_ends_by_itself_when_its_server_is_gone(nodes: RayNodes, stand_ins: StandIns) -> None:
    sampler = stand_ins.sampler(replicas=1, limits=PATIENT, ray_address=nodes.address)
    await sampler.start()
    before = set(stand_ins.living())
    assert before
    process = sampler.replicas[0]._process  # pyright: ignore[reportPrivateUsage]
    assert process is not None and process._guard.stdin is not None  # pyright: ignore[reportPrivateUsage]
    # What is left of a server that was killed.
    process._guard.stdin.close()  # pyright: ignore[reportPrivateUsage]
    await until(lambda: not before & set(stand_ins.living()), NOTICE_S)
    await sampler.stop()
    await until(lambda: not stand_ins.living(), NOTICE_S)


async def test_a_sampler_that_shares_gpus_is_on_every_node_of_the_trainer(nodes: RayNodes, stand_ins: StandIns) -> None:
    shared = {"device": "cuda", "colocated": True}
    sampler = stand_ins.sampler(replicas=2, limits=PATIENT, ray_address=nodes.address, layout={**shared, "nodes": 2})
    await sampler.start()
    assert len(set(places(sampler))) == 2
    await sampler.suspend()
    await sampler.resume()
    assert (await complete(sampler, PROMPT, "awake")).token_ids == expected_tokens(PROMPT, 12)
    await sampler.stop()
    alone = stand_ins.sampler(limits=PATIENT, ray_address=nodes.address, layout=shared)
    with pytest.raises(EngineFailure, match="share the GPUs of 1 nodes, and the cluster has 2"):
        await alone.start()
    await until(lambda: not stand_ins.living(), NOTICE_S)


async def test_an_interpreter_that_its_node_lacks_is_said_and_nothing_is_left(
    nodes: RayNodes, stand_ins: StandIns, tmp_path: Path
) -> None:
    left = set(stand_ins.directory.glob("swarm-replica-*"))
    sampler = stand_ins.sampler(limits=PATIENT, ray_address=nodes.address, python=tmp_path / "python")
    with pytest.raises(EngineFailure, match=r"/python cannot be run on 127\.0\.0\.[2-5]: No such file"):
        await sampler.start()
    assert set(stand_ins.directory.glob("swarm-replica-*")) == left


@pytest.mark.slow
async def test_no_room_is_said(nodes: RayNodes, stand_ins: StandIns) -> None:
    impatient = replace(LIMITS, boot_timeout_s=20)
    with pytest.raises(EngineLost, match="no node of the Ray cluster has a CPU free"):
        await stand_ins.sampler(replicas=3, limits=impatient, ray_address=nodes.address).start()
    await until(lambda: not stand_ins.living(), NOTICE_S)


async def test_no_cluster_is_said(stand_ins: StandIns) -> None:
    with pytest.raises(EngineFailure, match=r"127\.0\.0\.2:9"):
        await stand_ins.sampler(limits=PATIENT, ray_address="127.0.0.2:9").start()
