"""The page of every route of the server with its parameters and bodies, from the OpenAPI document."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from tempfile import TemporaryDirectory
from typing import Any

import httpx
from markdown_table import table

JSON, SCHEMAS = "application/json", "#/components/schemas/"
BOUNDS = {"minimum": "≥ {}", "exclusiveMinimum": "> {}", "maximum": "≤ {}", "exclusiveMaximum": "< {}"}
EXACT = 10**15
"""A larger bound is that of a number format, and of no interest."""
TEXT = """\
# Routes

A server has the same as an OpenAPI document at `/openapi.json`. [HTTP API](http-api.md) explains the routes, with a
call for each.

{routes}
## Bodies

A field without a default that is not required may be left out.

{bodies}"""


def read_document() -> dict[str, Any]:
    """Return the OpenAPI document of a server without a model, which ends afterwards."""
    with TemporaryDirectory() as home:
        command = [sys.executable, "-m", "swarm.cli", "start", "--port", "0", "--home", home, "--json", "--no-record"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            try:
                url = json.loads(server.stdout.readline())["url"]
                return httpx.get(f"{url}/openapi.json", timeout=60).raise_for_status().json()
            finally:
                server.terminate()


def page() -> str:
    document = read_document()
    routes = [
        _route(method, path, operation)
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    ]
    schemas = document["components"]["schemas"]
    bodies = "\n".join(_body(name, schema) for name, schema in sorted(schemas.items()))
    return TEXT.format(routes="\n".join(routes), bodies=bodies)


def _route(method: str, path: str, operation: Mapping[str, Any]) -> str:
    parts = [f"## {method.upper()} {path}\n\n", f"{_prose(operation)}\n\n"]
    if parameters := operation.get("parameters"):
        parts.append(
            f"{table(['parameter', 'in', 'values', 'default', ''], [_parameter(each) for each in parameters])}\n"
        )
    content = operation.get("requestBody", {}).get("content", {})
    if schema := content.get(JSON, {}).get("schema"):
        parts.append(_request(schema))
    answers = [[status, *_answer(each)] for status, each in operation["responses"].items()]
    return "".join([*parts, table(["status", "body", "meaning"], answers)])


def _parameter(parameter: Mapping[str, Any]) -> list[str]:
    schema, text = parameter["schema"], parameter.get("description", "")
    return [f"`{parameter['name']}`", parameter["in"], _kind(schema), _default(schema), text]


def _request(schema: Mapping[str, Any]) -> str:
    """Return the body of a request: a link to it, or its fields if it has no name."""
    if "properties" not in schema:
        return f"Body: {_kind(schema)}.\n\n"
    return f"Body:\n\n{_fields(schema)}\n"


def _answer(response: Mapping[str, Any]) -> list[str]:
    kinds = [
        _kind(each["schema"]) if name == JSON and each.get("schema") else f"`{name}`"
        for name, each in response.get("content", {}).items()
    ]
    return [" or ".join(kinds), response.get("description", "")]


def _body(name: str, schema: Mapping[str, Any]) -> str:
    described = f"{_prose(schema)}\n\n" if schema.get("description") else ""
    fields = f"One of {_kind(schema)}.\n" if "enum" in schema else _fields(schema)
    return f"### {name}\n\n{described}{fields}"


def _fields(schema: Mapping[str, Any]) -> str:
    required = schema.get("required", [])
    rows = [
        [f"`{name}`", _kind(field), "required" if name in required else _default(field), field.get("description", "")]
        for name, field in schema.get("properties", {}).items()
    ]
    return table(["field", "values", "default", ""], rows) if rows else "No fields.\n"


def _prose(described: Mapping[str, Any]) -> str:
    """Return the description with one paragraph a line."""
    text = described.get("description") or f"{described['summary']}."
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


def _kind(schema: Mapping[str, Any]) -> str:
    return " or ".join(dict.fromkeys(_kinds(schema)))


def _kinds(schema: Mapping[str, Any]) -> Iterator[str]:
    """Yield the kinds of value that a schema allows, without null, which stands for the default."""
    if reference := schema.get("$ref"):
        name = reference.removeprefix(SCHEMAS)
        yield f"[{name}](#{name.lower()})"
    elif kinds := schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf"):
        for kind in kinds:
            yield from _kinds(kind)
    elif "enum" in schema:
        values = [value if isinstance(value, str) else json.dumps(value) for value in schema["enum"]]
        yield ", ".join(f"`{value}`" for value in values)
    elif "const" in schema:
        yield f"`{json.dumps(schema['const'])}`"
    elif schema.get("type") == "array":
        yield f"list of {_kind(schema.get('items', {})) or 'values'}"
    elif schema.get("type") != "null":
        found = [(text, schema[name]) for name, text in BOUNDS.items() if name in schema]
        limits = [
            text.format(int(bound) if bound == int(bound) else bound) for text, bound in found if abs(bound) < EXACT
        ]
        yield f"{schema.get('type', 'any value')} {', '.join(limits)}".strip()


def _default(schema: Mapping[str, Any]) -> str:
    value = schema.get("default")
    return "" if value in (None, [], {}) else f"`{json.dumps(value)}`"
