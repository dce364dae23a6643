"""The page of every error with its code, HTTP status and exit code, from the two trees of errors."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from markdown_table import table

import researcher.errors
import swarm.errors
from swarm.cli.failures import exit_code
from swarm.gateway.http.errors import status_of

NEVER_ANSWERED = {
    "environment_invalid",
    "environment_failure",
    "program_failure",
    "sandbox_unavailable",
    "ledger_damaged",
    "ledger_in_use",
    "server_unreachable",
}
"""Errors of a user's own code, of a server that does not start, and of a client that finds none."""

TEXT = """\
# Errors

Codes are stable: a program may rely on them. A message says in one line what is wrong and what to do, and may change.
[HTTP API](http-api.md#errors) has the form of an answer and when to repeat a call.
[Operations](operations.md#exit-codes) has the exit codes in order.

## The service

`SwarmClient` raises the class of the code that the server answers. An error that no server ever answers has no status.
The exit code is that of `swarm`.

{service}
## The researcher

The exit code is that of `researcher`.

{study}"""


def page() -> str:
    return TEXT.format(service=_service(), study=_study())


def _service() -> str:
    meanings = _meanings(swarm.errors)
    rows: list[list[str]] = []
    for error in _classes(swarm.errors, swarm.errors.SwarmError):
        name, code = error.__name__, str(exit_code(error("")))
        status = "" if error.code in NEVER_ANSWERED else str(status_of(error("")))
        rows.append([f"`{error.code}`", f"`{name}`", status, code, meanings[name]])
    return table(["code", "class", "HTTP status", "exit code", "meaning"], rows)


def _study() -> str:
    meanings = _meanings(researcher.errors)
    rows = [
        [f"`{error.__name__}`", _code_of(error), meanings[error.__name__]]
        for error in _classes(researcher.errors, researcher.errors.ResearchError)
    ]
    return table(["class", "exit code", "meaning"], rows)


def _code_of(error: type[researcher.errors.ResearchError]) -> str:
    """Return the exit code of an error class; that of a detached process is the error's own."""
    return "its own" if error is researcher.errors.NotDetached else str(error.exit_code)


def _classes(module: ModuleType, base: type) -> Iterator[Any]:
    """Yield the error classes of a module in the order of its source."""
    found = [value for value in vars(module).values() if inspect.isclass(value) and issubclass(value, base)]
    yield from sorted(found, key=lambda error: inspect.getsourcelines(error)[1])


def _meanings(module: ModuleType) -> dict[str, str]:
    """Return what each class means: its line in the tree of the module's docstring, else its own docstring."""
    lines = re.findall(r"^[ │├└─]*(\w+)(?:[ ]{2,}(?:\d+|\*))?[ ]{2,}(\D.*)$", module.__doc__ or "", re.MULTILINE)
    # A class with two bases is there twice; its first line has the meaning.
    tree = dict(reversed(lines))
    meanings: dict[str, str] = {}
    for name, value in vars(module).items():
        if inspect.isclass(value) and issubclass(value, Exception):
            text = tree.get(name) or (value.__doc__ or "").partition("\n\n")[0]
            meanings[name] = f"{text[:1].upper()}{text[1:].rstrip('.')}."
    return meanings
