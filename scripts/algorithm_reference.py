"""Writes the tables of docs/algorithms.md that say which of verl's estimators and losses each engine serves.

python scripts/algorithm_reference.py           rewrite the tables
python scripts/algorithm_reference.py --check   say whether they are up to date; exit code 1 if not
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import get_args

from swarm.estimators import ESTIMATORS, Engine
from swarm.job import PolicyLoss

PAGE = Path(__file__).parents[1] / "docs" / "algorithms.md"
BEGIN, END = "<!-- Written by scripts/algorithm_reference.py. -->\n", "<!-- End of what is written. -->\n"


def tables() -> str:
    """Every estimator and loss that verl has by name, in alphabetical order."""
    engines: tuple[Engine, ...] = get_args(Engine)
    head = f"| {' | '.join(engines)} | why not |\n|---{'|---' * len(engines)}|---|\n"
    rows = "".join(_row(name, engines) for name in sorted(ESTIMATORS))
    losses = "".join(f"| `{name}` |{' yes |' * len(engines)} |\n" for name in sorted(get_args(PolicyLoss)))
    return f"| `algorithm` {head}{rows}\n| `policy_loss` {head}{losses}"


def page() -> str:
    """Return the whole page, with new tables."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{tables()}\n{END}{after}"


def _row(name: str, engines: tuple[Engine, ...]) -> str:
    reasons = {engine: ESTIMATORS[name].unserved.get(engine) for engine in engines}
    cells = " | ".join("no" if reasons[engine] else "yes" for engine in engines)
    why = "; ".join(dict.fromkeys(reason for reason in reasons.values() if reason))
    return f"| `{name}` | {cells} | {why} |\n"


def main(arguments: list[str]) -> int:
    if arguments == ["--check"]:
        return int(PAGE.read_text(encoding="utf-8") != page())
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
