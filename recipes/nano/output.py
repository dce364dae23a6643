# pyright: reportUnknownMemberType=false
"""The output of a build: its progress and its files, for all bundled models."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from recipes.nano.learning import Progress

# safetensors writes files that only their owner can read, but other users read an installed package.
READABLE_BY_ALL = 0o644
_REPORT_EVERY = 100


class ProgressPrinter:
    """A printer of the mean loss and the speed, once in a hundred steps."""

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


def save(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Write a directory that transformers can load and every user can read."""
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    for path in out.iterdir():
        path.chmod(READABLE_BY_ALL)


def save_record(record: dict[str, Any], out: Path) -> None:
    """Write the recipe and the scores of a model to `build.json` beside it."""
    (out / "build.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def digest_line(out: Path) -> str:
    weights = out / "model.safetensors"
    return f"sha256 {hashlib.sha256(weights.read_bytes()).hexdigest()}  {weights}"
