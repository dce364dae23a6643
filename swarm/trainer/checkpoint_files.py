"""Directories that are on disk either complete or not at all, and the manifests of checkpoints in them."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, cast

from swarm.errors import CheckpointError
from swarm.processes.flush import flush


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """State of the training when a checkpoint was written."""

    step: int
    weight_version: int


def one_line(error: BaseException) -> str:
    """Return the text of an error of a library, or else its kind."""
    return " ".join(str(error).split())[:300] or type(error).__name__


@contextmanager
def written_checkpoint(
    directory: Path,
    info: CheckpointInfo,
    manifest: Mapping[str, Any],
    *,
    describe: Callable[[Path], dict[str, int | str]],
    failures: tuple[type[Exception], ...],
) -> Generator[Path]:
    """Yield an empty directory to fill, which gets a manifest and then replaces `directory`.

    Raise CheckpointError for an OSError or one of the `failures`, and leave the old checkpoint unchanged.
    """
    try:
        with written_atomically(directory) as draft:
            yield draft
            paths = sorted(path for path in draft.rglob("*") if path.is_file())
            files = {str(path.relative_to(draft)): describe(path) for path in paths}
            written = json.dumps({**manifest, **asdict(info), "files": files}, indent=2)
            (draft / MANIFEST).write_text(written, encoding="utf-8")
    except (OSError, *failures) as error:
        raise CheckpointError(f"checkpoint {directory} was not written: {one_line(error)}") from error


@contextmanager
def written_atomically(directory: Path) -> Generator[Path]:
    """Yield an empty directory to fill, which then replaces `directory`. Raise OSError.

    After an exception the old directory is unchanged. If the process is killed, `directory` is either the old one or
    the new one. Between two renames it is absent, and the old one lies beside it as `.<name>.replaced`.
    """
    draft = directory.parent / f".{directory.name}.draft"
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
        yield draft
        for path in (*draft.rglob("*"), draft):
            flush(path)
        _put_in_place(draft, directory)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def fingerprint(path: Path) -> dict[str, int | str]:
    """Return the size and SHA-256 of a file."""
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def _put_in_place(draft: Path, directory: Path) -> None:
    replaced = directory.parent / f".{directory.name}.replaced"
    shutil.rmtree(replaced, ignore_errors=True)
    if directory.exists():
        directory.rename(replaced)
    try:
        draft.rename(directory)
    except OSError:
        if replaced.exists():
            replaced.rename(directory)
        raise
    flush(directory.parent)
    shutil.rmtree(replaced, ignore_errors=True)


MANIFEST: Final = "manifest.json"
LARGEST_HASHED: Final = 2**28
"""Limit in bytes. A larger file is compared by its size alone: reading hundreds of gigabytes twice would take
minutes."""


def read_manifest(directory: Path) -> dict[str, Any]:
    """Return the manifest of a checkpoint. Raise CheckpointError if there is no readable manifest."""
    try:
        manifest = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{directory} is not a complete checkpoint: {MANIFEST} cannot be read") from error
    except ValueError as error:
        raise CheckpointError(f"checkpoint {directory} is damaged: {MANIFEST} is not valid JSON") from error
    return cast("dict[str, Any]", manifest) if isinstance(manifest, dict) else {}


def verify_checkpoint(directory: Path) -> dict[str, Any]:
    """Return the manifest of a complete checkpoint of either trainer. Raise CheckpointError."""
    manifest = read_manifest(directory)
    types = {"step": int, "weight_version": int, "files": dict}
    if not all(isinstance(manifest.get(name), kind) for name, kind in types.items()):
        raise CheckpointError(f"{directory} is not a checkpoint of this service: its {MANIFEST} names no step")
    verify_files(directory, manifest["files"])
    return manifest


def read_checkpoint_manifest(directory: Path, form: str | int) -> dict[str, Any]:
    """Return the manifest of a checkpoint that has this `format`. Raise CheckpointError."""
    manifest = read_manifest(directory)
    if manifest.get("format") != form:
        raise CheckpointError(
            f"checkpoint {directory} was written by another trainer: {MANIFEST} must have format {form}"
        )
    return manifest


def info_of(directory: Path, manifest: Mapping[str, Any]) -> CheckpointInfo:
    """Return the state that a manifest names, if every file beside it is intact. Raise CheckpointError."""
    verify_files(directory, manifest["files"])
    return CheckpointInfo(step=manifest["step"], weight_version=manifest["weight_version"])


def describe_file(path: Path) -> dict[str, int | str]:
    """Return the size of a file, and its SHA-256 unless the file is too large for that."""
    size = path.stat().st_size
    return fingerprint(path) if size <= LARGEST_HASHED else {"bytes": size}


def verify_files(directory: Path, files: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise CheckpointError unless every file has the recorded size, and the recorded SHA-256 if there is one."""
    for name, expected in files.items():
        path = directory / name
        if not path.is_file():
            raise CheckpointError(f"checkpoint {directory} is incomplete: {name} is missing")
        found = fingerprint(path) if "sha256" in expected else {"bytes": path.stat().st_size}
        if found != expected:
            raise CheckpointError(f"checkpoint {directory} is damaged: {name} is not the file that was written")
