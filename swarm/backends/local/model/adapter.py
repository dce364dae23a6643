# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
"""A LoRA adapter in a Hugging Face model: added in place, disabled for a while, written and read alone."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from swarm.backends.weights import UnfitWeights, refuse_other_shapes, shapes_of
from swarm.errors import CheckpointError, EngineFailure
from swarm.job import TrainJob
from swarm.model_path import WEIGHT_SUFFIXES
from swarm.trainer.checkpoint_files import describe_file, one_line

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
BASE_MODEL = "base_model.json"
"""File beside an adapter with the directory of its base model, and the size and digest of each weight file."""


PREFIX = "base_model.model."
"""Beginning of every tensor name in peft's files, where peft's own model wraps the base model."""


def add_adapter(module: Any, job: TrainJob) -> None:
    """Put a fresh adapter of the job into the target modules, and freeze the base model.

    The adapter changes nothing before its first update: one of its two matrices begins at zero, and the other is drawn
    from the job's seed. Raise EngineFailure for targets that the model does not have.
    """
    # Imported late: the import takes seconds, and a job of full parameters does not need it.
    from peft import LoraConfig

    targets = job.lora_target_modules
    if isinstance(targets, list):
        _refuse_missing(module, targets)
    config = LoraConfig(
        r=job.lora_rank,
        lora_alpha=job.lora_alpha,
        target_modules=targets,
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM",
    )
    try:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(job.seed)
            module.add_adapter(config)
    except (ValueError, TypeError) as error:
        raise EngineFailure(f"lora_target_modules: {one_line(error)}") from error


@contextmanager
def adapter_disabled(module: Any) -> Generator[None]:
    """Run the module as its base model alone. Do not enter this between a forward pass and its backward pass."""
    module.disable_adapters()
    try:
        yield
    finally:
        module.enable_adapters()


def adapter_weights(module: Any) -> dict[str, torch.Tensor]:
    """Return the adapter's tensors under the names of peft's files; they share memory with the parameters."""
    from peft import get_peft_model_state_dict

    found = get_peft_model_state_dict(module, save_embedding_layers=False)
    return {f"{PREFIX}{name}": weight for name, weight in found.items()}


@dataclass(frozen=True, slots=True)
class AdapterFiles:
    """Adapter of a module, which a checkpoint writes in peft's layout instead of the whole model."""

    module: Any

    def save_pretrained(self, save_directory: str) -> None:
        directory, base = Path(save_directory), Path(self.module.name_or_path)
        weights = {name: weight.detach().cpu().contiguous() for name, weight in adapter_weights(self.module).items()}
        save_file(weights, directory / ADAPTER_WEIGHTS, metadata={"format": "pt"})
        config = self.module.peft_config["default"]
        config.base_model_name_or_path = str(base)
        config.save_pretrained(save_directory)
        described = {"directory": str(base), "files": describe_weights(base)}
        (directory / BASE_MODEL).write_text(json.dumps(described, indent=2), encoding="utf-8")


def read_adapter(directory: Path, like: Any) -> dict[str, torch.Tensor]:
    """Return the stored tensors of an adapter that fits the one in `like`, on the CPU.

    Raise CheckpointError for a checkpoint without an adapter, or with another adapter or base model.
    """
    path = directory / ADAPTER_WEIGHTS
    if not path.is_file():
        raise CheckpointError(f"checkpoint {directory} holds no adapter: it was written without lora_rank")
    verify_base(directory, Path(like.name_or_path))
    try:
        stored = load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"checkpoint {directory} cannot be loaded: {one_line(error)}") from error
    refuse_other_adapter(directory, stored, adapter_weights(like))
    return stored


def refuse_other_adapter(
    directory: Path, stored: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]
) -> None:
    """Raise CheckpointError unless the stored tensors of an adapter have the names and shapes of the expected ones."""
    try:
        refuse_other_shapes(shapes_of(stored), shapes_of(expected))
    except UnfitWeights as error:
        raise CheckpointError(
            f"checkpoint {directory} is of another adapter, because names or shapes differ: {error}"
        ) from error


def read_base(directory: Path) -> Path:
    """Return where the adapter's base model lay when the checkpoint was written. Raise CheckpointError."""
    return Path(_read_record(directory)["directory"])


def verify_base(directory: Path, base: Path) -> None:
    """Raise CheckpointError unless the adapter was trained on the weight files in `base`."""
    if describe_weights(base) != _read_record(directory)["files"]:
        raise CheckpointError(f"checkpoint {directory} holds the adapter of another base model than {base}")


def _read_record(directory: Path) -> dict[str, Any]:
    try:
        record = json.loads((directory / BASE_MODEL).read_text(encoding="utf-8"))
        return {"directory": record["directory"], "files": record["files"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"checkpoint {directory} does not say whose adapter it holds: {BASE_MODEL}") from error


def describe_weights(base: Path) -> dict[str, dict[str, int | str]]:
    """Return the size and digest of each weight file of a model directory; empty for a model without files."""
    if base == Path() or not base.is_dir():
        return {}
    files = [path for path in sorted(base.iterdir()) if path.is_file() and path.name.endswith(WEIGHT_SUFFIXES)]
    return {path.name: describe_file(path) for path in files}


def _refuse_missing(module: torch.nn.Module, targets: list[str]) -> None:
    """Raise EngineFailure for missing targets: peft ignores them without a message."""
    names = {name.rpartition(".")[2] for name, each in module.named_modules() if not list(each.children())}
    endings = [name for name, _ in module.named_modules()]
    for target in targets:
        if not any(name == target or name.endswith(f".{target}") for name in endings):
            has = ", ".join(sorted(name for name in names if name.endswith(("proj", "fc1", "fc2", "dense", "attn"))))
            hint = f"; it has {has}" if has else ""
            raise EngineFailure(f"lora_target_modules: the model has no module {target!r}{hint}")
