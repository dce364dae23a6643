"""The making of response surfaces: exhaustive grids of real runs of the bundled model, for tests of searches.

A search is tested on a surface by looking scores up, where a study would train. Each combination is trained with two
seeds and scored after a quarter, a half and all of its steps. Two seeds cannot tell which of 24 combinations is best:
the highest of many noisy means is partly chance. So the eight best of each grid are trained with four fresh seeds, and
scored once, at their end, on more episodes. Every run trains on as many episodes. Runs are appended to
`FOLDER/NAME.jsonl`; those that are there are not made again.

    swarm start --port 8000 --home /tmp/surfaces
    python -m recipes.surfaces.make http://127.0.0.1:8000 FOLDER [NAME ...]
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from swarm import SwarmClient, TrainJob
from swarm.environments import load_environment
from swarm.program import PLAIN, measure, train
from swarm.program.evaluation import PeriodicEvaluation, StepScore

EPISODES = 3072
"""The episodes of each run: 24 steps of 16 tasks with 8 repeats."""
SCORED = 200
SEEDS = (0, 1)
CANDIDATES = 8
FRESH_SEEDS = (2, 3, 4, 5)
FRESH_SCORED = 1000
"""The episodes of the only score of a fresh seed."""
BASE: Mapping[str, Any] = {
    "engine": "local", "model": "nano", "algorithm": "grpo", "batch_size": 16, "num_repeat": 8, "lr": 1e-3,
    "mini_batch_num": 4, "temperature": 1.0, "project_name": "surfaces",
}  # fmt: skip
RATES = [1e-4, 3e-4, 1e-3, 3e-3]
GRIDS: Mapping[str, Mapping[str, list[Any]]] = {
    "reverse": {"lr": RATES, "num_repeat": [4, 8, 16], "mini_batch_num": [1, 4]},
    "copy": {"lr": RATES, "temperature": [0.7, 1.0, 1.3], "use_kl_loss": [False, True]},
    "sort": {"lr": RATES, "batch_size": [8, 16, 32], "ppo_epochs": [1, 2]},
    "add": {"lr": RATES, "num_repeat": [4, 8, 16], "entropy_coeff": [0.0, 0.01]},
    "count": {"lr": RATES, "clip_ratio": [0.1, 0.2, 0.3], "mini_batch_num": [2, 8]},
    "calc": {"lr": RATES, "algorithm": ["grpo", "rloo", "reinforce_plus_plus"], "num_repeat": [4, 8]},
}


def combinations(name: str) -> Iterator[dict[str, Any]]:
    grid = GRIDS[name]
    for values in product(*grid.values()):
        yield dict(zip(grid, values, strict=True))


def job_of(settings: Mapping[str, Any], name: str, seed: int) -> TrainJob:
    kl = {"kl_loss_coef": 0.05} if settings.get("use_kl_loss") else {}
    fields: dict[str, Any] = {**BASE, **settings, **kl, "seed": seed, "experiment_name": name}
    return TrainJob(**fields, total_steps=round(EPISODES / (fields["batch_size"] * fields["num_repeat"])))


def score_run(client: SwarmClient, name: str, settings: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Train one combination with one seed, and return its scores by step."""
    environment, began = load_environment(name), time.monotonic()
    label = "-".join(str(value) for value in settings.values())
    job = job_of(settings, f"{name}-{label}-{seed}", seed)
    assert job.total_steps is not None
    client.auto_sync_train_config_and_start_engine(job, force_restart=True)
    is_fresh = seed in FRESH_SEEDS
    scores: dict[int, float] = {}

    def score() -> Any:
        return measure(client, environment, PLAIN, episodes=FRESH_SCORED if is_fresh else SCORED, seed=seed)

    def keep(scored: StepScore) -> None:
        scores[scored.step or 0] = float(scored.evaluation.mean or 0.0)

    if is_fresh:
        train(client, environment, job, PLAIN)
    else:
        scores[0] = float(score().mean or 0.0)
        quarter = job.total_steps // 4
        gate = PeriodicEvaluation(client, score, every=quarter, batch_size=job.batch_size, on_score=keep)
        train(client, environment, job, PLAIN, gate=gate.gate)
    scores[job.total_steps] = float(score().mean or 0.0)
    return {
        "settings": dict(settings), "seed": seed, "steps": job.total_steps,
        "scores": {str(step): round(mean, 4) for step, mean in sorted(scores.items())},
        "seconds": round(time.monotonic() - began, 1),
    }  # fmt: skip


def candidates(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the combinations of a finished grid with the highest means of its first seeds."""
    finals: dict[str, list[float]] = {}
    for run in runs:
        if run["seed"] in SEEDS:
            finals.setdefault(json.dumps(run["settings"]), []).append(run["scores"][str(run["steps"])])
    ranked = sorted(finals, key=lambda settings: -sum(finals[settings]))
    return [json.loads(settings) for settings in ranked[:CANDIDATES]]


def make_surface(client: SwarmClient, name: str, path: Path) -> None:
    add_runs(client, name, path, product(SEEDS, combinations(name)))
    add_runs(client, name, path, product(FRESH_SEEDS, candidates(read_runs(path))))


def read_runs(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def add_runs(client: SwarmClient, name: str, path: Path, runs: Iterable[tuple[int, dict[str, Any]]]) -> None:
    have = {(json.dumps(run["settings"]), run["seed"]) for run in read_runs(path)}
    for seed, settings in runs:
        if (json.dumps(settings), seed) in have:
            continue
        found = score_run(client, name, settings, seed)
        with path.open("a") as file:
            file.write(json.dumps(found) + "\n")


def main(url: str, folder: Path, names: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with SwarmClient(url) as client:
        for name in names or GRIDS:
            make_surface(client, name, folder / f"{name}.jsonl")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
