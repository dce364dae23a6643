"""The tools of OpenAI's Responses API, as the model is offered them and as a client expects their calls."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, cast, get_args

from pydantic import BeforeValidator, Field
from pydantic_core import from_json

from swarm.errors import BadRequest
from swarm.gateway.dialects.fields import Strict, only, shown, type_of, unsupported
from swarm.types import ToolSpec

INPUT = "input"
"""The parameter of the function that stands for a custom tool."""

HostedType = Literal[
    "code_interpreter",
    "computer",
    "computer_use_preview",
    "file_search",
    "image_generation",
    "mcp",
    "programmatic_tool_calling",
    "web_search",
    "web_search_2025_08_26",
    "web_search_preview",
    "web_search_preview_2025_03_11",
]
HOSTED_TYPES: frozenset[str] = frozenset(get_args(HostedType))
"""The types of tools that OpenAI carries out, or that only its models are trained for."""
TOOL_TYPES = ("function", "custom", "namespace", *sorted(HOSTED_TYPES))


@dataclass(frozen=True, slots=True)
class ClientCallForm:
    """The form in which a client expects the calls of a tool."""

    name: str
    namespace: str | None = None
    is_custom: bool = False


def qualified_name(name: str, namespace: str | None) -> str:
    """Return the name by which the model calls a tool."""
    return name if namespace is None else f"{namespace}.{name}"


def custom_input(arguments: str) -> str:
    """Return the text that a call gives to a custom tool. Arguments without that text are the text themselves."""
    try:
        value: Any = from_json(arguments)
    except ValueError:
        return arguments
    text: object = cast("dict[str, object]", value).get(INPUT) if isinstance(value, dict) else None
    return text if isinstance(text, str) else arguments


def custom_arguments(text: str) -> str:
    """Return the arguments of a call that gives this text to a custom tool."""
    return json.dumps({INPUT: text}, ensure_ascii=False)


class _Callable(Strict):
    """The fields that functions and custom tools share."""

    name: str = Field(min_length=1)
    description: str | None = None
    defer_loading: Annotated[bool | None, only(False)] = None
    allowed_callers: Annotated[list[str] | None, only(["direct"])] = None
    async_: Annotated[bool | None, only(False)] = Field(default=None, alias="async")


class FunctionTool(_Callable):
    """A function of the client."""

    type: Literal["function"]
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    def spec(self, namespace: str | None = None) -> ToolSpec:
        """Return the tool in the shape of chat completions."""
        return _spec(self, namespace, {"parameters": self.parameters, "strict": self.strict})

    def form(self, namespace: str | None = None) -> ClientCallForm:
        return ClientCallForm(self.name, namespace)

    def unused(self) -> tuple[str, ...]:
        return ()

    def shown(self) -> dict[str, Any]:
        """Return the function in the shape of a response."""
        return {"type": "function", "description": None, "parameters": None, "strict": None, **self.spec()["function"]}


class _CustomFormat(Strict):
    type: Literal["text", "grammar"]
    syntax: Literal["lark", "regex"] | None = None
    definition: str | None = None


class CustomTool(_Callable):
    """A tool of the client that takes one text. A grammar of the text is shown to the model, and not enforced."""

    type: Literal["custom"]
    format: _CustomFormat | None = None

    def spec(self, namespace: str | None = None) -> ToolSpec:
        """Return the function that stands for the tool, in the shape of chat completions."""
        text: dict[str, Any] = {"type": "string"}
        if self._grammar is not None:
            text["description"] = self._grammar
        parameters = {"type": "object", "properties": {INPUT: text}, "required": [INPUT]}
        return _spec(self, namespace, {"parameters": parameters})

    def form(self, namespace: str | None = None) -> ClientCallForm:
        return ClientCallForm(self.name, namespace, is_custom=True)

    def unused(self) -> tuple[str, ...]:
        return () if self._grammar is None else ("format",)

    def shown(self) -> dict[str, Any]:
        fields = self.model_dump(include={"type", "name", "format"}, exclude_none=True)
        return {**fields, "description": self.description}

    @property
    def _grammar(self) -> str | None:
        return self.format.definition if self.format and self.format.type == "grammar" else None


class NamespaceTool(Strict):
    """Tools of the client that share a namespace. Its description has no place in a chat template."""

    type: Literal["namespace"]
    name: str = Field(min_length=1)
    description: str
    tools: list[Annotated[FunctionTool | CustomTool, Field(discriminator="type")]]

    def shown(self) -> dict[str, Any]:
        fields = {"type": "namespace", "name": self.name, "description": self.description}
        return {**fields, "tools": [tool.shown() for tool in self.tools]}


class HostedTool(Strict):
    """A tool that the owner of the API carries out. Nobody does so here."""

    type: HostedType


def _known_tool(tool: object) -> object:
    kind = type_of(tool)
    if kind not in TOOL_TYPES:
        raise unsupported("tools of type {kind} are not supported: use function, custom or namespace", kind=shown(kind))
    return tool


Tool = Annotated[
    Annotated[FunctionTool | CustomTool | NamespaceTool | HostedTool, Field(discriminator="type")],
    BeforeValidator(_known_tool),
]


def _spec(tool: _Callable, namespace: str | None, fields: Mapping[str, Any]) -> ToolSpec:
    given = {"name": qualified_name(tool.name, namespace), "description": tool.description, **fields}
    return {"type": "function", "function": {key: value for key, value in given.items() if value is not None}}


@dataclass(frozen=True, slots=True)
class OfferedTools:
    """The tools of one request. `forms` has the form of a tool's calls by the name that the model calls it by.

    `shown` are the offered tools in the shape of a response. `ignored` names what has no effect.

    The model is offered functions alone. A tool of a namespace is a function with a qualified name, a custom tool is a
    function with one text, and a hosted tool is not offered.
    """

    specs: tuple[ToolSpec, ...]
    forms: Mapping[str, ClientCallForm]
    shown: tuple[dict[str, Any], ...]
    ignored: tuple[str, ...]

    @classmethod
    def of(cls, tools: Sequence[Tool]) -> OfferedTools:
        """Return the tools that the model is offered.

        Raises BadRequest if two different tools have the same qualified name.
        """
        forms: dict[str, ClientCallForm] = {}
        specs: list[ToolSpec] = []
        ignored: list[str] = []
        for tool, namespace in _flat(tools):
            name = qualified_name(tool.name, namespace)
            form = tool.form(namespace)
            if forms.setdefault(name, form) != form:
                raise BadRequest(f"tools: two tools are called {shown(name)}: rename one of them", param="tools")
            specs.append(tool.spec(namespace))
            ignored += [f"tools.{name}.{part}" for part in tool.unused()]
        ignored += [f"tools.{tool.name}.description" for tool in tools if isinstance(tool, NamespaceTool)]
        ignored += [f"tools.{tool.type}" for tool in tools if isinstance(tool, HostedTool)]
        visible = tuple(tool.shown() for tool in tools if not isinstance(tool, HostedTool))
        return cls(tuple(specs), forms, visible, tuple(dict.fromkeys(ignored)))


def _flat(tools: Iterable[Tool]) -> Iterable[tuple[FunctionTool | CustomTool, str | None]]:
    """Yield the functions and custom tools, each with its namespace."""
    for tool in tools:
        if isinstance(tool, NamespaceTool):
            yield from ((each, tool.name) for each in tool.tools)
        elif not isinstance(tool, HostedTool):
            yield tool, None
