"""The lookup of environments by the name that a user gives.

Place in the flow: programs, the CLI and the researcher look up environments here. A name is a bundled family,
`reasoning_gym:NAME`, `verifiers:ID`, or a path. A path leads to a folder with an environment.toml, a task file, or a
folder of task files. Options follow a question mark: `tasks.jsonl?grader=number`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import parse_qsl, quote

from pydantic import ValidationError

from swarm.environments.base import Environment
from swarm.environments.sources.bundled import BundledEnvironment
from swarm.environments.sources.task_files import SUFFIXES
from swarm.errors import EnvironmentInvalid, NotFound
from swarm.spelling import did_you_mean
from swarm.tasks.registry import TASK_FAMILIES

AGENT_FILE = "agent.py"
LIBRARIES = ("reasoning_gym", "verifiers")
_PLAIN_IN_OPTIONS = "/:,=@?[]{}\"'"
"""Letters that mean nothing between the options of a name, and that people write as they are."""


def load_environment(name: str) -> Environment:
    """Return the environment called `name`.

    Raises NotFound for an unknown name, and EnvironmentInvalid for an environment that cannot be used. Raises
    SandboxUnavailable if its grader runs programs and there is no sandbox.
    """
    source, options = name.partition("?")[0], options_of(name)
    if source in TASK_FAMILIES:
        if options:
            raise EnvironmentInvalid(
                f"the bundled environment {source} has no options: leave them out", param=next(iter(options))
            )
        return BundledEnvironment(TASK_FAMILIES[source])
    library, colon, rest = source.partition(":")
    if colon and library in LIBRARIES:
        return _open_library(library, rest, options)
    path = Path(source)
    if (path / "environment.toml").is_file():
        from swarm.environments.sources.folder import FolderEnvironment

        if options:
            raise EnvironmentInvalid(f"set the options of {path} in its environment.toml", param=next(iter(options)))
        return FolderEnvironment(path)
    if path.is_dir() or (path.is_file() and path.suffix in SUFFIXES):
        return _open_dataset(path, options)
    raise NotFound(_unknown(source, path), param="env")


def options_of(name: str) -> dict[str, str]:
    """Return the options that stand in `name`. Raises EnvironmentInvalid for a query that is not NAME=VALUE pairs."""
    query = name.partition("?")[2]
    try:
        return dict(parse_qsl(query, keep_blank_values=True, strict_parsing=True)) if query else {}
    except ValueError:
        raise EnvironmentInvalid(f"options are written NAME=VALUE&NAME=VALUE, not {query!r}", param="env") from None


def with_options(name: str, options: Mapping[str, str]) -> str:
    """Return `name` with these options. An option that the name has already gets the new value."""
    written = (
        "=".join(quote(part, safe=_PLAIN_IN_OPTIONS) for part in option)
        for option in {**options_of(name), **options}.items()
    )
    return f"{name.partition('?')[0]}?{'&'.join(written)}"


def is_bundled(name: str) -> bool:
    """Return whether `name` is one of the package's own environments."""
    return name.partition("?")[0] in TASK_FAMILIES


def has_own_worker(name: str) -> bool:
    """Return whether the environment already runs its code in its own process."""
    return name.startswith("verifiers:")


def interpreter_of(name: str) -> str | None:
    """Return the Python that the environment must run in, or None for the current one.

    Raises EnvironmentInvalid if environment.toml cannot be read, or names a Python that cannot be run.
    """
    path = Path(name.partition("?")[0])
    if not (path / "environment.toml").is_file():
        return None
    from swarm.environments.sources.folder import read_interpreter

    return read_interpreter(path)


def agent_of(name: str) -> Path | None:
    """Return the agent.py in the environment's folder, or None if there is none."""
    path = Path(name.partition("?")[0])
    agent = path / AGENT_FILE
    return agent if (path / "environment.toml").is_file() and agent.is_file() else None


def files_of(name: str) -> dict[str, Path]:
    """Return the files of a user's environment by name, relative to its folder.

    There are none for a bundled environment or one of a library.
    """
    path = Path(name.partition("?")[0])
    if is_bundled(name) or not path.exists():
        return {}
    if (path / "environment.toml").is_file():
        from swarm.environments.sources.folder import folder_files

        return {str(each.relative_to(path)): each for each in folder_files(path)}
    if path.is_file():
        return {path.name: path}
    from swarm.environments.sources.task_files import files_by_split

    return {str(each.relative_to(path)): each for paths in files_by_split(path).values() for each in paths}


def _open_library(library: str, name: str, options: dict[str, str]) -> Environment:
    if library == "verifiers":
        from swarm.environments.verifiers import VerifiersEnvironment

        return VerifiersEnvironment(name, options)
    from swarm.environments.sources.reasoning_gym import ReasoningGymEnvironment

    return ReasoningGymEnvironment(name, options)


def _open_dataset(path: Path, options: dict[str, str]) -> Environment:
    from swarm.environments.sources.dataset import DatasetEnvironment, DatasetOptions

    try:
        parsed = DatasetOptions.model_validate(options)
    except ValidationError as error:
        raise option_error(error, str(path)) from error
    return DatasetEnvironment(path, parsed)


def option_error(error: ValidationError, where: str) -> EnvironmentInvalid:
    """Return an error that describes the first wrong option in one line."""
    first = error.errors(include_url=False)[0]
    name = ".".join(str(part) for part in first["loc"])
    return EnvironmentInvalid(f"{where}: option {name}: {first['msg']} (got {str(first['input'])[:60]!r})", param=name)


def _unknown(source: str, path: Path) -> str:
    if path.exists():
        return f"{path} is not an environment: use a .jsonl or .parquet file, or a folder with an environment.toml"
    hint = did_you_mean(source, TASK_FAMILIES) or "."
    return (
        f"there is no environment {source!r}{hint} Use one of {', '.join(TASK_FAMILIES)}, or "
        "reasoning_gym:NAME, verifiers:ID, a .jsonl or .parquet file, or a folder with an environment.toml"
    )
