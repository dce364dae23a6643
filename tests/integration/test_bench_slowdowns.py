"""A version whose sampler, learner or control plane takes a fifth more processor time is called worse, and no other is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.board.checkout import Repository

ROOT = Path(__file__).parents[2]
MINUTES = 4

SLOW_METHOD = """

def _slow_down(method):
    import time

    def run(*args, **kwargs):
        began = time.thread_time()
        result = method(*args, **kwargs)
        until = time.thread_time() + 0.2 * (time.thread_time() - began)
        while time.thread_time() < until:
            pass
        return result

    return run


{owner}.{method} = _slow_down({owner}.{method})
"""
SLOW_SERVER = """

def _slow_down(call):
    import time

    spent = time.process_time()

    async def run(*args):
        nonlocal spent
        await call(*args)
        until = time.process_time() + 0.2 * (time.process_time() - spent)
        while (spent := time.process_time()) < until:
            pass

    return run


RequestMiddleware.__call__ = _slow_down(RequestMiddleware.__call__)
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository whose only commit is this tree as it is now."""
    root = tmp_path / "checkout"
    root.mkdir()
    Repository(ROOT).copy_working_tree(root)
    git = ["git", "-C", str(root), "-c", "user.name=test", "-c", "user.email=test@localhost"]
    for arguments in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message", "All of it"]):
        subprocess.run([*git, *arguments], check=True, timeout=60)
    return root


def compare(checkout: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, "-m", "bench", "compare", *arguments, "--against", "HEAD", "--json"]
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    done = subprocess.run(command, cwd=checkout, env=environment, stdout=subprocess.PIPE, text=True, timeout=600)
    document = json.loads(done.stdout)
    print(json.dumps(document["figures"], indent=1))
    return done.returncode, document


@pytest.mark.slow
@pytest.mark.timeout(700)
@pytest.mark.parametrize(
    ("module", "slowdown", "probe", "slower"),
    [
        (
            "swarm/backends/local/decoding/batching.py",
            SLOW_METHOD.format(owner="BatchSampler", method="step"),
            "training",
            "sampler_cpu",
        ),
        (
            "swarm/backends/local/learning/learner.py",
            SLOW_METHOD.format(owner="Learner", method="step"),
            "training",
            "learner_cpu",
        ),
        ("swarm/gateway/http/middleware.py", SLOW_SERVER, "control_plane", "server_cpu"),
    ],
    ids=["sampler", "learner", "control plane"],
)
def test_a_fifth_more_processor_time_is_called_worse(
    checkout: Path, module: str, slowdown: str, probe: str, slower: str
) -> None:
    with (checkout / module).open("a") as file:
        file.write(slowdown)
    code, document = compare(checkout, probe, "--minutes", str(MINUTES))
    assert code == 1
    assert document["commit"].endswith("-dirty")
    figures = document["figures"]
    worse = {name for name, figure in figures.items() if figure["verdict"] == "worse" and name.endswith("_cpu")}
    assert worse == {slower}, figures
