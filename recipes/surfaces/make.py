"""The making of response surfaces: exhaustive grids of real runs of the bundled model, for tests of searches."""

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
from swarm.program import PLAIN, Program, load_program, measure, train
from swarm.program.gates import PeriodicEvaluation, StepScore

EPISODES = 3072
"""The episodes of each run: 24 steps of 16 tasks with 8 repeats."""
PROGRAM_EPISODES = 1024
"""The episodes of each run of a program, whose attempts have up to four calls of the model."""
SCORED = 200
SEEDS = (0, 1)
CANDIDATES = 1 / 3
"""The part of a grid that is trained with fresh seeds: its best combinations by the first seeds."""
FRESH_SEEDS = (2, 3, 4, 5)
FRESH_SCORED = 1000
"""The episodes of the only score of a fresh seed."""
BASE: Mapping[str, Any] = {
    "engine": "local", "model": "nano", "algorithm": "grpo", "batch_size": 16, "num_repeat": 8, "lr": 1e-3,
    "mini_batch_num": 4, "temperature": 1.0, "project_name": "surfaces",
}  # fmt: skip
RATES = [1e-4, 3e-4, 1e-3, 3e-3]
OF_PROGRAMS = "programs_"
"""The name of a grid with programs: this and the environment."""
PROGRAM_GRID: Mapping[str, list[Any]] = {
    "program": ["plain", "answer-check-answer", "best-of-n", "easy-first", "scratchpad", "shaped-by-details"],
    "lr": [3e-4, 1e-3],
}
GRIDS: Mapping[str, Mapping[str, list[Any]]] = {
    "reverse": {"lr": RATES, "num_repeat": [4, 8, 16], "mini_batch_num": [1, 4]},
    "copy": {"lr": RATES, "temperature": [0.7, 1.0, 1.3], "use_kl_loss": [False, True]},
    "sort": {"lr": RATES, "batch_size": [8, 16, 32], "ppo_epochs": [1, 2]},
    "add": {"lr": RATES, "num_repeat": [4, 8, 16], "entropy_coeff": [0.0, 0.01]},
    "count": {"lr": RATES, "clip_ratio": [0.1, 0.2, 0.3], "mini_batch_num": [2, 8]},
    "calc": {"lr": RATES, "algorithm": ["grpo", "rloo", "reinforce_plus_plus"], "num_repeat": [4, 8]},
    f"{OF_PROGRAMS}count": PROGRAM_GRID,
    f"{OF_PROGRAMS}reverse": PROGRAM_GRID,
}


def combinations(name: str) -> Iterator[dict[str, Any]]:
    grid = GRIDS[name]
    for values in product(*grid.values()):
        yield dict(zip(grid, values, strict=True))


def job_of(settings: Mapping[str, Any], name: str, seed: int) -> TrainJob:
    kl = {"kl_loss_coef": 0.05} if settings.get("use_kl_loss") else {}
    fields: dict[str, Any] = {**BASE, **settings, **kl, "seed": seed, "experiment_name": name}
    program = fields.pop("program", None)
    episodes = EPISODES if program is None else PROGRAM_EPISODES
    return TrainJob(**fields, total_steps=round(episodes / (fields["batch_size"] * fields["num_repeat"])))


def program_of(settings: Mapping[str, Any], folder: Path) -> Program:
    name = settings.get("program", PLAIN.name)
    return PLAIN if name == PLAIN.name else load_program(folder / f"{name}.py")


def score_run(
    client: SwarmClient, name: str, settings: Mapping[str, Any], seed: int, program: Program
) -> dict[str, Any]:
    """Train one combination with one seed, and return its scores by step."""
    environment, began = load_environment(name.removeprefix(OF_PROGRAMS)), time.monotonic()
    label = "-".join(str(value) for value in settings.values())
    job = job_of(settings, f"{name}-{label}-{seed}", seed)
    assert job.total_steps is not None
    client.auto_sync_train_config_and_start_engine(job, force_restart=True)
    is_fresh = seed in FRESH_SEEDS
    scores: dict[int, float] = {}

    def score() -> Any:
        return measure(client, environment, program, episodes=FRESH_SCORED if is_fresh else SCORED, seed=seed)

    def keep(scored: StepScore) -> None:
        scores[scored.step or 0] = float(scored.evaluation.mean or 0.0)

    if is_fresh:
        train(client, environment, job, program)
    else:
        if "program" not in settings:
            scores[0] = float(score().mean or 0.0)
        quarter = job.total_steps // 4
        gate = PeriodicEvaluation(client, score, every=quarter, batch_size=job.batch_size, on_score=keep)
        train(client, environment, job, program, gate=gate.gate)
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
    return [json.loads(settings) for settings in ranked[: round(CANDIDATES * len(ranked))]]


def read_runs(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def add_runs(
    client: SwarmClient, name: str, path: Path, programs: Path, runs: Iterable[tuple[int, dict[str, Any]]]
) -> None:
    have = {(json.dumps(run["settings"]), run["seed"]) for run in read_runs(path)}
    for seed, settings in runs:
        if (json.dumps(settings), seed) in have:
            continue
        found = score_run(client, name, settings, seed, program_of(settings, programs))
        with path.open("a") as file:
            file.write(json.dumps(found) + "\n")


def main(url: str, folder: Path, programs: Path, names: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    paths = {name: folder / f"{name}.jsonl" for name in names or GRIDS}
    with SwarmClient(url) as client:
        for name, path in paths.items():
            add_runs(client, name, path, programs, product(SEEDS, combinations(name)))
        for name, path in paths.items():
            add_runs(client, name, path, programs, product(FRESH_SEEDS, candidates(read_runs(path))))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:])
