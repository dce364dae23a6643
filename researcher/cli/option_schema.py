"""The options of a command as arguments of a tool, and back as words of a command line.

Place in the flow: `researcher mcp` offers `start` and `resume` with the options that the commands have, so that both
can never differ. This module knows no option by name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_type_hints

from pydantic import Field, create_model
from typer.models import OptionInfo, ParameterInfo

from researcher.planner.tools.base import ToolArguments


def arguments_of(command: Callable[..., Any], *, without: Collection[str]) -> type[ToolArguments]:
    """Return the parameters of a command as a model with the same names, types, defaults and help.

    A `study_id` is called `study`, as in all other tools.
    """
    hints = get_type_hints(command, include_extras=True)
    fields: dict[str, Any] = {}
    for name, parameter in inspect.signature(command).parameters.items():
        if name in without:
            continue
        kind, info = get_args(hints[name])[:2]
        assert isinstance(info, ParameterInfo)
        default = ... if parameter.default is inspect.Parameter.empty else parameter.default
        fields[_shown(name)] = (_as_text(kind), Field(default=default, description=info.help))
    return create_model(f"{command.__name__.title()}Options", __base__=ToolArguments, **fields)


def words_of(command: Callable[..., Any], given: ToolArguments) -> list[str]:
    """Return the given arguments as words of a command line; arguments that were not given are left out."""
    hints = {_shown(name): hint for name, hint in get_type_hints(command, include_extras=True).items()}
    words: list[str] = []
    for name in type(given).model_fields:
        value = getattr(given, name)
        if name not in given.model_fields_set or value is None or value is False:
            continue
        info = get_args(hints[name])[1]
        if not isinstance(info, OptionInfo):
            words.append(str(value))
            continue
        option = next((word for word in info.param_decls or () if word.startswith("--")), f"--{name.replace('_', '-')}")
        # `--option=value` keeps a value that begins with a dash from being read as an option.
        words += [option] if value is True else [f"{option}={item}" for item in _items(value)]
    return words


def _shown(name: str) -> str:
    return name.removesuffix("_id")


def _items(value: Any) -> list[str]:
    return [str(item) for item in (value if isinstance(value, list) else [value])]


def _as_text(kind: Any) -> Any:
    """Return the type as JSON has it: a path is a text."""
    if kind is Path:
        return str
    parts = tuple(_as_text(part) for part in get_args(kind))
    if not parts:
        return kind
    if isinstance(kind, UnionType):
        united = parts[0]
        for part in parts[1:]:
            united = united | part
        return united
    return kind.__origin__[parts]
