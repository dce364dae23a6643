# pyright: reportUnknownMemberType=false
"""Rebuild the bundled base model: `python -m swarm.nano.build --out DIR [--steps N] [--seed 0]`.

Place in the flow: run by hand when a task family, the chat template or the recipe changes; its output is what
`swarm/nano/model` holds. The same seed gives the same bytes on the same kind of machine, because it uses one
thread throughout.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from dataclasses import asdict
from pathlib import Path

import torch

from swarm.nano.recipe.learning import Progress
from swarm.nano.recipe.score import evaluate
from swarm.nano.recipe.warmup import Recipe, warm_up
from swarm.tasks import TASK_FAMILIES

EVALUATED_TASKS = 200
# safetensors writes files for their owner only, which an installed package is not read by.
READABLE_BY_ALL = 0o644
_REPORT_EVERY = 100


def build(out: Path, recipe: Recipe) -> dict[str, dict[str, float]]:
    """Write the model to `out`, and return each family's accuracy on validation tasks.

    `sampled` is at temperature 1, `greedy` at 0; both stand in `build.json` beside the model. Sets the process to one
    torch thread: another number of threads gives other weights.
    """
    torch.set_num_threads(1)
    model, tokenizer = warm_up(recipe, _Printer())
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    for path in out.iterdir():
        path.chmod(READABLE_BY_ALL)
    accuracies = {
        name: {
            "sampled": evaluate(model, tokenizer, family, count=EVALUATED_TASKS, temperature=1.0),
            "greedy": evaluate(model, tokenizer, family, count=EVALUATED_TASKS, temperature=0.0),
        }
        for name, family in TASK_FAMILIES.items()
    }
    record = {"recipe": asdict(recipe), "evaluated_tasks": EVALUATED_TASKS, "accuracies": accuracies}
    (out / "build.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return accuracies


class _Printer:
    """Prints the mean loss and the speed every so many steps."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._losses: list[float] = []

    def __call__(self, progress: Progress) -> None:
        self._losses.append(progress.loss)
        if progress.step % _REPORT_EVERY:
            return
        speed = progress.tokens / (time.monotonic() - self._started)
        loss = sum(self._losses) / len(self._losses)
        print(f"step {progress.step}  loss {loss:.3f}  {speed:.0f} tokens/s", flush=True)
        self._losses.clear()


def main() -> None:
    standard = Recipe()
    parser = argparse.ArgumentParser(description="Rebuild the bundled base model nano.")
    parser.add_argument("--out", type=Path, required=True, help="directory to write the model to")
    parser.add_argument("--steps", type=int, default=standard.steps, help="optimizer steps")
    parser.add_argument("--seed", type=int, default=standard.seed, help="seed of weights and demonstrations")
    options = parser.parse_args()
    accuracies = build(options.out, Recipe(steps=options.steps, seed=options.seed))
    for name, accuracy in accuracies.items():
        print(f"{name:8} T=1 {accuracy['sampled']:.3f}  T=0 {accuracy['greedy']:.3f}")
    weights = options.out / "model.safetensors"
    print(f"sha256 {hashlib.sha256(weights.read_bytes()).hexdigest()}  {weights}")


if __name__ == "__main__":
    main()
