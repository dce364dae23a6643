"""Prints the lines of code of each folder: without blank lines, comments and docstrings.

python scripts/count_lines.py [FOLDER...]    by default the packages, the scripts and the tests
"""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).parents[1]
PRODUCT = ("swarm", "researcher", "experiments_db", "ui", "bench", "recipes", "scripts")
NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def count_lines(source: str) -> int:
    """Return the number of lines with code of a module."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        match node:
            case (
                ast.Module(body=[ast.Expr(ast.Constant(str())) as docstring, *_])
                | ast.ClassDef(body=[ast.Expr(ast.Constant(str())) as docstring, *_])
                | ast.FunctionDef(body=[ast.Expr(ast.Constant(str())) as docstring, *_])
                | ast.AsyncFunctionDef(body=[ast.Expr(ast.Constant(str())) as docstring, *_])
            ):
                lines.difference_update(range(docstring.lineno, (docstring.end_lineno or docstring.lineno) + 1))
            case _:
                pass
    return len(lines)


def count_folder(folder: str) -> int:
    """Return the lines of code of the files of a folder that git tracks."""
    listed = subprocess.run(["git", "ls-files", "-z", folder], cwd=ROOT, capture_output=True, text=True, check=True)
    paths = [ROOT / name for name in listed.stdout.split("\0") if name.endswith(".py")]
    return sum(count_lines(path.read_text(encoding="utf-8")) for path in paths if path.exists())


def main(folders: list[str]) -> None:
    counts = {folder: count_folder(folder) for folder in folders or (*PRODUCT, "tests")}
    product = sum(count for folder, count in counts.items() if folder != "tests")
    parts = ", ".join(f"{folder} {count:,}" for folder, count in counts.items())
    sys.stdout.write(f"lines of code: {parts}; without tests {product:,}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
