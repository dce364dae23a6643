# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
"""Demonstrations: conversations whose replies a model is trained to give, read from OpenAI's JSON lines or Parquet."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from swarm.errors import BadRequest
from swarm.types import Message, ToolSpec

DIGEST_PREFIX: Final = "sha256:"
PARQUET: Final = ".parquet"
MOST_LINES: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A conversation. A model is trained on the messages at the places `trained`, all of them by the assistant."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]
    trained: tuple[int, ...]


class _Function(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)

    name: str = Field(min_length=1)


class _Named(BaseModel):
    """A tool or a tool call."""

    model_config = ConfigDict(extra="allow", strict=True)

    function: _Function


class _Message(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[dict[str, Any]] | None = None
    weight: Literal[0, 1] | None = None
    tool_calls: list[_Named] | None = None


class _Line(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    messages: list[_Message] = Field(min_length=2)
    tools: list[_Named] = Field(default_factory=list[_Named])
    # Fields of OpenAI's files that change nothing about the tokens.
    parallel_tool_calls: bool | None = None
    metadata: dict[str, Any] | None = None


def read_demonstration_file(path: Path) -> bytes:
    """Return the demonstrations of a file as JSON lines; a name that ends in `.parquet` is a Parquet file.

    Raise BadRequest, which names the file and the line, unless every line is a demonstration.
    """
    try:
        content = _lines_of_parquet(path) if path.suffix == PARQUET else path.read_bytes()
    except OSError as error:
        raise BadRequest(f"{path}: cannot be read: {error.strerror}", param="demonstrations") from error
    parse_demonstrations(content, source=str(path))
    return content


def parse_demonstrations(content: bytes, *, source: str = "demonstrations") -> tuple[Demonstration, ...]:
    """Return the demonstrations of JSON lines, without the blank lines. Raise BadRequest for the first wrong line."""
    found: list[Demonstration] = []
    for number, line in enumerate(content.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            found.append(_parse(line))
        except ValueError as error:
            raise BadRequest(f"{source}: line {number}: {error}", param="demonstrations") from None
        if len(found) > MOST_LINES:
            raise BadRequest(f"{source}: more than {MOST_LINES:,} lines: split the file", param="demonstrations")
    if not found:
        raise BadRequest(f"{source}: it holds no demonstration", param="demonstrations")
    return tuple(found)


def digest_demonstrations(content: bytes) -> str:
    """Return the name by which a job refers to demonstrations: the SHA-256 of their JSON lines."""
    return DIGEST_PREFIX + sha256(content).hexdigest()


def is_digest(name: str) -> bool:
    """Return whether a job's `demonstrations` are named by digest, and not by a file of the client."""
    return name.startswith(DIGEST_PREFIX)


def write_demonstrations(conversations: Iterable[tuple[Iterable[Message], Iterable[ToolSpec]]]) -> bytes:
    """Return conversations, each with its tools, as JSON lines."""
    return b"".join(
        json.dumps(
            {"messages": [dict(each) for each in messages], **({"tools": [*tools]} if tools else {})},
            ensure_ascii=False,
        ).encode()
        + b"\n"
        for messages, tools in ((messages, [*tools]) for messages, tools in conversations)
    )


def _parse(line: bytes) -> Demonstration:
    """Return the demonstration of a line. Raise ValueError with what is wrong with it."""
    try:
        given = json.loads(line)
        parsed = _Line.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        if first["type"] == "extra_forbidden":
            raise ValueError(f"unknown field {where}: a line has messages, and may have tools") from None
        raise ValueError(f"{where}: {first['msg']}" if where else first["msg"]) from None
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"no JSON: {error}") from None
    trained = [
        place for place, each in enumerate(parsed.messages) if each.role == "assistant" and each.weight in {None, 1}
    ]
    if not trained:
        raise ValueError("no message of the assistant to train on (one with weight 0 is not trained on)")
    if trained[0] == 0:
        raise ValueError("the first message is the assistant's: a reply needs a message before it")
    for place in trained:
        message = parsed.messages[place]
        if not message.content and not message.tool_calls:
            raise ValueError(f"messages.{place}: a reply needs content or tool_calls")
    # As they were given: a chat template shows tools with their keys in the order of the request.
    messages = [{key: value for key, value in each.items() if key != "weight"} for each in given["messages"]]
    return Demonstration(tuple(messages), tuple(given.get("tools", ())), tuple(trained))


def _lines_of_parquet(path: Path) -> bytes:
    try:
        # Imported late: most runs read no Parquet.
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise BadRequest(
            f"{path}: reading Parquet needs pyarrow: pip install 'swarm-researcher[environments]'",
            param="demonstrations",
        ) from None
    try:
        rows = cast("list[dict[str, Any]]", parquet.read_table(path).to_pylist())
    except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError) as error:
        raise BadRequest(f"{path}: no Parquet file: {error}", param="demonstrations") from error
    return b"".join(json.dumps(_without_nulls(row), ensure_ascii=False).encode() + b"\n" for row in rows)


def _without_nulls(value: Any) -> Any:
    """Return the value without fields that are null: Parquet has every field of a struct in each row."""
    if isinstance(value, Mapping):
        fields = cast("Mapping[str, Any]", value)
        return {name: _without_nulls(each) for name, each in fields.items() if each is not None}
    if isinstance(value, list):
        return [_without_nulls(each) for each in cast("list[Any]", value)]
    return value
