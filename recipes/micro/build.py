# pyright: reportUnknownMemberType=false
"""Rebuild the bundled base model micro: `python -m recipes.micro.build --out DIR [--steps N] [--seed 0]`."""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from recipes.micro.score import PARTS, mean_score, score
from recipes.micro.warmup import MicroRecipe, warm_up
from recipes.nano.output import ProgressPrinter, digest_line, save, save_record
from recipes.nano.score import evaluate
from swarm.tasks import TASK_FAMILIES

QUESTIONS = 40
"""Questions of each kind and part for the score."""
BUNDLED_TASKS = 100
"""Validation tasks of each bundled family."""


def build(out: Path, recipe: MicroRecipe, questions: int = QUESTIONS) -> dict[str, Any]:
    """Write the model to `out`, and return the record that is written to `build.json` beside it.

    All accuracies are at temperature 1, from which reinforcement learning begins. This limits torch to one thread in
    this process, because another number of threads gives other weights.
    """
    torch.set_num_threads(1)
    began = time.process_time()
    model, tokenizer = warm_up(recipe, ProgressPrinter())
    save(model, tokenizer, out)
    print(f"the warm-up took {time.process_time() - began:.0f} s of CPU time", flush=True)
    scores = score(model, tokenizer, count=questions, temperature=1.0)
    bundled = {
        name: evaluate(model, tokenizer, family, count=BUNDLED_TASKS, temperature=1.0)
        for name, family in TASK_FAMILIES.items()
    }
    means = {part: round(mean_score(scores, part), 4) for part in PARTS}
    record = {"recipe": asdict(recipe), "questions_per_kind": questions, "means": means, "accuracies": scores}
    record |= {"bundled_tasks_per_family": BUNDLED_TASKS, "bundled_tasks": bundled}
    save_record(record, out)
    return record


def main() -> None:
    standard = MicroRecipe()
    parser = argparse.ArgumentParser(description="Rebuild the bundled base model micro.")
    parser.add_argument("--out", type=Path, required=True, help="directory to write the model to")
    parser.add_argument("--steps", type=int, default=standard.steps, help="optimizer steps")
    parser.add_argument("--seed", type=int, default=standard.seed, help="seed of weights and demonstrations")
    options = parser.parse_args()
    record = build(options.out, MicroRecipe(steps=options.steps, seed=options.seed))
    for part, mean in record["means"].items():
        print(f"{part:16} {mean:.3f}")
    print(digest_line(options.out))


if __name__ == "__main__":
    main()
