"""What a model directory says of its model without loading it: size, vocabulary, end tokens, how text is written.

Place in the flow: the engine reads it once per start. Works from the files alone; knows no tensors.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from tokenizers import Tokenizer

from swarm.errors import EngineFailure
from swarm.model_path import read_stop_ids, read_tokenizer

LARGEST_HEADER: Final = 2**28
"""Bytes. The file format allows 100 MB."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """`parameters` is 0 for weights that are not in safetensors files; `vocabulary` is the width of the logits.

    `stop_ids` end every completion; `eos_id` is the one of them that the tokenizer itself knows, None if it knows none.
    """

    parameters: int
    vocabulary: int
    stop_ids: frozenset[int]
    eos_id: int | None
    tokenizer: Tokenizer

    def decode(self, token_ids: Sequence[int]) -> str:
        return self.tokenizer.decode(list(token_ids), skip_special_tokens=False)


def read_facts(directory: Path) -> ModelFacts:
    """Raises EngineFailure if a file is missing or broken."""
    tokenizer = read_tokenizer(directory)
    return ModelFacts(
        parameters=sum(_count(path) for path in sorted(directory.glob("*.safetensors"))),
        vocabulary=_vocabulary(directory / "config.json"),
        stop_ids=read_stop_ids(directory, tokenizer),
        eos_id=_eos_id(directory / "tokenizer_config.json", tokenizer),
        tokenizer=tokenizer,
    )


def _count(path: Path) -> int:
    """Elements of all tensors of a file: its header is JSON after 8 bytes that give its length, lowest first."""
    try:
        with path.open("rb") as opened:
            (length,) = struct.unpack("<Q", opened.read(8))
            if length > LARGEST_HEADER:
                raise ValueError("its header is too long")
            header: dict[str, dict[str, Any]] = json.loads(opened.read(length))
    except (OSError, ValueError, struct.error) as error:
        raise EngineFailure(f"{path}: not a safetensors file: {error}") from error
    return sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")


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
    # `read_stop_ids` has read this file before, and refused a broken one.
    eos = json.loads(path.read_text(encoding="utf-8")).get("eos_token")
    text = eos.get("content") if isinstance(eos, dict) else eos
    return tokenizer.token_to_id(text) if isinstance(text, str) else None
