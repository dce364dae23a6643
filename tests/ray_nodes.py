"""Ray clusters for tests: several nodes on this host, each at a loopback address of its own, killed when over."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from process_support import descendants, kill_all

START_S = 60


@dataclass
class RayNodes:
    """One cluster, without tokens. Nodes are known by the last number of their address."""

    directory: Path
    address: str = ""
    _nodes: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict[int, "subprocess.Popen[bytes]"])

    def start_head(self, **resources: int) -> None:
        self._start(2, ["--head", "--port", "0", "--include-dashboard", "false"], resources)
        found = self.directory / "ray_current_cluster"
        for _ in range(10 * START_S):
            if found.exists():
                break
            assert self._nodes[2].poll() is None
            signal.sigtimedwait([], 0.1)
        self.address = found.read_text().strip()

    def add(self, number: int, **resources: int) -> None:
        """Returns once the cluster knows the node: two that start at once get in each other's way on one host."""
        from ray._raylet import GcsClient

        self._start(number, ["--address", self.address], resources)
        for _ in range(10 * START_S):
            nodes = GcsClient(self.address).get_all_node_info().values()
            if any(node.node_manager_address == f"127.0.0.{number}" and node.state == 0 for node in nodes):
                return
            assert self._nodes[number].poll() is None
            signal.sigtimedwait([], 0.1)
        raise AssertionError(f"node {number} did not join the cluster")

    def kill(self, number: int) -> None:
        """With every process on it, at once."""
        node = self._nodes.pop(number)
        kill_all(descendants(node.pid))
        node.kill()
        node.wait(START_S)

    def kill_all(self) -> None:
        for number in list(self._nodes):
            self.kill(number)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _start(self, number: int, words: list[str], resources: dict[str, int]) -> None:
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats", *words]
        command += ["--node-ip-address", f"127.0.0.{number}", "--object-store-memory", str(2**28)]
        for name, amount in resources.items():
            command += [f"--{name.replace('_', '-')}", str(amount)]
        if "--head" in words:
            command += ["--temp-dir", str(self.directory)]
        self._nodes[number] = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@contextmanager
def ray_nodes(name: str) -> Iterator[RayNodes]:
    """Processes inherit the environment as it is when their node is started."""
    nodes = RayNodes(Path("/tmp") / f"swarm-test-{name}-{os.getpid()}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        try:
            yield nodes
        finally:
            nodes.kill_all()
