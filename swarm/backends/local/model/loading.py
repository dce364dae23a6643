# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportPrivateImportUsage=false
"""The loading of a Hugging Face causal LM and its tokenizer from a directory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from swarm.backends.local.decoding.forward import verify_model
from swarm.backends.local.model.adapter import add_adapter
from swarm.backends.local.model.computing import choose_dtype
from swarm.backends.weights import UnfitWeights, load_fitting
from swarm.errors import EngineFailure
from swarm.job import TrainJob
from swarm.model_path import read_stop_ids, read_tokenizer


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """Model ready to sample from. `context_length` bounds prompt plus completion, in tokens."""

    directory: Path
    module: torch.nn.Module
    tokenizer: Tokenizer
    stop_ids: frozenset[int]
    context_length: int
    vocabulary: int
    device: str

    @property
    def parameters(self) -> int:
        """Number of parameters. Shared tensors, such as tied embeddings, count once."""
        return sum(parameter.numel() for parameter in self.module.parameters())

    def decode(self, token_ids: Sequence[int]) -> str:
        return self.tokenizer.decode(list(token_ids), skip_special_tokens=False)


def load_model(
    directory: Path, *, device: str, max_model_len: int | None, dtype: str = "auto", lora: TrainJob | None = None
) -> LoadedModel:
    """Load a model onto `device`, in the job's `dtype`. Raise EngineFailure with the reason.

    For a job with `lora`, an untrained adapter is added.
    """
    transformers_logging.disable_progress_bar()
    tokenizer = read_tokenizer(directory)
    if device != "cpu" and not torch.cuda.is_available():
        raise EngineFailure(
            "n_gpu: 1 asks for a GPU and torch finds none on this machine: set n_gpu: 0 to train on the CPU, or see "
            "`swarm doctor`"
        )
    try:
        wanted = choose_dtype(directory, wanted=dtype, device=device)
        module: Any = load_fitting(AutoModelForCausalLM, directory, dtype=wanted, trust_remote_code=False)
    except UnfitWeights as error:
        raise EngineFailure(f"{directory}: its weights do not fit its config.json: {error}") from error
    except Exception as error:
        first_line = str(error).strip().split("\n", 1)[0]
        what = _find_damaged(directory) or directory
        raise EngineFailure(f"{what}: cannot be loaded: {type(error).__name__}: {first_line}") from error
    if lora is not None:
        add_adapter(module, lora)
    module = module.to(device).eval()
    config = module.config.get_text_config()
    context_length = _context_length(config.max_position_embeddings, max_model_len)
    vocabulary = module.get_input_embeddings().num_embeddings
    verify_model(module, context_length, vocabulary)
    return LoadedModel(
        directory=directory,
        module=module,
        tokenizer=tokenizer,
        stop_ids=read_stop_ids(directory, tokenizer),
        context_length=context_length,
        vocabulary=vocabulary,
        device=device,
    )


def _find_damaged(directory: Path) -> Path | None:
    """Return the first weight file that cannot be opened: the library's error does not always name it."""
    for path in sorted(directory.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt"):
                pass
        except SafetensorError:
            return path
    return None


def _context_length(supported: int, wanted: int | None) -> int:
    if wanted is not None and wanted > supported:
        raise EngineFailure(f"max_model_len is {wanted} and the model supports {supported}: lower it")
    return wanted or supported
