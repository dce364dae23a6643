"""Models of the user by name: where they lie, and where each comes from."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from platformdirs import user_cache_path
from pydantic import TypeAdapter, ValidationError

from swarm.errors import BadRequest, NotFound, Unavailable
from swarm.job import LR_OF_BUNDLED_MODELS

SOURCE = "source.json"
"""The file in the folder of a named model that says where the model comes from."""
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A model that a job can give by its name.

    `origin` is the package, the file or the folder that it comes from, and `directory` is where its files lie. `sha256`
    is the digest of the package or file; it is empty for a folder. `licence` is empty if it is unknown.
    """

    name: str
    directory: str
    origin: str
    sha256: str = ""
    licence: str = ""


_NAMED = TypeAdapter(NamedModel)


def models_directory() -> Path:
    """Return the directory of named models: $SWARM_MODELS, else a folder of the user's cache."""
    given = os.environ.get("SWARM_MODELS")
    return Path(given).expanduser().absolute() if given else user_cache_path("swarm") / "models"


def find_named(name: str) -> NamedModel | None:
    """Return the named model, or None if there is none of that name."""
    if not _NAME.fullmatch(name):
        return None
    folder = models_directory() / name
    try:
        found = _NAMED.validate_json((folder / SOURCE).read_bytes())
    except (OSError, ValidationError):
        return None
    # Only a folder of the user's lies elsewhere, so that the directory of models can be moved.
    return found if found.directory else replace(found, directory=str(folder))


def list_named() -> list[NamedModel]:
    """Return the named models of this user, by name."""
    found = (find_named(path.parent.name) for path in sorted(models_directory().glob(f"*/{SOURCE}")))
    return [model for model in found if model is not None]


def check_name(name: str) -> None:
    """Raise BadRequest unless a model may have this name and has it not yet."""
    if name in LR_OF_BUNDLED_MODELS:
        raise BadRequest(f"{name} is the name of a bundled model: give another name", param="name")
    if not _NAME.fullmatch(name):
        raise BadRequest(
            f"{name!r} cannot be the name of a model: it needs 1 to 64 lowercase letters, digits, dots, hyphens or "
            "underscores, a letter or digit first",
            param="name",
        )
    if find_named(name) is not None:
        raise BadRequest(f"there is a model {name} already: run swarm models remove {name} first", param="name")


@contextmanager
def adding(name: str) -> Generator[Path]:
    """Yield a new folder that becomes the folder of the named model once the block has ended without an error.

    Raises BadRequest if another process has added a model of this name in the meantime, and Unavailable if the folder
    cannot be written.
    """
    parent = models_directory()
    # Its name is none that a model may have, so that half a model is never taken for one.
    partial = parent / f".{name}.{os.getpid()}"
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        yield partial
        check_name(name)
        shutil.rmtree(parent / name, ignore_errors=True)
        partial.rename(parent / name)
    except OSError as error:
        reason = error.strerror or error
        raise Unavailable(f"{parent} cannot be written: {reason}: set SWARM_MODELS to another directory") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def write_source(folder: Path, model: NamedModel) -> None:
    """Write where a model comes from into its folder, last of all its files."""
    (folder / SOURCE).write_bytes(_NAMED.dump_json(_NAMED.validate_python(asdict(model)), indent=2))


def remove_named(name: str) -> NamedModel:
    """Remove a named model from the cache and return it; a folder of the user's stays where it is.

    Raises BadRequest for a bundled model and NotFound if there is none of that name.
    """
    if name in LR_OF_BUNDLED_MODELS:
        raise BadRequest(f"{name} comes with the package and cannot be removed", param="name")
    model = find_named(name)
    if model is None:
        raise NotFound(f"there is no model {name!r}: swarm models list shows those of this machine")
    shutil.rmtree(models_directory() / name)
    return model
