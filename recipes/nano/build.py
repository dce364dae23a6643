# pyright: reportUnknownMemberType=false
"""Rebuild the bundled base model: `python -m recipes.nano.build --out DIR [--steps N] [--seed 0]`."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

import torch

from recipes.nano.output import ProgressPrinter, digest_line, save, save_record
from recipes.nano.score import evaluate
from recipes.nano.warmup import NanoRecipe, warm_up
from swarm.tasks import TASK_FAMILIES

EVALUATED_TASKS = 200


def build(out: Path, recipe: NanoRecipe) -> dict[str, dict[str, float]]:
    """Write the model to `out`, and return each family's accuracy on validation tasks.

    `sampled` is at temperature 1 and `greedy` at 0. Both are also written to `build.json` beside the model. This limits
    torch to one thread in this process, because another number of threads gives other weights.
    """
    torch.set_num_threads(1)
    model, tokenizer = warm_up(recipe, ProgressPrinter())
    save(model, tokenizer, out)
    accuracies = {
        name: {
            "sampled": evaluate(model, tokenizer, family, count=EVALUATED_TASKS, temperature=1.0),
            "greedy": evaluate(model, tokenizer, family, count=EVALUATED_TASKS, temperature=0.0),
        }
        for name, family in TASK_FAMILIES.items()
    }
    save_record({"recipe": asdict(recipe), "evaluated_tasks": EVALUATED_TASKS, "accuracies": accuracies}, out)
    return accuracies


def main() -> None:
    standard = NanoRecipe()
    parser = argparse.ArgumentParser(description="Rebuild the bundled base model nano.")
    parser.add_argument("--out", type=Path, required=True, help="directory to write the model to")
    parser.add_argument("--steps", type=int, default=standard.steps, help="optimizer steps")
    parser.add_argument("--seed", type=int, default=standard.seed, help="seed of weights and demonstrations")
    options = parser.parse_args()
    accuracies = build(options.out, NanoRecipe(steps=options.steps, seed=options.seed))
    for name, accuracy in accuracies.items():
        print(f"{name:8} T=1 {accuracy['sampled']:.3f}  T=0 {accuracy['greedy']:.3f}")
    print(digest_line(options.out))


if __name__ == "__main__":
    main()
