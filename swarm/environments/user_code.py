"""The import of a user's Python file: a grader, tasks or a program."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

from swarm.errors import EnvironmentInvalid


def import_file(path: Path) -> ModuleType:
    """Import a file under a name that no other module has, and return the module.

    Raises EnvironmentInvalid if there is no such file, or if importing it raises.
    """
    spec = importlib.util.spec_from_file_location(f"user_code_{path.parent.name}_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise EnvironmentInvalid(f"{path}: there is no Python file of this name")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        # A user's file may raise anything.
        raise EnvironmentInvalid(f"{path}: importing it raised {type(error).__name__}: {error}") from error
    return module
