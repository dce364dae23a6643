"""A correction of grammars, which may then use every token that can occur in text."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUnknownParameterType=false

from __future__ import annotations

from typing import Any

import llguidance.hf
from llguidance import LLTokenizer, TokenizerWrapper


def install() -> None:
    """Correct llguidance's reading of Hugging Face tokenizers in this process. May be called repeatedly."""
    original = llguidance.hf.from_tokenizer
    if getattr(original, "spells_plain_tokens", False):
        return

    def from_tokenizer(hf_tokenizer: Any, *arguments: Any, **options: Any) -> LLTokenizer:
        base = original(hf_tokenizer, *arguments, **options)
        plain = {
            token_id: added.content.encode()
            for token_id, added in hf_tokenizer.added_tokens_decoder.items()
            if not added.special and token_id != base.eos_token
        }
        if not plain:
            return base
        return LLTokenizer(TokenizerWrapper(TokenTexts(base, plain)), n_vocab=base.vocab_size, eos_token=base.eos_token)

    from_tokenizer.spells_plain_tokens = True  # type: ignore[attr-defined]
    llguidance.hf.from_tokenizer = from_tokenizer


class TokenTexts:
    """The bytes of every token and a canonical tokenization, in llguidance's interface of a tokenizer."""

    bos_token_id: int | None = None

    def __init__(self, base: LLTokenizer, plain: dict[int, bytes]) -> None:
        ids = range(base.vocab_size)
        self.eos_token_id = base.eos_token
        self.tokens = [plain[each] if each in plain else base.decode_bytes([each]) for each in ids]
        self.special_token_ids = [each for each in ids if base.is_special_token(each) and each not in plain]
        self._base = base

    def __call__(self, text: bytes | str) -> list[int]:
        data = text.encode() if isinstance(text, str) else text
        token_ids = self._base.tokenize_bytes(data)
        # A tokenizer that normalizes, or begins a text with a blank, does not return the text it received.
        if b"".join(self.tokens[each] for each in token_ids) == data:
            return token_ids
        return self._base.greedy_tokenize(data.decode(errors="replace"))
