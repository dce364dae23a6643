"""A fifth more processor time in sampler, learner or control plane is called worse, and its client is not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from repository_copies import copy_repository

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


SLOWDOWNS = {
    "swarm/backends/local/decoding/batching.py": SLOW_METHOD.format(owner="BatchSampler", method="step"),
    "swarm/backends/local/learning/learner.py": SLOW_METHOD.format(owner="Learner", method="step"),
    "swarm/gateway/http/middleware.py": SLOW_SERVER,
}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_fifth_more_processor_time_is_called_worse_wherever_it_is_spent(tmp_path: Path) -> None:
    checkout = copy_repository(tmp_path / "checkout")
    for module, slowdown in SLOWDOWNS.items():
        with (checkout / module).open("a") as file:
            file.write(slowdown)
    done = subprocess.run(
        [sys.executable, "-m", "bench", "compare", "--json", "--results", str(tmp_path / "results")],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout)},
        stdout=subprocess.PIPE,
        text=True,
        timeout=800,
    )
    assert done.returncode == 1
    document = json.loads(done.stdout)
    assert document["commit"] == f"{document['against']['commit']}-dirty"
    [stored] = (tmp_path / "results").iterdir()
    assert json.loads(stored.read_text()) == document
    verdicts = {name: figure["verdict"] for name, figure in document["figures"].items()}
    assert {verdicts[name] for name in ("sampler_cpu", "learner_cpu", "server_cpu")} == {"worse"}, document["figures"]
    assert verdicts["client_cpu"] == "within noise", document["figures"]
