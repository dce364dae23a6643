"""The parts of the host that are visible inside the sandbox, as flags for bubblewrap."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from swarm.errors import SandboxUnavailable

LINK_INSIDE = "/run/swarm/link"
HOME_INSIDE = "/home/sandbox"
TEMPORARY_FOLDERS = ("/dev/shm", "/tmp", HOME_INSIDE)

SYSTEM_FOLDERS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime")

PROGRAM_FILES = (
    "__init__.py", "client", "config.py", "demonstrations.py", "descriptions.py", "digest.py",
    "environments/__init__.py",
    "environments/base.py", "environments/user_code.py", "errors.py", "estimators.py", "external_samplers.py",
    "intervals.py", "job", "pass_at_k.py",
    "processes/__init__.py", "processes/child.py",
    "processes/imports.py", "program/__init__.py", "program/attempts.py", "program/base.py",
    "program/hosted/__init__.py", "program/hosted/__main__.py", "program/hosted/host.py",
    "program/hosted/protocol.py", "sampling_limits.py", "sandbox/__init__.py", "sandbox/inside.py",
    "sandbox/seccomp.py", "schemas", "spelling.py", "tasks/__init__.py", "tasks/agent.py", "tasks/base.py", "types.py",
)  # fmt: skip
"""Files of the package that the host of a program imports. Task families, graders and readers of data sets are left
out: with them, a program that knows a seed could compute held-out tasks and their answers."""
TASK_LIBRARIES = ("reasoning_gym", "verifiers")
"""Hidden from programs for the same reason."""


def mount_flags(
    workdir: Path, link: Path | None, files: Sequence[Path], *, disk_bytes: int, tmp_bytes: int
) -> list[str]:
    """Return the flags for what one program sees.

    `link` is the folder of the proxy's socket, and `files` are visible at their own paths. `disk_bytes` is the size of
    the working directory, and `tmp_bytes` that of each other writable folder.
    """
    package = swarm_package()
    readable = [(folder, folder) for folder in _python_folders()]
    if link is not None:
        readable += [(str(link), LINK_INSIDE)]
    place = str(workdir)
    return [
        *_base_mounts(str(tmp_bytes)),
        *_parents([*(inside for _, inside in readable), str(package), place]),
        *_read_only(readable),
        *_package(package, files),
        *("--perms", "1777", "--size", str(disk_bytes), "--tmpfs", place),
        *_read_only([(str(path), str(path)) for path in _content(workdir)]),
        *("--remount-ro", "/"),
    ]


def _package(package: Path, files: Sequence[Path]) -> list[str]:
    shown = [*map(str, files), *(str(package / name) for name in PROGRAM_FILES)]
    hidden = [str(folder) for library in TASK_LIBRARIES for folder in _folders_of(library)]
    # The package may be in a folder that is visible, so hide it as a whole before showing some of its files.
    return [
        *(flag for folder in hidden for flag in ("--tmpfs", folder, "--remount-ro", folder)),
        *("--perms", "0755", "--tmpfs", str(package)),
        *_parents(shown),
        *_read_only([(path, path) for path in shown]),
        *("--remount-ro", str(package)),
    ]


def _base_mounts(tmp_bytes: str) -> list[str]:
    flags = [
        *_parents([*SYSTEM_FILES, HOME_INSIDE]),
        "--hostname",
        "sandbox",
        "--proc",
        "/proc",
        "--ro-bind",
        "/proc/sys",
        "/proc/sys",
        "--dev",
        "/dev",
    ]
    for folder in TEMPORARY_FOLDERS:
        flags += ["--perms", "1777", "--size", tmp_bytes, "--tmpfs", folder]
    flags += ["--remount-ro", "/dev", "--ro-bind", "/usr", "/usr"]
    for folder in map(Path, SYSTEM_FOLDERS):
        if folder.is_symlink():
            flags += ["--symlink", os.readlink(folder), str(folder)]
        elif folder.is_dir():
            flags += ["--ro-bind", str(folder), str(folder)]
    for file in SYSTEM_FILES:
        flags += ["--ro-bind-try", file, file]
    return flags


def _parents(paths: Sequence[str]) -> list[str]:
    """Create the folders above the mounts, which bubblewrap itself would create unreadable for other users."""
    folders = {str(parent): None for path in paths for parent in reversed(Path(path).parents)}
    return [flag for folder in folders if folder != "/" for flag in ("--perms", "0755", "--dir", folder)]


def _read_only(pairs: Sequence[tuple[str, str]]) -> list[str]:
    return [flag for outside, inside in pairs for flag in ("--ro-bind", outside, inside)]


def _content(workdir: Path) -> Iterator[Path]:
    """Yield the files and folders of a working directory, without links, which could lead to any file of the host."""
    if workdir.is_dir():
        yield from (path for path in sorted(workdir.iterdir()) if not path.is_symlink())


def _folders_of(library: str) -> list[Path]:
    spec = find_spec(library)
    return [] if spec is None else [Path(folder) for folder in spec.submodule_search_locations or ()]


def _python_folders() -> list[str]:
    """Return the folders of the interpreter and its environment, without those inside /usr or one another."""
    folders: list[Path] = []
    for folder in (Path(sys.base_prefix), Path(sys.prefix)):
        covered = any(folder == other or other in folder.parents for other in (Path("/usr"), *folders))
        if not covered:
            folders.append(folder)
    return [str(folder) for folder in folders]


def swarm_package() -> Path:
    spec = find_spec("swarm")
    if spec is None or not spec.submodule_search_locations:
        raise SandboxUnavailable("the swarm package cannot be found: install swarm-researcher")
    return Path(next(iter(spec.submodule_search_locations))).resolve()
