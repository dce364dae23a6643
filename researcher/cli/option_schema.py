"""The options of a command as arguments of a tool, and back as words of a command line."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Union, get_args

from pydantic import Field, create_model
from typer.models import OptionInfo, ParameterInfo
from typer.utils import get_params_from_function

from researcher.planner.tools.base import ToolArguments


def arguments_of(command: Callable[..., Any], *, without: Collection[str]) -> type[ToolArguments]:
    """Return the parameters of a command as a model with the names, types, defaults and help of its options."""
    fields: dict[str, Any] = {}
    for name, (kind, info) in _parameters(command).items():
        if name not in without:
            fields[name] = (_as_text(kind), Field(default=info.default, description=info.help))
    return create_model(f"{command.__name__.title()}Options", __base__=ToolArguments, **fields)


def words_of(command: Callable[..., Any], given: ToolArguments) -> list[str]:
    """Return the given arguments as words of a command line; arguments that were not given are left out."""
    words: list[str] = []
    for name, (_, info) in _parameters(command).items():
        value = getattr(given, name, None)
        if name not in given.model_fields_set or value is None or value is False:
            continue
        if not isinstance(info, OptionInfo):
            words.append(str(value))
            continue
        option = f"--{name.replace('_', '-')}"
        items = value if isinstance(value, list) else [value]
        # `--option=value` keeps a value that begins with a dash from being read as an option.
        words += [option] if value is True else [f"{option}={item}" for item in items]
    return words


def _parameters(command: Callable[..., Any]) -> dict[str, tuple[Any, ParameterInfo]]:
    """Return type and description of each parameter, by the name of its option; `study_id` is called `study`."""
    found: dict[str, tuple[Any, ParameterInfo]] = {}
    for parameter in get_params_from_function(command).values():
        info = parameter.default
        assert isinstance(info, ParameterInfo)
        named = next((word for word in info.param_decls or () if word.startswith("--")), None)
        name = parameter.name.removesuffix("_id") if named is None else named.removeprefix("--").replace("-", "_")
        found[name] = (parameter.annotation, info)
    return found


def _as_text(kind: Any) -> Any:
    """Return the type of an option as JSON writes it, where a path is a string."""
    if kind is Path:
        return str
    parts = tuple(_as_text(part) for part in get_args(kind))
    if not parts:
        return kind
    return list[parts[0]] if getattr(kind, "__origin__", None) is list else Union[parts]  # noqa: UP007
