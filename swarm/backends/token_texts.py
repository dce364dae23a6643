"""The texts of a tokenizer's tokens, for llguidance. Runs in the server's processes and in those of vLLM."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llguidance import LLTokenizer, TokenizerWrapper


class TokenTexts:
    """The bytes of every token and a canonical tokenization, in the interface of `llguidance.TokenizerWrapper`.

    By default llguidance treats every added token that looks like a tag as special, so that no text contains it. The
    tokenizer may call such a token plain, for example <tool_call> of Hermes. Models then write text with it, and
    grammars must allow it.
    """

    bos_token_id: int | None = None

    def __init__(self, base: LLTokenizer, added_tokens: Mapping[int, Any]) -> None:
        """Set llguidance's own tokenizer, and the tokens that were added to its vocabulary."""
        plain = {
            token_id: added.content.encode()
            for token_id, added in added_tokens.items()
            if not added.special and token_id != base.eos_token
        }
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


def corrected(base: LLTokenizer, added_tokens: Mapping[int, Any]) -> LLTokenizer:
    """Return a tokenizer with which grammars may use every token that can occur in text."""
    texts = TokenizerWrapper(TokenTexts(base, added_tokens))
    return LLTokenizer(texts, n_vocab=base.vocab_size, eos_token=base.eos_token)
