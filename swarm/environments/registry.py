"""Environments by the name that a user gives.

Place in the flow: what programs, the CLI and the researcher look environments up with. A name is that of a bundled
family, `reasoning_gym:NAME`, `verifiers:ID`, or a path: a folder with an environment.toml, a task file, or a folder of
task files. Options follow a question mark: `tasks.jsonl?grader=number`.
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
    """Raises NotFound for a name that stands for nothing, EnvironmentInvalid for an environment that cannot be used,
    SandboxUnavailable for a grader that runs programs where there is no sandbox."""
    source, options = name.partition("?")[0], options_of(name)
    if source in TASK_FAMILIES:
        if options:
            raise EnvironmentInvalid(f"the bundled environment {source} has no options", param=next(iter(options)))
        return BundledEnvironment(TASK_FAMILIES[source])
    library, colon, rest = source.partition(":")
    if colon and library in LIBRARIES:
        return _open_library(library, rest, options)
    path = Path(source)
    if (path / "environment.toml").is_file():
        from swarm.environments.sources.folder import FolderEnvironment

        if options:
            raise EnvironmentInvalid(f"the options of {path} are in its environment.toml", param=next(iter(options)))
        return FolderEnvironment(path)
    if path.is_dir() or (path.is_file() and path.suffix in SUFFIXES):
        return _open_dataset(path, options)
    raise NotFound(_unknown(source, path), param="env")


def options_of(name: str) -> dict[str, str]:
    """The options that stand in a name. Raises EnvironmentInvalid for what is none."""
    query = name.partition("?")[2]
    try:
        return dict(parse_qsl(query, keep_blank_values=True, strict_parsing=True)) if query else {}
    except ValueError:
        raise EnvironmentInvalid(f"options are written NAME=VALUE&NAME=VALUE, not {query!r}", param="env") from None


def with_options(name: str, options: Mapping[str, str]) -> str:
    """The name with these options, which take the place of those that it has by the same names."""
    written = (
        "=".join(quote(part, safe=_PLAIN_IN_OPTIONS) for part in option)
        for option in {**options_of(name), **options}.items()
    )
    return f"{name.partition('?')[0]}?{'&'.join(written)}"


def is_bundled(name: str) -> bool:
    """Whether the name stands for one of the package's own environments."""
    return name.partition("?")[0] in TASK_FAMILIES


def has_own_worker(name: str) -> bool:
    """Whether the environment runs its code in a process of its own already."""
    return name.startswith("verifiers:")


def interpreter_of(name: str) -> str | None:
    """The Python that the environment asks to run in; None for this one. Raises EnvironmentInvalid."""
    path = Path(name.partition("?")[0])
    if not (path / "environment.toml").is_file():
        return None
    from swarm.environments.sources.folder import read_interpreter

    return read_interpreter(path)


def agent_of(name: str) -> Path | None:
    """The program that an environment's folder brings along, its agent.py."""
    path = Path(name.partition("?")[0])
    agent = path / AGENT_FILE
    return agent if (path / "environment.toml").is_file() and agent.is_file() else None


def files_of(name: str) -> dict[str, Path]:
    """The files that an environment of the user's is made of, by the names that a person knows them by; none for one of
    the package or of a library."""
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
    """The first wrong option in one line."""
    first = error.errors(include_url=False)[0]
    name = ".".join(str(part) for part in first["loc"])
    return EnvironmentInvalid(f"{where}: option {name}: {first['msg']} (got {str(first['input'])[:60]!r})", param=name)


def _unknown(source: str, path: Path) -> str:
    if path.exists():
        return f"{path} is no environment: use a .jsonl or .parquet file, or a folder with an environment.toml"
    hint = did_you_mean(source, TASK_FAMILIES) or "."
    return (
        f"there is no environment {source!r}{hint} Bundled are {', '.join(TASK_FAMILIES)}; others are "
        "reasoning_gym:NAME, verifiers:ID, a .jsonl or .parquet file, or a folder with an environment.toml"
    )
