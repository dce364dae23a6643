"""A repository of its own for a test that changes the project's files or history."""

from __future__ import annotations

import subprocess
from pathlib import Path

from bench.board.checkout import Repository

ROOT = Path(__file__).parents[1]


def copy_repository(root: Path) -> Path:
    """Make `root` a repository whose only commit is this tree as it is now."""
    root.mkdir()
    Repository(ROOT).copy_working_tree(root)
    git = ["git", "-C", str(root), "-c", "user.name=test", "-c", "user.email=test@localhost"]
    for arguments in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message", "All of it"]):
        subprocess.run([*git, *arguments], check=True, timeout=60)
    return root
