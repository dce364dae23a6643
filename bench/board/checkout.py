"""The two versions that are compared, each as files in a directory of its own.

Place in the flow: command.py opens both before anything is measured. Both are copies, so that an editor changes nothing
that is being measured, and neither lies on another file system than the other. Knows git, and nothing of benchmarks.
"""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import tarfile
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GIT_TIMEOUT_S = 60.0
SHA_LENGTH = 12
NOT_MEASURED = ("docs", "bench/results")
"""A change of these alone does not make another version: to note a measurement changes both."""


class CheckoutError(Exception):
    """What was asked for is not in the repository, in one line."""


@dataclass(frozen=True, slots=True)
class Tree:
    """A version on disk. `commit` is abbreviated, and ends in `-dirty` if what is measured differs from that commit."""

    path: Path
    version: str
    commit: str

    @property
    def name(self) -> str:
        return f"{self.version} ({self.commit})"


class Repository:
    """The checkout that holds `root`. Every method raises CheckoutError where git refuses."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def find_commit(self, reference: str) -> str:
        """The commit that a branch, a tag or an abbreviated id stands for, abbreviated."""
        found = self._ask("rev-parse", "--verify", "--quiet", "--end-of-options", f"{reference}^{{commit}}", default="")
        if not found:
            raise CheckoutError(f"no version {reference!r} in this repository: name a commit, a tag or a branch")
        return found[:SHA_LENGTH]

    def name_working_tree(self) -> str:
        """The commit of HEAD, marked if anything but documents and results differs from it."""
        commit = self.find_commit("HEAD")
        excluded = [f":(exclude,top){name}" for name in NOT_MEASURED]
        return f"{commit}-dirty" if self._ask("status", "--porcelain", "--", ":(top)", *excluded) else commit

    def find_previous(self, stored: Iterable[str]) -> str:
        """The commit to compare with where none is named.

        The first of: the commits in `stored` (newest first), the tags (newest first), HEAD if the working tree differs
        from it, and the commit before HEAD. What the working tree itself is, and what is no part of its history, does
        not count.
        """
        measured = self.name_working_tree()
        tags = self._ask("for-each-ref", "--sort=-creatordate", "--format=%(refname)", "refs/tags").split()
        for candidate in (*stored, *tags, "HEAD"):
            try:
                commit = self.find_commit(candidate)
            except CheckoutError:
                continue
            if commit != measured and self._is_in_history(commit):
                return commit
        try:
            return self.find_commit("HEAD~1")
        except CheckoutError:
            raise CheckoutError("there is no earlier version in this repository: name one with --against") from None

    def copy_working_tree(self, directory: Path) -> Tree:
        """All files that git tracks or would track, as they are now."""
        for name in self._ask("ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0"):
            source = self._root / name
            if not name or not (source.is_file() or source.is_symlink()):
                continue
            target = directory / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
        return Tree(directory, read_version(directory), self.name_working_tree())

    def check_out(self, commit: str, directory: Path) -> Tree:
        """The files of a commit. The repository itself keeps no trace of it."""
        with tarfile.open(fileobj=io.BytesIO(self._run("archive", "--format=tar", commit))) as archive:
            # Python has the filter since 3.11.4, and would warn of its absence from 3.12 on; the archive is our own.
            archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)
            archive.extractall(directory)
        return Tree(directory, read_version(directory), commit)

    def _is_in_history(self, commit: str) -> bool:
        return self._ask("merge-base", commit, "HEAD", default="")[:SHA_LENGTH] == commit

    def _ask(self, *arguments: str, default: str | None = None) -> str:
        return self._run(*arguments, default=default).decode("utf-8", "surrogateescape").strip()

    def _run(self, *arguments: str, default: str | None = None) -> bytes:
        """`default` is the answer where git fails."""
        try:
            done = subprocess.run(["git", *arguments], cwd=self._root, capture_output=True, timeout=GIT_TIMEOUT_S)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CheckoutError(f"git does not run: {error}") from error
        if done.returncode == 0:
            return done.stdout
        if default is not None:
            return default.encode()
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise CheckoutError(f"git {arguments[0]} failed: {said[-1] if said else done.returncode}")


def read_version(tree: Path) -> str:
    """Raises CheckoutError for a tree that does not hold the service."""
    try:
        text = (tree / "swarm" / "__init__.py").read_text(encoding="utf-8")
    except OSError:
        raise CheckoutError("that version has no swarm/__init__.py: nothing there can be measured") from None
    found = re.search(r'^__version__ = "([^"]+)"', text, re.MULTILINE)
    return found.group(1) if found else "unknown"


def find_changed_dependencies(new: Tree, old: Tree) -> list[str]:
    """Requirements of the service that one of the two versions has and the other has not, sorted."""
    return sorted(_requirements(new.path) ^ _requirements(old.path))


def _requirements(tree: Path) -> set[str]:
    try:
        project: dict[str, Any] = tomllib.loads((tree / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    except (OSError, KeyError):
        return set()
    return {*project.get("dependencies", ()), *project.get("optional-dependencies", {}).get("server", ())}
