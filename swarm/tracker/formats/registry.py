"""The tool-call formats by name, and the choice of a model's format."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType

from swarm.tracker.formats.base import ToolFormat
from swarm.tracker.formats.hermes import HermesFormat
from swarm.tracker.formats.llama3 import Llama3Format
from swarm.tracker.formats.mistral import MistralFormat

AUTO = "auto"

_HERMES, _LLAMA3, _MISTRAL = HermesFormat(), Llama3Format(), MistralFormat()

TOOL_FORMATS: Mapping[str, ToolFormat] = MappingProxyType({each.name: each for each in (_HERMES, _LLAMA3, _MISTRAL)})

_SIGNS = tuple((each.marks[0], each) for each in (_HERMES, _MISTRAL, _LLAMA3))
# Llama 3.2's template describes its format to the model in these words alone.
_LLAMA3_WORDS = '{"name": function name, "parameters":'


def tool_format(template: str, vocabulary: Collection[str]) -> ToolFormat:
    """Return the format that a chat template shows, else the format whose tokens the vocabulary has, else Hermes.

    The template comes first: models are tuned from each other, so a vocabulary may contain another format's tokens.
    """
    for sign, form in (*_SIGNS, (_LLAMA3_WORDS, _LLAMA3)):
        if sign in template:
            return form
    return next((form for sign, form in reversed(_SIGNS) if sign in vocabulary), _HERMES)
