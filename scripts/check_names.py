"""Checks that no two public classes of the packages have the same name.

python scripts/check_names.py    name each class that is defined twice, with its files; exit code 1 if there is one

It parses the files and imports none of them. A class whose name begins with an underscore belongs to its module alone.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

ROOT = Path(__file__).parents[1]
PACKAGES = ("swarm", "researcher", "experiments_db", "ui", "prompts", "bench", "recipes")
ALLOWED: Mapping[str, str] = MappingProxyType({})
"""Names that may be defined more than once, each with the reason."""


def repeated(root: Path = ROOT) -> Iterator[str]:
    """Yield one line for each name of several public classes, and for each exception that is not needed."""
    places: defaultdict[str, list[str]] = defaultdict(list)
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), path)):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places[node.name].append(f"{path.relative_to(root)}:{node.lineno}")
    for name, found in sorted(places.items()):
        if len(found) > 1 and name not in ALLOWED:
            yield f"class {name} is defined in {', '.join(found)}: rename all but one, or make it private (_{name})"
    yield from (f"ALLOWED names {name}, which is unique: remove it" for name in ALLOWED if len(places[name]) < 2)


def main() -> None:
    if lines := list(repeated()):
        sys.exit("\n".join(lines))


if __name__ == "__main__":
    main()
