"""A model's tokenizer, read from local files, and the encoding of text that may be too long for the model.

Place in the flow: below codec.py. This module knows nothing of chat templates.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from swarm.errors import ContextLengthExceeded, JobInvalid
from swarm.tracker.plain_tokenizer import read_plain_tokenizer


def read_tokenizer(directory: Path) -> Any:
    """Return a tokenizer of transformers, or one that a Codec can use like it.

    Raise JobInvalid if it cannot be read.
    """
    plain = read_plain_tokenizer(directory)
    if plain is not None:
        return plain
    try:
        return _tokenizer_class(directory).from_pretrained(str(directory), local_files_only=True)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise JobInvalid(f"tokenizer {directory} cannot be loaded: {reason}", param="model") from error


def special_ids(tokenizer: Any) -> frozenset[int]:
    added: dict[int, Any] = tokenizer.added_tokens_decoder
    return frozenset(tokenizer.all_special_ids) | {token for token, entry in added.items() if entry.special}


def generation_stops(directory: Path) -> tuple[int, ...]:
    """Return the `eos_token_id`s of a model directory's generation_config.json, if it has one."""
    try:
        config = json.loads((directory / "generation_config.json").read_text(encoding="utf-8"))
        named: Any = config.get("eos_token_id")
    except (OSError, ValueError, AttributeError):
        return ()
    if isinstance(named, int):
        return (named,)
    return tuple(cast("list[int]", named)) if isinstance(named, list) else ()


def _tokenizer_class(directory: Path) -> Any:
    """Return the transformers class to load with. The import is here because it loads torch, which takes seconds.

    AutoTokenizer finds the right class for any model, but it imports the code of every model, which doubles that time.
    A tokenizer that names no class of its own does not need it.
    """
    import transformers

    try:
        settings: Any = json.loads((directory / "tokenizer_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        settings = None
    untyped: Any = transformers
    named: object = cast("dict[str, Any]", settings).get("tokenizer_class") if isinstance(settings, dict) else None
    if named in {"TokenizersBackend", "PreTrainedTokenizerFast"}:
        return untyped.PreTrainedTokenizerFast
    return untyped.AutoTokenizer


FIRST_LOOK = 8
"""Characters per token of the context that are encoded first: about twice as many as fit."""

WIDENING = 4
MARGIN = 2
"""The beginning of a text may have a few more tokens alone than within the whole text, but never twice as many."""


def encode_within(encode: Callable[[str], tuple[int, ...]], text: str, context_length: int) -> tuple[int, ...]:
    """Return the ids of a text; a `context_length` of 0 is not known and sets no limit.

    Raise ContextLengthExceeded if the beginning of the text alone has more than twice as many tokens as the context.
    """
    if context_length:
        size = FIRST_LOOK * context_length
        while size < len(text):
            if len(encode(text[:size])) > MARGIN * context_length:
                raise ContextLengthExceeded(
                    f"the text has {len(text)} characters, far more than the context of {context_length} tokens holds:"
                    " shorten it"
                )
            size *= WIDENING
    return encode(text)
