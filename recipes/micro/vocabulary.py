# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
"""The tokenizer of micro, which reads common words of instructions whole and everything else by character."""

from __future__ import annotations

import re

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from recipes.micro.words import FUNCTION_WORDS, SENTENCE_STARTS, WHOLE_WORDS
from recipes.nano.vocabulary import END, PAD, START, TAGS, wrap

ROLES = ("system\n", "user\n", "assistant\n")
JSON_WORDS = (
    "type", "function", "name", "description", "parameters", "properties", "object", "string", "integer", "number",
    "required", "arguments", "expression", "calculator", "answer",
)  # fmt: skip
"""Words that are one token together with the quotation marks around them."""
MARKS = (
    ", ", ": ", ". ", "? ", "! ", "; ", ".\n", "?\n", ":\n", ",\n", "\n\n", ".\n\n", ":\n\n", "?\n\n", '": ', '", ',
    "', ", " = ", " + ", " - ", " * ", " -> ", ' "', " '", " (", '{"answer": ', '{"name": ', '"}', "}}", "```",
    "<answer>", "</answer>",
)  # fmt: skip
"""Runs of marks that are one token."""


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Return the tokenizer, which is always the same."""
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    spelled = sorted(pre_tokenizers.ByteLevel.alphabet())
    quoted = [f'"{word}"' for word in JSON_WORDS]
    whole = [f" {word}" for word in (*WHOLE_WORDS, *SENTENCE_STARTS) if len(word) > 1]
    starts = [word for word in (*SENTENCE_STARTS, *FUNCTION_WORDS) if len(word) > 1]
    pieces = [_as_bytes(byte_level, text) for text in (*ROLES, *quoted, *MARKS, *whole, *starts)]
    vocabulary = {token: number for number, token in enumerate(dict.fromkeys([PAD, START, END, *spelled, *pieces]))}
    bpe = Tokenizer(models.BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    # Longer runs come first, so that none is split by a shorter run that it begins with.
    runs = sorted((*ROLES, *quoted, *MARKS), key=len, reverse=True)
    pattern = "|".join([*(_literal(run) for run in runs), " ?[A-Za-z]{2,}", r"[\s\S]"])
    bpe.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), byte_level])
    bpe.decoder = decoders.ByteLevel()
    bpe.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in (PAD, START, END)])
    bpe.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TAGS])
    return wrap(bpe)


def _as_bytes(byte_level: pre_tokenizers.ByteLevel, text: str) -> str:
    """Return the text as byte-level vocabularies write it, where a space is a visible letter."""
    return "".join(piece for piece, _ in byte_level.pre_tokenize_str(text))


def _literal(text: str) -> str:
    """Return a regular expression that matches exactly `text`."""
    return re.sub(r"([][{}()*+.?|^$\\/-])", r"\\\1", text)
