"""Differences between configurations and between programs."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from ui import formats

NAMING = ("project_name", "experiment_name", "seed")
"""Settings that tell runs apart and say nothing about the treatment."""


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings by dotted names; lists stay whole."""
    flat: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def differing_settings(configs: Sequence[tuple[str, Mapping[str, Any]]]) -> pd.DataFrame:
    """Return one row per setting that differs, and one column per (label, config), all text.

    The index is the setting. The settings in `NAMING` are left out, and a setting that a config does not have is
    marked.
    """
    flats = [flatten(config) for _, config in configs]
    names = sorted({name for flat in flats for name in flat} - set(NAMING))
    rows = {formats.printable(name): [_text(flat, name) for flat in flats] for name in names}
    differing = {name: values for name, values in rows.items() if len(set(values)) > 1}
    frame = pd.DataFrame.from_dict(differing, orient="index", columns=[label for label, _ in configs])
    return frame.rename_axis("Setting")


def code_diff(old: str, new: str, *, old_name: str, new_name: str) -> str:
    """Return a unified diff; empty if the texts are the same."""
    lines = difflib.unified_diff(
        old.splitlines(), new.splitlines(), fromfile=old_name, tofile=new_name, lineterm="", n=4
    )
    return formats.printable("\n".join(lines))


def _text(flat: Mapping[str, Any], name: str) -> str:
    return formats.printable(formats.setting(flat[name])) if name in flat else formats.MISSING
