"""The facts about a model that its directory contains: size, vocabulary, end tokens and tokenizer.

Place in the flow: the sampler reads them once per start. It works from the files alone, does not load the model, and
knows no tensors.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from tokenizers import Tokenizer

from swarm.errors import EngineFailure
from swarm.model_path import read_stop_ids, read_tokenizer, stored_parameters


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Facts about one model.

    `parameters` is 0 for weights that are not in safetensors files. `vocabulary` is the width of the logits. `stop_ids`
    end every completion; `eos_id` is the one of them that the tokenizer itself knows, or None.
    """

    parameters: int
    vocabulary: int
    stop_ids: frozenset[int]
    eos_id: int | None
    tokenizer: Tokenizer

    def decode(self, token_ids: Sequence[int]) -> str:
        return self.tokenizer.decode(list(token_ids), skip_special_tokens=False)


def read_facts(directory: Path) -> ModelFacts:
    """Return the facts of a model directory.

    Raise EngineFailure if a file is missing or broken, CheckpointError for damaged weights.
    """
    tokenizer = read_tokenizer(directory)
    return ModelFacts(
        parameters=stored_parameters(directory),
        vocabulary=_vocabulary(directory / "config.json"),
        stop_ids=read_stop_ids(directory, tokenizer),
        eos_id=_eos_id(directory / "tokenizer_config.json", tokenizer),
        tokenizer=tokenizer,
    )


def _vocabulary(path: Path) -> int:
    try:
        config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        size = config.get("vocab_size") or cast("dict[str, Any]", config["text_config"])["vocab_size"]
    except (OSError, ValueError, KeyError) as error:
        raise EngineFailure(f"{path}: says no vocab_size: {error}") from error
    return int(size)


def _eos_id(path: Path, tokenizer: Tokenizer) -> int | None:
    if not path.is_file():
        return None
    # `read_stop_ids` has read this file before, and would have refused a broken one.
    eos = json.loads(path.read_text(encoding="utf-8")).get("eos_token")
    text = eos.get("content") if isinstance(eos, dict) else eos
    return tokenizer.token_to_id(text) if isinstance(text, str) else None
