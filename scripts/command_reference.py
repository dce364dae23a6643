"""The page of every command of `swarm` and `researcher` with its options, from the two Typer apps."""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from markdown_table import table

import researcher.cli
import swarm.cli

APPS = {"swarm": swarm.cli.app, "researcher": researcher.cli.app}
KINDS = {str: "text", int: "integer", float: "number", Path: "path"}
TEXT = """\
# Commands

`--help` of each command says the same. [Operations](operations.md) says which of them you need when, and has the
[exit codes](operations.md#exit-codes).

{commands}"""


def page() -> str:
    sections = [section for name, app in APPS.items() for section in _sections(name, typer.main.get_command(app))]
    return TEXT.format(commands="\n".join(sections))


def _sections(name: str, command: Any) -> Iterator[str]:
    """Yield a section for a command, and one for each command below it."""
    below = getattr(command, "commands", {})
    if " " not in name:
        yield f"## {name}\n\n{_prose(command)}".removesuffix("\n")
    elif not below or getattr(command, "invoke_without_command", False):
        yield f"### {name}\n\n{_usage(name, command)}{_prose(command)}{_options(command)}"
    for word, each in below.items():
        yield from _sections(f"{name} {word}", each)


def _usage(name: str, command: Any) -> str:
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    words = [_word(each) if each.required or each.metavar else f"[{_word(each)}]" for each in arguments]
    return f"`{' '.join([name, *words])}`\n\n" if words else ""


def _word(argument: Any) -> str:
    return argument.metavar or f"{argument.name.upper()}{'...' if argument.nargs == -1 else ''}"


def _prose(command: Any) -> str:
    """Return the help text with one paragraph a line."""
    paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
    return "".join(f"{' '.join(paragraph.split())}\n\n" for paragraph in paragraphs)


def _options(command: Any) -> str:
    rows = [
        [_names(each), _values(each), _default(each), f"`{each.envvar}`" if each.envvar else "", each.help or ""]
        for each in command.params
        if each.name != "help" and not each.hidden
    ]
    return table(["option", "values", "default", "variable", ""], rows) if rows else ""


def _names(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{_word(parameter)}`"
    return ", ".join(f"`{name}`" for name in [*parameter.opts, *parameter.secondary_opts])


def _values(parameter: Any) -> str:
    """Return what may be given: for a switch nothing, else the kind of value and its bounds."""
    if getattr(parameter, "is_flag", False):
        return ""
    annotation = parameter.type_descriptor.annotation
    inner = typing.get_args(annotation)
    kind = parameter.metavar or KINDS.get(inner[0] if inner else annotation, "text")
    bounds = [f"{sign} {bound}" for sign, bound in (("≥", parameter.min), ("≤", parameter.max)) if bound is not None]
    return f"{kind} {', '.join(bounds)}".strip()


def _default(parameter: Any) -> str:
    value = parameter.default
    if callable(value) or value in (None, False, "", [], ()) or parameter.required:
        return ""
    return f"`{value if isinstance(value, str | Path) else json.dumps(value)}`"
