"""A user's Python file, a grader, tasks or a program: its import, and its functions that are called."""

from __future__ import annotations

import importlib.util
import inspect
import os
import re
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from swarm.errors import EnvironmentInvalid

_SUFFIX = re.compile(r"_?(fn|func|function|hook)$|_+$")


@dataclass(frozen=True, slots=True)
class Hook:
    """A function that a user's file may define, and that is called with these `parameters` by position.

    `may_yield` says that a generator will do, because its items are wanted.
    """

    name: str
    parameters: tuple[str, ...]
    may_yield: bool = False

    @property
    def call(self) -> str:
        return f"{self.name}({', '.join(self.parameters)})"


def import_file(path: Path) -> ModuleType:
    """Import a file under a name that no other module has, and return the module.

    Raises EnvironmentInvalid if there is no such file, or if importing it raises or ends the process.
    """
    spec = importlib.util.spec_from_file_location(f"user_code_{path.parent.name}_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise EnvironmentInvalid(f"{path}: there is no Python file of this name")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except SystemExit as error:
        raise EnvironmentInvalid(f"{describe_exit(error, path)}: take that out, or put it under __main__") from error
    except Exception as error:
        # A user's file may raise anything.
        raise EnvironmentInvalid(f"{path}: importing it raised {type(error).__name__}: {error}") from error
    return module


def find_hooks(path: Path, hooks: Sequence[Hook]) -> dict[str, Callable[..., Any]]:
    """Import a file, and return those of the hooks that it defines.

    Raises EnvironmentInvalid as `import_file` does, for a hook that cannot be called as it will be, and for a function
    whose name is nearly that of a hook that the file lacks.
    """
    module = import_file(path)
    found: dict[str, Callable[..., Any]] = {}
    for hook in hooks:
        function: Any = getattr(module, hook.name, None)
        if function is None:
            _refuse_near_miss(path, module, hook)
        elif not callable(function):
            raise EnvironmentInvalid(f"{path}: {hook.name} is no function: define it with def")
        else:
            _refuse_other_call(path, hook, function)
            found[hook.name] = function
    return found


def describe_exit(error: SystemExit, path: Path) -> str:
    """Say in which line and function a user's file ended the process."""
    return f"{place_of(error, path)}: it ends the process (SystemExit: {error.code})"


def place_of(error: BaseException, path: Path) -> str:
    """Return a user's file with the last line and function in it that led to the error."""
    file = os.path.abspath(path)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f"{path}, line {frames[-1].lineno}, in {frames[-1].name}" if frames else str(path)


def exit_by_raising() -> None:
    """Let `os._exit` raise SystemExit in this process from now on, so that user code that calls it can be named.

    Processes that this one forks still end by it.
    """
    own, end = os.getpid(), os._exit

    def leave(status: int) -> None:
        if os.getpid() != own:
            end(status)
        raise SystemExit(f"os._exit({status})")

    os._exit = leave  # pyright: ignore[reportAttributeAccessIssue]


def _refuse_near_miss(path: Path, module: ModuleType, hook: Hook) -> None:
    for name, value in vars(module).items():
        # Imported functions have names of their own, and a private one is not meant to be called from outside.
        is_own = isinstance(value, FunctionType) and value.__module__ == module.__name__ and not name.startswith("_")
        if is_own and _is_nearly(name, hook.name):
            raise EnvironmentInvalid(
                f"{path}: the function {name} would never be called: name it {hook.call}, or give a helper another name"
            )


def _is_nearly(name: str, hook: str) -> bool:
    """Return whether a name differs from that of a hook by case, a suffix, one letter or two swapped letters."""
    word = _SUFFIX.sub("", name.lower())
    swapped = (hook[:at] + hook[at + 1] + hook[at] + hook[at + 2 :] for at in range(len(hook) - 1))
    return word == hook or word in _shortened(hook) or hook in _shortened(word) or word in swapped


def _shortened(word: str) -> Iterator[str]:
    """Yield the word without one of its letters."""
    return (word[:at] + word[at + 1 :] for at in range(len(word)))


def _refuse_other_call(path: Path, hook: Hook, function: Callable[..., Any]) -> None:
    kinds = ((inspect.iscoroutinefunction, "is async"), (inspect.isasyncgenfunction, "is async"))
    kinds += () if hook.may_yield else ((inspect.isgeneratorfunction, "has a yield"),)
    for is_kind, what in kinds:
        if is_kind(function):
            raise EnvironmentInvalid(f"{path}: {hook.name} {what}, but it must return: define {hook.call} with def")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        # Some callables of C have no signature.
        return
    shown = f"{hook.name}({', '.join(map(str, signature.parameters.values()))})"
    try:
        taken = signature.bind(*hook.parameters).arguments
    except TypeError:
        raise EnvironmentInvalid(
            f"{path}: it defines {shown}, but {hook.call} is called: take these parameters"
        ) from None
    if any(name in hook.parameters and name != given for name, given in taken.items() if isinstance(given, str)):
        raise EnvironmentInvalid(f"{path}: it defines {shown}, but {hook.call} is called: put them in this order")
