"""Conversion of a GGUF file into a directory that Hugging Face libraries load."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import io
import json
import sys
from collections.abc import Mapping
from contextlib import nullcontext, redirect_stderr
from pathlib import Path
from types import MappingProxyType
from typing import Any

from swarm.backends.weights import load_fitting
from swarm.errors import BadRequest, Unavailable

_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_DIGITS = {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, _BYTES]}
_SPLITS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {"default": _BYTES, "gpt-2": _BYTES, "smollm": _DIGITS, "starcoder": _DIGITS}
)
"""How a byte-level tokenizer splits a text into words, by the name that a GGUF file gives to it."""
_OWN_READERS = frozenset({"qwen2", "qwen2_moe", "qwen3", "qwen3_moe"})
"""The architectures whose way to split a text transformers knows itself."""


def convert_gguf(gguf: Path, directory: Path, dtype: str) -> None:
    """Write the model of a GGUF file into a directory, with its weights as `dtype`.

    Quantized weights are de-quantized. The tokens that end and fill a text are those that the file names by their ids.
    Raises BadRequest for a file that is no model that transformers knows, or whose tokenizer cannot be rebuilt exactly,
    and Unavailable if the disk is full.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    place: dict[str, Any] = {"gguf_file": gguf.name}
    # Their bars are of use on a terminal alone.
    bars = nullcontext() if sys.stderr.isatty() else redirect_stderr(io.StringIO())
    try:
        split = _read_split(gguf)
        with bars:
            tokenizer: Any = AutoTokenizer.from_pretrained(gguf.parent, local_files_only=True, **place)
            model: Any = load_fitting(AutoModelForCausalLM, gguf.parent, dtype=getattr(torch, dtype), **place)
    except BadRequest:
        raise
    # The readers of transformers and gguf raise whatever a file of another form leads them to.
    except Exception as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise BadRequest(f"{gguf} cannot be converted: {reason}", param="path") from error
    try:
        _name_ends(tokenizer, model)
        tokenizer.save_pretrained(directory)
        with bars:
            model.save_pretrained(directory)
        if split is not None:
            _rewrite_steps(directory / "tokenizer.json", split)
    except OSError as error:
        raise Unavailable(f"{directory} cannot be written: {error.strerror or error}") from error


def _read_split(gguf: Path) -> Mapping[str, Any] | None:
    """Return how the tokenizer of a file splits a text; None where transformers reads it from the file as it is.

    Raises BadRequest for a way that is not known here: other tokens would be trained than the model knows.
    """
    from gguf import GGUFReader

    fields = GGUFReader(gguf).fields

    def text(name: str) -> str:
        return str(fields[name].contents()) if name in fields else ""

    if text("tokenizer.ggml.model") != "gpt2" or text("general.architecture") in _OWN_READERS:
        return None
    name = text("tokenizer.ggml.pre") or "default"
    if name not in _SPLITS:
        raise BadRequest(
            f"{gguf} has a tokenizer of the kind {name!r}, which cannot be rebuilt exactly from a GGUF file: add the "
            "model's Hugging Face folder instead",
            param="path",
        )
    return _SPLITS[name]


def _name_ends(tokenizer: Any, model: Any) -> None:
    """Give the tokenizer the tokens that end and fill a text, by the ids of the model's configuration.

    The reader of GGUF files in transformers takes the token that begins a text for the one that ends it.
    """
    config = model.generation_config
    end = config.eos_token_id
    if isinstance(end, int):
        tokenizer.eos_token = tokenizer.convert_ids_to_tokens(end)
    fill = config.pad_token_id if isinstance(config.pad_token_id, int) else end
    if isinstance(fill, int):
        tokenizer.pad_token = tokenizer.convert_ids_to_tokens(fill)
    tokenizer.model_max_length = model.config.max_position_embeddings


def _rewrite_steps(path: Path, split: Mapping[str, Any]) -> None:
    """Give a byte-level tokenizer its own steps before and after the vocabulary, which transformers guesses.

    No step puts a token before a text: the chat template writes all tokens itself.
    """
    data = json.loads(path.read_text(encoding="utf-8"))
    data |= {"normalizer": None, "pre_tokenizer": split, "post_processor": None, "decoder": _BYTES}
    path.write_text(json.dumps(data, ensure_ascii=False), encoding="utf-8")
