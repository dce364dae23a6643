"""The texts the researcher sends to language models, and the client program its own planner uses: one file each.

Place in the flow: planners call `load` with the variables a text names. This package knows nothing of models, studies
or HTTP. A variable is written `$name` or `${name}`; `$$` is a dollar sign.
"""

from __future__ import annotations

from hashlib import sha256
from importlib.resources import files
from string import Template

__all__ = ["PromptError", "digest", "load", "names"]

_SUFFIXES = (".md", ".py.template")


class PromptError(LookupError):
    """A text that does not exist, a variable it needs and did not get, or one it got and does not have."""


def load(name: str, **variables: str) -> str:
    """Return the text called `name` with every variable filled in once. Raises PromptError."""
    template = Template(_read(name))
    wanted = set(template.get_identifiers())
    if missing := sorted(wanted - variables.keys()):
        raise PromptError(f"prompt {name!r} needs {', '.join(missing)}")
    if unknown := sorted(variables.keys() - wanted):
        raise PromptError(f"prompt {name!r} has no variable {', '.join(unknown)}")
    return template.substitute(variables)


def digest(name: str) -> str:
    """Return the SHA-256 of the text called `name`, before any variable is filled in. Raises PromptError."""
    return sha256(_read(name).encode()).hexdigest()


def names() -> tuple[str, ...]:
    """Return all names that `load` knows, sorted."""
    found = {
        entry.name.removesuffix(suffix)
        for entry in files(__name__).iterdir()
        for suffix in _SUFFIXES
        if entry.name.endswith(suffix)
    }
    return tuple(sorted(found))


def _read(name: str) -> str:
    known = names()
    if name not in known:
        raise PromptError(f"no prompt {name!r}; there are: {', '.join(known)}")
    folder = files(__name__)
    entries = (folder.joinpath(f"{name}{suffix}") for suffix in _SUFFIXES)
    return next(entry.read_text(encoding="utf-8") for entry in entries if entry.is_file())
