"""The packages that the local engine needs on a machine with PyTorch and transformers, one a line as `name==version`.

Place in the flow: scripts/carry_to_gpu.sh downloads what is printed here. The requirements are read from what is
installed, and the versions from constraints.txt. It does not know what the other machine really has.
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"
PRESENT = ("torch",)
"""What the other machine has, with all that it requires."""
ANY_VERSION = frozenset({"numpy", "hf-xet"})
"""What transformers brings along there; it is large, and whatever version it has serves. The rest of what transformers
requires is small and carried in our versions, as is transformers itself: verl names the newest that it works with."""
NOT_IMPORTED = frozenset(
    {
        "datasets", "pandas", "pyarrow", "pybind11", "pylatexenc", "ray", "tensorboard", "torchdata", "wandb",
    }
)  # fmt: skip
"""What verl requires for its own trainers: the local engine imports its losses and configurations alone."""
TEST_TOOLS = ("pytest", "pytest-timeout", "pytest-xdist", "hypothesis")
"""What the contract tests need, which `bench gpu` runs."""


def main() -> None:
    versions = read_versions(CONSTRAINTS)
    wanted = closure(("swarm-researcher",), extra="server") | closure(TEST_TOOLS)
    carried = wanted - closure(PRESENT) - ANY_VERSION - {"swarm-researcher"}
    if unknown := sorted(carried - versions.keys()):
        sys.exit(f"wheels_to_carry: constraints.txt has no version of {', '.join(unknown)}: run make upgrade")
    sys.stdout.writelines(f"{name}=={versions[name]}\n" for name in sorted(carried))


def read_versions(path: Path) -> dict[str, str]:
    """Return the version of each package, by its canonical name."""
    pinned = re.findall(r"^([\w.-]+)==(\S+)$", path.read_text(encoding="utf-8"), re.M)
    return {canonicalize_name(name): version for name, version in pinned}


def closure(names: tuple[str, ...], extra: str = "") -> set[str]:
    """Return the packages and all that they require, without what nothing of the local engine imports.

    `extra` is an extra of the first ones; other extras are those that a requirement names.
    """
    found: set[tuple[str, frozenset[str]]] = set()
    waiting = [(canonicalize_name(name), frozenset({extra})) for name in names]
    while waiting:
        name, extras = waiting.pop()
        if (name, extras) in found or name in NOT_IMPORTED:
            continue
        found.add((name, extras))
        try:
            needed = [Requirement(line) for line in requires(name) or []]
        except PackageNotFoundError:
            continue  # a requirement of another system or another Python
        for each in needed:
            if each.marker is None or any(each.marker.evaluate({"extra": wanted}) for wanted in extras | {""}):
                waiting.append((canonicalize_name(each.name), frozenset(each.extras)))
    return {name for name, _ in found}


if __name__ == "__main__":
    main()
