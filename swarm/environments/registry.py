"""The table of the sources of environments, and the lookup of an environment by the name that a user gives."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, quote

from swarm.environments.base import Environment
from swarm.environments.source import LibrarySource, Source
from swarm.environments.sources.bundled import BundledSource
from swarm.environments.sources.dataset import DatasetSource
from swarm.environments.sources.folder import FolderSource
from swarm.environments.sources.reasoning_gym import ReasoningGymSource
from swarm.environments.verifiers.environment import VerifiersSource
from swarm.errors import EnvironmentInvalid, NotFound
from swarm.spelling import did_you_mean

SOURCES: Final[tuple[Source, ...]] = (
    BundledSource(),
    ReasoningGymSource(),
    VerifiersSource(),
    FolderSource(),
    DatasetSource(),
)
"""All sources. The first that claims a name opens it, so that a folder with an environment.toml is no folder of task
files."""

LIBRARIES: Final = tuple(source.library for source in SOURCES if isinstance(source, LibrarySource))
_PLAIN_IN_OPTIONS = "/:,=@?[]{}\"'"
"""Letters that mean nothing between the options of a name, and that people write as they are."""


def load_environment(name: str) -> Environment:
    """Return the environment called `name`: a bundled family, one of an installed library, or a path.

    Options follow a question mark: `tasks.jsonl?grader=number`.

    Raises NotFound for an unknown name, and EnvironmentInvalid for an environment that cannot be used. Raises
    SandboxUnavailable if its grader runs programs and there is no sandbox.
    """
    options, source = options_of(name), _find_source(name)
    if source is None:
        raise NotFound(_unknown(_without_options(name)), param="env")
    return source.open(_without_options(name), options)


def options_of(name: str) -> dict[str, str]:
    """Return the options that stand in `name`.

    Raises EnvironmentInvalid for a query that is not NAME=VALUE pairs, and for an option with two values.
    """
    query = name.partition("?")[2]
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True) if query else []
    except ValueError:
        raise EnvironmentInvalid(f"options are written NAME=VALUE&NAME=VALUE, not {query!r}", param="env") from None
    names = [option for option, _ in pairs]
    if twice := next((option for option in names if names.count(option) > 1), None):
        raise EnvironmentInvalid(f"the option {twice} is given twice: leave one out", param=twice)
    return dict(pairs)


def with_options(name: str, options: Mapping[str, str]) -> str:
    """Return `name` with these options. An option that the name has already gets the new value."""
    written = (
        "=".join(quote(part, safe=_PLAIN_IN_OPTIONS) for part in option)
        for option in {**options_of(name), **options}.items()
    )
    return f"{_without_options(name)}?{'&'.join(written)}"


def is_bundled(name: str) -> bool:
    """Return whether `name` is one of the package's own environments."""
    return any(source.claims(_without_options(name)) for source in SOURCES if source.is_bundled)


def has_own_worker(name: str) -> bool:
    """Return whether the environment already runs its code in its own process."""
    return any(source.claims(_without_options(name)) for source in SOURCES if source.has_own_worker)


def interpreter_of(name: str) -> str | None:
    """Return the Python that the environment must run in, or None for the current one.

    Raises EnvironmentInvalid if environment.toml cannot be read, or names a Python that cannot be run.
    """
    source = _find_source(name)
    return None if source is None else source.interpreter(_without_options(name))


def agent_of(name: str) -> Path | None:
    """Return the agent.py in the environment's folder, or None if there is none."""
    source = _find_source(name)
    return None if source is None else source.agent(_without_options(name))


def files_of(name: str) -> dict[str, Path]:
    """Return the files of a user's environment by name, relative to its folder.

    There are none for a bundled environment or one of a library.
    """
    source = _find_source(name)
    return {} if source is None else source.files(_without_options(name))


def _find_source(name: str) -> Source | None:
    plain = _without_options(name)
    return next((source for source in SOURCES if source.claims(plain)), None)


def _without_options(name: str) -> str:
    return name.partition("?")[0]


def _unknown(name: str) -> str:
    if Path(name).exists():
        forms = [source.form for source in SOURCES if source.is_path]
        return f"{Path(name)} is not an environment: use {', or '.join(forms)}"
    hint = did_you_mean(name, [known for source in SOURCES for known in source.names]) or "."
    *forms, last = [source.form for source in SOURCES]
    return f"there is no environment {name!r}{hint} Use {', '.join(forms)}, or {last}"
