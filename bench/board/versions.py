"""The record of the board: a JSON file for each version and kind of processor, kept under `bench/results`.

Place in the flow: command.py stores here what a comparison found, checkout.py is given the newest commits, table.py
reads all. Knows nothing of how anything is measured.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.board.checkout import Tree
from bench.board.figures import Probe
from bench.board.verdict import Change
from bench.results import Conditions

DIRECTORY = Path(__file__).parents[1] / "results"
SCHEMA = 1
DIRTY = "-dirty"


class StoredResultInvalid(Exception):
    """A file of results cannot be read; the message names it, in one line."""


def build_document(
    new: Tree, old: Tree, conditions: Conditions, changes: Mapping[str, Change], skipped: Mapping[Probe, str]
) -> dict[str, Any]:
    """What is stored, and printed with `--json`."""
    return {
        "schema": SCHEMA,
        "version": new.version,
        "commit": new.commit,
        "against": {"version": old.version, "commit": old.commit},
        "date": conditions.date,
        "cpu": conditions.cpu,
        "cores": conditions.cores,
        "load_1m": conditions.load_1m,
        "seconds": round(conditions.seconds),
        "figures": {name: asdict(change) for name, change in changes.items()},
        "skipped": dict(skipped),
    }


def store_document(directory: Path, document: Mapping[str, Any]) -> Path:
    """Another measurement of the same version on such a machine takes the place of the first one. Raises OSError."""
    cpu = re.sub(r"[^a-z0-9]+", "-", document["cpu"].lower()).strip("-")
    path = directory / f"{document['version']}-{document['commit']}-{cpu}-{document['cores']}.json"
    directory.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return path


def read_documents(directory: Path) -> list[dict[str, Any]]:
    """Those of commits, newest measurement first; a changed working tree is no version. Raises StoredResultInvalid."""
    documents: list[dict[str, Any]] = []
    for path in sorted(directory.glob("*.json")):
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            is_version = document["schema"] == SCHEMA and not document["commit"].endswith(DIRTY)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            raise StoredResultInvalid(f"{path} holds no results: restore or remove it") from None
        if is_version:
            documents.append(document)
    return sorted(documents, key=lambda document: document["date"], reverse=True)
