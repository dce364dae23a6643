"""A correction of grammars, which may then use every token that can occur in text."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportMissingImports=false, reportUnknownParameterType=false

from __future__ import annotations

from typing import Any

import llguidance.hf
from llguidance import LLTokenizer
from token_texts import corrected


def install() -> None:
    """Correct llguidance's reading of Hugging Face tokenizers in this process. May be called repeatedly."""
    original = llguidance.hf.from_tokenizer
    if getattr(original, "spells_plain_tokens", False):
        return

    def from_tokenizer(hf_tokenizer: Any, *arguments: Any, **options: Any) -> LLTokenizer:
        return corrected(original(hf_tokenizer, *arguments, **options), hf_tokenizer.added_tokens_decoder)

    from_tokenizer.spells_plain_tokens = True  # type: ignore[attr-defined]
    llguidance.hf.from_tokenizer = from_tokenizer
