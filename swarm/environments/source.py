"""The interface of a source of environments: its names, and the opening of an environment of such a name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ValidationError

from swarm.environments.base import Environment
from swarm.errors import EnvironmentInvalid


class Source(ABC):
    """A kind of environments that users call by name. Names come here without their options.

    `form` says in messages how its names are written. `names` are all of them, if the source has a fixed set.
    """

    form: str
    names: tuple[str, ...] = ()
    is_bundled: bool = False
    is_path: bool = False
    has_own_worker: bool = False
    """True if its environments already run their code in their own process."""

    @abstractmethod
    def claims(self, name: str) -> bool:
        """Return whether the source opens environments of this name."""

    @abstractmethod
    def open(self, name: str, options: Mapping[str, str]) -> Environment:
        """Return the environment. Raise EnvironmentInvalid for options or files that cannot be used."""

    def interpreter(self, name: str) -> str | None:
        """Return the Python that the environment must run in, or None for the current one."""
        return None

    def agent(self, name: str) -> Path | None:
        """Return the program that comes with the environment, or None without one."""
        return None

    def files(self, name: str) -> dict[str, Path]:
        """Return the user's files that make up the environment, by their names relative to its folder."""
        return {}


class LibrarySource(Source):
    """The environments of an installed library, written `library:NAME`."""

    library: str

    def claims(self, name: str) -> bool:
        library, colon, _ = name.partition(":")
        return bool(colon) and library == self.library


def option_error(error: ValidationError, where: str, options: type[BaseModel]) -> EnvironmentInvalid:
    """Return an error that describes the first wrong option in one line, with the `options` that there are."""
    first = error.errors(include_url=False)[0]
    name = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        known = ", ".join(sorted(options.model_fields))
        return EnvironmentInvalid(f"{where}: there is no option {name}; there are: {known}", param=name)
    return EnvironmentInvalid(f"{where}: option {name}: {first['msg']} (got {str(first['input'])[:60]!r})", param=name)
