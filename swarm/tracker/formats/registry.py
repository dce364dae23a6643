"""The tool-call formats by name, and which one a model speaks.

Place in the flow: codec.py asks once per model. A format is added here, and to the names that a job may give.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType

from swarm.tracker.formats.base import ToolFormat
from swarm.tracker.formats.hermes import OPEN, HermesFormat
from swarm.tracker.formats.llama3 import PYTHON_TAG, Llama3Format
from swarm.tracker.formats.mistral import OPEN as TOOL_CALLS
from swarm.tracker.formats.mistral import MistralFormat

AUTO = "auto"

_HERMES, _LLAMA3, _MISTRAL = HermesFormat(), Llama3Format(), MistralFormat()

TOOL_FORMATS: Mapping[str, ToolFormat] = MappingProxyType(
    {"hermes": _HERMES, "llama3_json": _LLAMA3, "mistral": _MISTRAL}
)

_SIGNS: tuple[tuple[str, ToolFormat], ...] = ((OPEN, _HERMES), (TOOL_CALLS, _MISTRAL), (PYTHON_TAG, _LLAMA3))
# Llama 3.2's template shows its format to the model only in these words.
_LLAMA3_WORDS = '{"name": function name, "parameters":'


def tool_format(template: str, vocabulary: Collection[str]) -> ToolFormat:
    """The format of a chat template; where it shows none, that of the tokens the vocabulary has; else Hermes.

    Models are tuned on each other, so that a vocabulary may hold another format's tokens: the template decides.
    """
    for sign, form in (*_SIGNS, (_LLAMA3_WORDS, _LLAMA3)):
        if sign in template:
            return form
    return next((form for sign, form in reversed(_SIGNS) if sign in vocabulary), _HERMES)
