"""An install without extras: every module that is imported has an extra that a command can name."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from swarm.extras import MODULES, missing_extra

ROOT = Path(__file__).parents[2]
PACKAGES = ("swarm", "researcher", "experiments_db", "ui", "prompts")
BASE = {"httpcore", "httpx", "pydantic", "pydantic_core", "yaml"}


def imported_modules() -> set[str]:
    found: set[str] = set()
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found.update(alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.partition(".")[0])
    # Inside vLLM, a module of this package goes by its own name.
    return found - set(sys.stdlib_module_names) - set(PACKAGES) - {"token_texts"}


def test_every_library_that_is_imported_has_an_extra() -> None:
    assert imported_modules() <= BASE.union(*MODULES.values())


def test_the_extra_of_the_command_itself_is_named_where_several_bring_a_module() -> None:
    missing = ModuleNotFoundError("", name="typer")
    assert "[server]" in (missing_extra(missing, "server") or "")
    assert "[researcher]" in (missing_extra(missing, "researcher") or "")
    assert "[server]" in (missing_extra(ModuleNotFoundError("", name="torch.nn"), "researcher") or "")
    assert missing_extra(ModuleNotFoundError("", name="of_the_user"), "server") is None


@pytest.mark.parametrize(
    ("module", "run", "words"),
    [
        ("typer", "import swarm.cli; swarm.cli.main()", "swarm: typer is not installed"),
        ("uvloop", "import sys, swarm.cli; sys.argv[1:] = ['start']; swarm.cli.main()", "swarm-researcher[server]"),
        ("typer", "import researcher.cli as e; e.main()", "swarm-researcher[researcher]"),
        ("filelock", "import sys, researcher.cli as e; sys.argv[1:] = ['list']; e.main()", "[researcher]"),
        ("streamlit", "import ui.app", "swarm-researcher[ui]"),
    ],
)
def test_a_command_without_its_extra_says_in_one_line_what_to_install(module: str, run: str, words: str) -> None:
    code = f"import sys; sys.modules[{module!r}] = None\n{run}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and words in done.stderr
