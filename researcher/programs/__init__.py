"""The library of programs that work on any environment, for planners that write none: one file each."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files

from researcher.program_code import ProgramCode

__all__ = ["LibraryProgram", "list_programs", "load_program_code"]

_SUFFIX = ".py"


@dataclass(frozen=True, slots=True)
class LibraryProgram:
    """A program of the library.

    `description` is one sentence. `has_agent` is false if the program changes only the reward or the order of tasks.
    """

    name: str
    description: str
    code: str
    has_agent: bool


def list_programs() -> tuple[LibraryProgram, ...]:
    """Return the programs of the library, sorted by name."""
    names = (entry.name.removesuffix(_SUFFIX) for entry in files(__name__).iterdir() if entry.name.endswith(_SUFFIX))
    return tuple(_load(name) for name in sorted(names) if not name.startswith("_"))


def load_program_code(name: str) -> str:
    """Return the code of a program. Raises KeyError for a name that the library does not have."""
    found = {program.name: program.code for program in list_programs()}
    return found[name]


def _load(name: str) -> LibraryProgram:
    code = files(__name__).joinpath(f"{name}{_SUFFIX}").read_text(encoding="utf-8")
    read = ProgramCode(code)
    return LibraryProgram(name, read.description, code, "agent" in read.functions)
