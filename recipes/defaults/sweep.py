"""The sweep of the bundled models' default settings: trainings of every environment at each of a list of settings."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from recipes.defaults.tasks import BUNDLED, MADE, REASONING_GYM, source_of
from swarm import SwarmClient, TrainJob
from swarm.environments.server import open_environment
from swarm.program import PLAIN, measure, train
from swarm.program.evaluation import PeriodicEvaluation, StepScore

STEPS, HALF = 60, 30
SCORED = 200
ENVIRONMENTS: Mapping[str, tuple[str, ...]] = {"nano": BUNDLED, "micro": (*MADE, *REASONING_GYM)}


def score_run(
    client: SwarmClient, folder: Path, model: str, name: str, settings: Mapping[str, Any], seed: int
) -> dict[str, Any]:
    """Train one environment with one seed, and return its scores by step."""
    began = time.monotonic()
    label = "-".join(f"{value}" for value in settings.values()) or "default"
    fields: dict[str, Any] = {
        "engine": "local", "model": model, "seed": seed, "total_steps": STEPS, "project_name": "defaults",
        "experiment_name": f"{name}-{label}-{seed}", **settings,
    }  # fmt: skip
    job = TrainJob(**fields)
    client.auto_sync_train_config_and_start_engine(job, force_restart=True)
    scores: dict[int, float] = {}
    with open_environment(source_of(name, folder / "tasks")) as environment:

        def score() -> Any:
            return measure(client, environment, PLAIN, episodes=SCORED, seed=seed)

        def keep(scored: StepScore) -> None:
            scores[scored.step or 0] = float(scored.evaluation.mean or 0.0)

        scores[0] = float(score().mean or 0.0)
        gate = PeriodicEvaluation(client, score, every=HALF, batch_size=job.batch_size, on_score=keep)
        train(client, environment, job, PLAIN, gate=gate.gate)
        scores[STEPS] = float(score().mean or 0.0)
    rewards = [round(step.metrics.get("critic/score/mean", 0.0), 4) for step in client.metrics()]
    return {
        "environment": name, "settings": dict(settings), "seed": seed,
        "scores": {str(step): round(mean, 4) for step, mean in sorted(scores.items())}, "rewards": rewards,
        "seconds": round(time.monotonic() - began, 1),
    }  # fmt: skip


def read_runs(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def run_sweep(url: str, folder: Path, model: str, all_settings: Iterable[Mapping[str, Any]], seeds: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{model}.jsonl"
    have = {(run["environment"], json.dumps(run["settings"]), run["seed"]) for run in read_runs(path)}
    wanted = [
        (name, settings, seed) for seed in range(seeds) for settings in all_settings for name in ENVIRONMENTS[model]
    ]
    with SwarmClient(url) as client:
        for name, settings, seed in wanted:
            if (name, json.dumps(settings), seed) in have:
                continue
            found = score_run(client, folder, model, name, settings, seed)
            with path.open("a") as file:
                file.write(json.dumps(found) + "\n")


def report(path: Path) -> str:
    """Return a Markdown table: for each settings and environment, the mean and the lowest final score of its seeds."""
    runs = read_runs(path)
    names = list(dict.fromkeys(run["environment"] for run in runs))
    lines = ["| settings | " + " | ".join(names) + " | mean | below base |", "|---" * (len(names) + 3) + "|"]
    for settings in dict.fromkeys(json.dumps(run["settings"]) for run in runs):
        of_these = [run for run in runs if json.dumps(run["settings"]) == settings]
        cells: list[str] = []
        means: list[float] = []
        for name in names:
            finals = [run["scores"][str(STEPS)] for run in of_these if run["environment"] == name]
            cells.append(f"{fmean(finals):.3f} ({min(finals):.3f})" if finals else "")
            means += [fmean(finals)] if finals else []
        below = sum(run["scores"][str(STEPS)] < run["scores"]["0"] for run in of_these)
        lines.append(f"| `{settings}` | {' | '.join(cells)} | {fmean(means):.3f} | {below} of {len(of_these)} |")
    return "\n".join(lines)


def main(arguments: list[str]) -> None:
    match arguments:
        case ["run", url, folder, model, seeds, *settings]:
            run_sweep(url, Path(folder), model, [json.loads(each) for each in settings], int(seeds))
        case ["report", path]:
            sys.stdout.write(report(Path(path)) + "\n")
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
