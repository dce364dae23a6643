"""Says whether modules of the tree import each other in a circle; exit code 1 if so.

Imports inside functions count. Those for type checkers alone do not: they are never carried out.

python scripts/check_import_cycles.py
"""

from __future__ import annotations

import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from grimp import build_graph

PACKAGES = ("swarm", "researcher", "experiments_db", "ui", "prompts")


def main() -> None:
    # The tree beside this script, whatever is installed.
    sys.path.insert(0, str(Path(__file__).parents[1]))
    graph = build_graph(*PACKAGES, exclude_type_checking_imports=True, cache_dir=None)
    try:
        TopologicalSorter({each: graph.find_modules_directly_imported_by(each) for each in graph.modules}).prepare()
    except CycleError as error:
        circle: list[str] = error.args[1]
        sys.exit(f"a circle of imports: {' -> '.join(reversed(circle))}")


if __name__ == "__main__":
    main()
