"""Which version is compared with which, and that nothing of them stays."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.board.checkout import CheckoutError, Repository, Tree, find_changed_dependencies
from bench.board.command import check_out_both

Git = Callable[..., str]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "repository"


@pytest.fixture
def git(root: Path) -> Git:
    """Runs git in a repository with two commits, of versions 1.0 and 2.0."""
    root.mkdir()

    def run(*arguments: str) -> str:
        command = ["git", "-c", "user.name=test", "-c", "user.email=test@localhost", *arguments]
        return subprocess.run(command, cwd=root, check=True, capture_output=True, text=True, timeout=60).stdout.strip()

    run("init", "--quiet")
    for version in ("1.0", "2.0"):
        write(root / "swarm" / "__init__.py", f'__version__ = "{version}"\n')
        run("add", "--all")
        run("commit", "--quiet", "--message", version)
    return run


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def commit_of(git: Git, reference: str) -> str:
    return git("rev-parse", "--short=12", reference)


def test_both_versions_are_there_within_the_block_and_gone_after_it(git: Git, root: Path, tmp_path: Path) -> None:
    with check_out_both(None, tmp_path / "results", root) as (new, old):
        assert (new.version, new.commit) == ("2.0", commit_of(git, "HEAD"))
        assert (old.version, old.commit) == ("1.0", commit_of(git, "HEAD~1"))
        assert "2.0" in (new.path / "swarm" / "__init__.py").read_text()
        assert "1.0" in (old.path / "swarm" / "__init__.py").read_text()
    assert not new.path.exists() and not old.path.exists()
    assert git("status", "--porcelain") == "" and len(git("worktree", "list").splitlines()) == 1


@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_the_versions_are_removed_however_the_comparison_ends(
    git: Git, root: Path, tmp_path: Path, failure: type[BaseException]
) -> None:
    paths: list[Path] = []
    with pytest.raises(failure), check_out_both("HEAD~1", tmp_path, root) as trees:
        paths += [tree.path for tree in trees]
        raise failure
    assert len(paths) == 2 and not any(path.exists() for path in paths)


def test_a_changed_working_tree_is_measured_as_it_is_and_named_so(git: Git, root: Path, tmp_path: Path) -> None:
    write(root / "swarm" / "__init__.py", '__version__ = "3.0"\n')
    write(root / "swarm" / "new.py", "")
    write(root / ".gitignore", "runs/\n")
    write(root / "runs" / "large", "")
    with check_out_both(None, tmp_path, root) as (new, old):
        assert new.name == f"3.0 ({commit_of(git, 'HEAD')}-dirty)"
        assert (new.path / "swarm" / "new.py").exists() and not (new.path / "runs").exists()
        # What it was changed from comes before the commit before that.
        assert old.version == "2.0"


def test_a_file_that_was_removed_is_not_measured(git: Git, root: Path, tmp_path: Path) -> None:
    write(root / "swarm" / "second.py", "")
    git("add", "--all")
    (root / "swarm" / "second.py").unlink()
    with check_out_both(None, tmp_path, root) as (new, _):
        assert new.commit.endswith("-dirty") and not (new.path / "swarm" / "second.py").exists()


def test_notes_of_measurements_make_no_other_version(git: Git, root: Path) -> None:
    write(root / "docs" / "benchmarks.md", "")
    write(root / "bench" / "results" / "2.0.json", "{}")
    assert Repository(root).name_working_tree() == commit_of(git, "HEAD")
    write(root / "bench" / "engine.py", "")
    assert Repository(root).name_working_tree() == f"{commit_of(git, 'HEAD')}-dirty"


def test_the_previous_version_is_the_newest_stored_one_else_a_tag_else_the_commit_before(git: Git, root: Path) -> None:
    first = commit_of(git, "HEAD~1")
    for number in range(3):
        git("commit", "--quiet", "--allow-empty", "--message", str(number))
    repository, before = Repository(root), commit_of(git, "HEAD~1")
    assert repository.find_previous([]) == before
    git("tag", "v1", first)
    assert repository.find_previous([]) == first
    stored = commit_of(git, "HEAD~2")
    head = commit_of(git, "HEAD")
    git("branch", "aside", first)
    assert repository.find_previous(["000000000000", head, stored, before]) == stored


def test_a_commit_of_another_branch_is_no_previous_version(git: Git, root: Path) -> None:
    head = git("symbolic-ref", "--short", "HEAD")
    git("checkout", "--quiet", "-b", "aside", "HEAD~1")
    git("commit", "--quiet", "--allow-empty", "--message", "aside")
    aside = commit_of(git, "HEAD")
    git("checkout", "--quiet", head)
    assert Repository(root).find_previous([aside]) == commit_of(git, "HEAD~1")


@pytest.mark.parametrize("reference", ["v9", "--all", "", "HEAD~2", "0" * 40])
def test_a_version_that_does_not_exist_is_refused_in_one_line(git: Git, root: Path, reference: str) -> None:
    with pytest.raises(CheckoutError, match=r"^no version .* in this repository: name a commit, a tag or a branch$"):
        Repository(root).find_commit(reference)


def test_a_first_commit_has_no_previous_version(git: Git, root: Path) -> None:
    git("checkout", "--quiet", "HEAD~1")
    with pytest.raises(CheckoutError, match="name one with --against"):
        Repository(root).find_previous([])


def test_a_directory_without_git_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckoutError, match=r"git|no version"):
        Repository(tmp_path).name_working_tree()


def test_a_commit_without_the_service_is_refused(git: Git, root: Path, tmp_path: Path) -> None:
    git("rm", "--quiet", "-r", "swarm")
    write(root / "README.md", "")
    git("add", "--all")
    git("commit", "--quiet", "--message", "empty")
    with pytest.raises(CheckoutError, match=r"no swarm/__init__\.py"), check_out_both("HEAD", tmp_path, root):
        pass


def test_packages_that_only_one_version_asks_for_are_named(tmp_path: Path) -> None:
    trees = [Tree(tmp_path / name, "1.0", "0" * 12) for name in ("new", "old", "none")]
    write(
        trees[0].path / "pyproject.toml",
        '[project]\ndependencies = ["httpx>=0.28"]\noptional-dependencies = {server = ["torch>=3"], dev = ["ruff"]}\n',
    )
    write(
        trees[1].path / "pyproject.toml",
        '[project]\ndependencies = ["httpx>=0.28"]\noptional-dependencies = {server = ["torch>=2"]}\n',
    )
    assert find_changed_dependencies(trees[0], trees[1]) == ["torch>=2", "torch>=3"]
    assert find_changed_dependencies(trees[0], trees[0]) == []
    assert find_changed_dependencies(trees[2], trees[1]) == ["httpx>=0.28", "torch>=2"]
