# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportAttributeAccessIssue=false
"""The tokenizer of nano: a byte-level BPE of 384 tokens that reads digits and capitals one by one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from recipes.nano.demos import Demo

# Numbers and words in capitals are not merged, so that a small model sees their characters.
VOCAB_SIZE = 384
PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
# These are not special tokens, because parsers of tool calls look for them in decoded text.
TAGS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<tools>", "</tools>")
MAX_LENGTH = 2048
_TEMPLATE_PATH = Path(__file__).with_name("chat_template.jinja")
_CHARACTERWISE = Regex(r"[0-9]|[A-Z](?![a-z])")


def chat_template() -> str:
    return _TEMPLATE_PATH.read_text(encoding="utf-8")


def train_tokenizer(demos: Sequence[Demo]) -> PreTrainedTokenizerFast:
    """Return a tokenizer whose merges are learned from `demos` as the chat template renders them."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(_CHARACTERWISE, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    bpe.decoder = decoders.ByteLevel()
    untrained = wrap(bpe)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(TAGS),
        min_frequency=20,
        special_tokens=[PAD, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(_plain_pieces(render(untrained, demos)), trainer)
    bpe.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TAGS])
    return wrap(bpe)


def render(tokenizer: PreTrainedTokenizerFast, demos: Iterable[Demo]) -> list[str]:
    """Return each demonstration as text, rendered by the chat template alone."""
    untyped: Any = tokenizer
    texts: list[str] = []
    for demo in demos:
        texts.append(untyped.apply_chat_template(list(demo.messages), tools=list(demo.tools) or None, tokenize=False))
    return texts


def encode(tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> list[tuple[list[int], list[bool]]]:
    """Return the token ids of rendered conversations, with a mask that is True on the assistant's tokens."""
    untyped: Any = tokenizer
    start, end = untyped.convert_tokens_to_ids([START, END])
    header = untyped.encode("assistant\n", add_special_tokens=False)
    batch = untyped(list(texts), add_special_tokens=False)["input_ids"]
    return [(list(ids), _assistant_mask(list(ids), [start, *header], end)) for ids in batch]


def _assistant_mask(ids: list[int], header: list[int], end: int) -> list[bool]:
    mask = [False] * len(ids)
    position = 0
    while position < len(ids):
        if ids[position : position + len(header)] == header:
            position += len(header)
            stop = ids.index(end, position) + 1
            mask[position:stop] = [True] * (stop - position)
            position = stop
        else:
            position += 1
    return mask


def wrap(bpe: Tokenizer) -> PreTrainedTokenizerFast:
    """Return the tokenizer with the control tokens and the chat template that all bundled models share."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=END,
        pad_token=PAD,
        model_max_length=MAX_LENGTH,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = chat_template()
    return tokenizer


def _plain_pieces(texts: Iterable[str]) -> Iterable[str]:
    """Yield the texts between control tokens and tags, each of which is one token already."""
    controls = re.compile("|".join(re.escape(token) for token in (PAD, START, END, *TAGS)))
    for text in texts:
        yield from filter(None, controls.split(text))
