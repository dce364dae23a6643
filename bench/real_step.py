"""A whole training step of a model of real size on this machine: TRL's, and the service's with either sampler.

Place in the flow: a benchmark on the parts of `peers`, which says what is the same on both sides. The model is that of
`real_size`; a step has 16 tasks of 4 episodes, prompts of some 100 tokens and replies of up to 48. All have a thread
per core. TRL runs if SWARM_TRL_PYTHON names its interpreter, vLLM as the sampler if SWARM_VLLM_PYTHON names one that
has it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from bench.peers import TRL_PYTHON
from bench.peers.comparison import UNITS, train_with_service, train_with_trl
from bench.peers.report import RunReport, summarize
from bench.peers.workload import LARGE, RunPlan
from bench.real_size import VLLM, write_model
from bench.results import Result
from swarm.processes.cores import usable_cores

BENCHMARK: Final = "real_step"
STEPS: Final = 3
SHOWN: Final = ("step_s", "rollout_s", "train_s", "tokens_per_second", "last_reward", "peak_rss")


def run(seconds: float) -> list[Result]:
    """Run each side once, for `STEPS` steps however long they take. Raises EngineFailure."""
    del seconds
    with tempfile.TemporaryDirectory(prefix="bench-real-step-") as directory:
        model = str(write_model(Path(directory) / "model"))
        plan = RunPlan(LARGE, 0, usable_cores(), STEPS, model=model)
        reports = {"service, local sampler": train_with_service(plan)}
        if os.environ.get(VLLM):
            reports["service, vLLM as sampler"] = train_with_service(replace(plan, sampler="vllm"))
        if os.environ.get(TRL_PYTHON):
            reports["trl"] = train_with_trl(plan)
    return results_of(reports)


def results_of(reports: Mapping[str, RunReport]) -> list[Result]:
    """Return the medians over the steps of each side, and the ratio of the service to TRL."""
    figures = {side: summarize(report, None) for side, report in reports.items()}
    results = [
        Result(BENCHMARK, side, name, values[name], UNITS.get(name, "MB"))
        for side, values in figures.items()
        for name in SHOWN
    ]
    theirs = figures.pop("trl", None)
    if theirs is None:
        return results
    return results + [
        Result(BENCHMARK, f"{side} / trl", name, values[name] / theirs[name], "x")
        for side, values in figures.items()
        for name in SHOWN
        if theirs[name]
    ]
