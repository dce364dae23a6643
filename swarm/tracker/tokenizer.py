"""A model's tokenizer, read from local files, without transformers where that is not needed."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from jinja2 import Template, TemplateError
from tokenizers import AddedToken, Tokenizer

from swarm.errors import ContextLengthExceeded, EngineFailure, JobInvalid
from swarm.model_path import read_tokenizer
from swarm.tracker.template import compile_template, marks_replies

_CLASSES = frozenset({"TokenizersBackend", "PreTrainedTokenizerFast"})
_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_WITHOUT_EFFECT = frozenset({
    "backend", "clean_up_tokenization_spaces", "is_local", "local_files_only", "model_input_names", "model_max_length",
    "name_or_path", "padding_side", "tokenizer_class", "truncation_side",
})  # fmt: skip
"""Settings that change neither ids, nor the text of ids, nor the rendering of messages."""
_OTHER_FILES = ("added_tokens.json", "special_tokens_map.json", "additional_chat_templates")
_LARGEST_VOCABULARY = 100_000
"""The vocabulary size above which transformers looks for tokenizers of one maker that it must repair."""


class PlainTokenizer:
    """The part of a transformers tokenizer that a Codec needs."""

    def __init__(self, tokenizer: Tokenizer, chat_template: str, special_tokens_map: Mapping[str, str]) -> None:
        """Build a tokenizer. `special_tokens_map` names special tokens, which the template may read.

        Raise TemplateError if the template cannot be read.
        """
        self.chat_template = chat_template
        self.special_tokens_map = special_tokens_map
        self._tokenizer = tokenizer
        self._template: Template = compile_template(chat_template)

    def __len__(self) -> int:
        return self._tokenizer.get_vocab_size()

    @property
    def eos_token_id(self) -> int | None:
        """The token that ends a text, if one has that name."""
        text = self.special_tokens_map.get("eos_token")
        return None if text is None else self._tokenizer.token_to_id(text)

    @property
    def all_special_ids(self) -> list[int]:
        """The special tokens that have a name."""
        ids = (self._tokenizer.token_to_id(text) for text in dict.fromkeys(self.special_tokens_map.values()))
        return [token for token in ids if token is not None]

    @property
    def added_tokens_decoder(self) -> dict[int, AddedToken]:
        """The tokens outside the trained vocabulary, special or not, by id."""
        return self._tokenizer.get_added_tokens_decoder()

    def get_added_vocab(self) -> dict[str, int]:
        """Return the ids of the added tokens by their texts."""
        return {entry.content: token for token, entry in sorted(self.added_tokens_decoder.items())}

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Return the ids of a text, in which special tokens may be spelled out."""
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool) -> str:
        """Return the exact text of tokens. Raise ValueError if spaces are to be cleaned up."""
        if clean_up_tokenization_spaces:
            raise ValueError("the text of tokens is told as it is")
        return self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        tokenize: bool,
        **options: Any,
    ) -> str:
        """Return the text of the messages.

        Raise what the template raises, and ValueError if the caller asks for ids.
        """
        if tokenize:
            raise ValueError("a template makes text; encode it")
        return self._template.render(
            messages=conversation,
            tools=tools,
            documents=None,
            add_generation_prompt=add_generation_prompt,
            **{**self.special_tokens_map, **options},
        )


def read_plain_tokenizer(directory: Path) -> PlainTokenizer | None:
    """Return the tokenizer of a model directory.

    Return None if transformers has to read it, or has to report what is wrong with it.
    """
    settings, template = _read_settings(directory)
    if settings.get("tokenizer_class") not in _CLASSES or not template or marks_replies(template):
        return None
    if set(settings) - _WITHOUT_EFFECT - set(_NAMES) or any((directory / name).exists() for name in _OTHER_FILES):
        return None
    named = {name: settings[name] for name in _NAMES if settings.get(name) is not None}
    try:
        tokenizer = read_tokenizer(directory)
    except (EngineFailure, OSError):
        return None
    if tokenizer.get_vocab_size() > _LARGEST_VOCABULARY or not _are_special(tokenizer, named.values()):
        return None
    tokenizer.no_padding()
    tokenizer.no_truncation()
    try:
        return PlainTokenizer(tokenizer, template, named)
    except TemplateError:
        return None


def _read_settings(directory: Path) -> tuple[dict[str, Any], str | None]:
    """Return a tokenizer's settings without its chat template, and that template.

    Return no settings where they cannot be read.
    """
    template_file = directory / "chat_template.jinja"
    try:
        read: Any = json.loads((directory / "tokenizer_config.json").read_text(encoding="utf-8"))
        settings = cast("dict[str, Any]", read) if isinstance(read, dict) else {}
        template: object = settings.pop("chat_template", None)
        if template_file.is_file():
            template = template_file.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return {}, None
    return settings, template if isinstance(template, str) else None


def _are_special(tokenizer: Tokenizer, texts: Iterable[object]) -> bool:
    """Return whether each text is a special token already, in the form in which transformers would add it."""
    forms = {entry.content: entry for entry in tokenizer.get_added_tokens_decoder().values()}
    return all(
        isinstance(text, str) and text in forms and forms[text] == AddedToken(text, special=True, normalized=False)
        for text in texts
    )


def load_tokenizer(directory: Path) -> Any:
    """Return a tokenizer of transformers, or one that a Codec can use like it.

    Raise JobInvalid if it cannot be read.
    """
    plain = read_plain_tokenizer(directory)
    if plain is not None:
        return plain
    # transformers imports torch, which takes seconds.
    import transformers

    loader: Any = transformers.AutoTokenizer
    try:
        return loader.from_pretrained(str(directory), local_files_only=True)
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
