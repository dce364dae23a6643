# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""The loading of weights that fit their model: every tensor is there, in its shape, and there is no other one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

SHOWN = 3


class UnfitWeights(ValueError):
    """Weights that are not those of their model. The message names the tensors that differ."""


def load_fitting(loader: Any, directory: Path, **options: Any) -> Any:
    """Return the model that `loader`, a class of transformers, reads from a directory.

    Transformers itself fills missing tensors with random numbers and leaves unknown ones out. Raise UnfitWeights, and
    what transformers raises.
    """
    module, found = loader.from_pretrained(
        directory, local_files_only=True, output_loading_info=True, ignore_mismatched_sizes=True, **options
    )
    _refuse([*_differences(found)])
    return module


def check_fit(directory: Path) -> None:
    """Raise UnfitWeights if the weights in a directory are not those of its configuration. Nothing is loaded."""
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        load_fitting(AutoModelForCausalLM, directory, device_map="meta")
    except NotImplementedError:
        # A tied head that is stored all the same is compared with the embeddings, for which there are no numbers here.
        config: Any = AutoConfig.from_pretrained(directory, local_files_only=True)
        config.get_text_config().tie_word_embeddings = False
        load_fitting(AutoModelForCausalLM, directory, device_map="meta", config=config)


def shapes_of(weights: Mapping[str, Any]) -> dict[str, Sequence[int]]:
    return {name: weight.shape for name, weight in weights.items()}


def refuse_other_shapes(stored: Mapping[str, Sequence[int]], expected: Mapping[str, Sequence[int]]) -> None:
    """Raise UnfitWeights unless both have the same tensors, given as shapes by name."""
    missing, unexpected = expected.keys() - stored.keys(), stored.keys() - expected.keys()
    other = [(name, stored[name], expected[name]) for name in stored.keys() & expected.keys()]
    found = {"mismatched_keys": [each for each in other if tuple(each[1]) != tuple(each[2])]}
    _refuse([*_differences({"missing_keys": missing, "unexpected_keys": unexpected, **found})])


def _differences(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield each difference in words, from what transformers tells of a loading."""
    for name in sorted(found.get("missing_keys", ())):
        yield f"{name} is missing"
    for name in sorted(found.get("unexpected_keys", ())):
        yield f"{name} is no tensor of the model"
    for name, stored, expected in sorted(found.get("mismatched_keys", ())):
        yield f"{name} has the shape {_shape(stored)} in place of {_shape(expected)}"


def _shape(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "of one number"


def _refuse(differences: Sequence[str]) -> None:
    if differences:
        more = f"; and {len(differences) - SHOWN} more" if len(differences) > SHOWN else ""
        raise UnfitWeights("; ".join(differences[:SHOWN]) + more)
