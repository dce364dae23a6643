"""New weights from a file in shared memory, loaded into a running vLLM layer by layer."""

# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUntypedBaseClass=false, reportUnknownParameterType=false
# pyright: reportUnknownLambdaType=false

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

OUTPUT_HEAD = "lm_head.weight"
EMBEDDING = "embed_tokens.weight"

NamedTensors = Iterator[tuple[str, torch.Tensor]]
LoadWeights = Callable[[Iterable[tuple[str, torch.Tensor]]], Any]


@dataclass
class NothingToAgreeOn(WeightTransferInitInfo):
    """Empty initialization data: a file needs no meeting point."""


@dataclass
class WeightsAt(WeightTransferUpdateInfo):
    """Path of a safetensors file, or of the directory of a Hugging Face model."""

    path: str


class SharedFileEngine(WeightTransferEngine):
    """Implementation of vLLM's side of a weight transfer."""

    init_info_cls = NothingToAgreeOn
    update_info_cls = WeightsAt

    def init_transfer_engine(self, init_info: NothingToAgreeOn) -> None:
        return None

    def start_weight_update(self) -> None:
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        initialize_layerwise_reload(self.model)

    def finish_weight_update(self) -> None:
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        finalize_layerwise_reload(self.model, self.model_config)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.receive_weights(self.parse_update_info(update_info))
        # vLLM's own method does this unconditionally, and fails without a communicator.
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: WeightsAt, load_weights: LoadWeights | None = None) -> None:
        """Load the weights of a file. Raise OSError if there is no such file."""
        load = load_weights or self.model.load_weights
        load(read_tensors(Path(update_info.path), getattr(self, "device", None)))

    def shutdown(self) -> None:
        return None

    @staticmethod
    def trainer_send_weights(*_arguments: Any, **_options: Any) -> None:
        raise NotImplementedError("the trainer writes a file")


class Extension:
    """Empty worker extension: naming it makes the worker import this module."""


def read_tensors(path: Path, device: Any = None) -> NamedTensors:
    """Return all tensors of a file or model directory by name, on `device`.

    A tied output head is among them under its own name. Without it, vLLM on a CPU would keep using the old head, of
    which it has a packed copy.
    """
    names: set[str] = set()
    embedding: torch.Tensor | None = None
    for file in _files(path):
        with safe_open(file, "pt") as opened:
            for name in opened.keys():  # noqa: SIM118  not a mapping
                tensor = opened.get_tensor(name).to(device)
                names.add(name)
                if name.endswith(EMBEDDING):
                    embedding = tensor
                yield name, tensor
    if OUTPUT_HEAD not in names and embedding is not None and _ties_its_head(path):
        yield OUTPUT_HEAD, embedding


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    index = path / "model.safetensors.index.json"
    if index.is_file():
        return sorted({path / name for name in json.loads(index.read_text())["weight_map"].values()})
    found = sorted(path.glob("*.safetensors"))
    if not found:
        raise FileNotFoundError(f"{path} holds no safetensors file")
    return found


def _ties_its_head(path: Path) -> bool:
    config = path / "config.json"
    if not config.is_file():
        return False
    settings = json.loads(config.read_text())
    return bool(settings.get("tie_word_embeddings") or settings.get("text_config", {}).get("tie_word_embeddings"))


WeightTransferEngineFactory.register_engine("shm_file", SharedFileEngine)
