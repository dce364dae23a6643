"""A request body as the description of the API shows it: made of the model that checks it and the table of its fields.

Place in the flow: each dialect's request.py declares both, tables.py names them by route, and app.py hands what is made
of them here to the description at /openapi.json. Knows nothing of any one API.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from swarm.gateway.dialects.fields import FieldRule, FieldTable, Handling

_DEFINITIONS = "#/$defs/"
_BOUNDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}
"""JSON Schema's names of bounds that pydantic leaves under its own where a validator stands before a number."""
_MEANING: Mapping[Handling, str] = {
    Handling.HONOURED: "",
    Handling.EVAL_ONLY: "honoured in eval episodes, refused in train episodes",
    Handling.NEUTRAL_ONLY: "refused with any other value",
    Handling.LABEL: "accepted, and asks nothing of the sampling",
}


@dataclass(frozen=True, slots=True)
class Body:
    """What a route takes: `api` is whose body it is, and `model` checks its fields. Fields that `model` leaves to
    another one are described by `others`."""

    api: str
    model: type[BaseModel]
    fields: FieldTable
    example: Mapping[str, Any]
    others: tuple[type[BaseModel], ...] = ()


class _Untitled(GenerateJsonSchema):
    """Without a title for each field, which would repeat its name."""

    def field_title_should_be_set(self, schema: object) -> bool:
        return False


def describe_body(body: Body) -> dict[str, Any]:
    """OpenAPI's request body, with a property for each field of the table."""
    checked, *others = (_schema(model) for model in (body.model, *body.others))
    known: dict[str, Any] = {}
    for schema in (*reversed(others), checked):
        known |= schema["properties"]
    schema = {
        "type": "object",
        "required": checked.get("required", []),
        "properties": {name: _describe_field(rule, known.get(name, {})) for name, rule in body.fields.items()},
        "additionalProperties": True,
    }
    return {
        "description": f"{body.api} body. A documented field that cannot be honoured is refused by name; a field nobody"
        " knows is accepted and named in the response header `x-ignored-fields`.",
        "required": True,
        "content": {"application/json": {"schema": schema, "example": dict(body.example)}},
    }


def _schema(model: type[BaseModel]) -> dict[str, Any]:
    schema = model.model_json_schema(schema_generator=_Untitled)
    return _resolve(schema, schema.pop("$defs", {}))


def _resolve(node: Any, definitions: Mapping[str, Any]) -> Any:
    """With what it refers to in the place of each reference: a body has no definitions of its own in OpenAPI."""
    if isinstance(node, list):
        return [_resolve(each, definitions) for each in cast("list[Any]", node)]
    if not isinstance(node, dict):
        return node
    mapping = cast("dict[str, Any]", node)
    reference = mapping.get("$ref")
    if isinstance(reference, str):
        named = definitions[reference.removeprefix(_DEFINITIONS)]
        return _resolve({**named, **{key: value for key, value in mapping.items() if key != "$ref"}}, definitions)
    return {
        _BOUNDS.get(key, key): _resolve(value, definitions)
        for key, value in mapping.items()
        if not _is_noise(key, value, is_model=isinstance(mapping.get("properties"), dict))
    }


def _is_noise(key: str, value: object, *, is_model: bool) -> bool:
    """The name of a class, a default that absence means too, and references by the kind of an alternative."""
    if key == "discriminator":
        return isinstance(value, dict) and "mapping" in value
    return (is_model and key == "title") or (key == "default" and value is None)


def _describe_field(rule: FieldRule, known: Mapping[str, Any]) -> dict[str, Any]:
    described = dict(known)
    if rule.handling is Handling.NEUTRAL_ONLY:
        described = {"enum": [*rule.neutral, None]}
    text = "; ".join(part for part in (_MEANING[rule.handling], rule.note) if part)
    return {**described, "description": text} if text else described
