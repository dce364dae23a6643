"""The OpenAPI description of a request body, made from the model that checks it and its field table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from swarm.gateway.dialects.fields import FieldRule, FieldTable, Handling

_DEFINITIONS = "#/$defs/"
_BOUNDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}
"""JSON Schema's names of bounds. Pydantic leaves its own names in the schema of a number with a validator before it."""
_MEANING: Mapping[Handling, str] = {
    Handling.HONOURED: "",
    Handling.EVAL_ONLY: "honoured in eval episodes, refused in train episodes",
    Handling.NEUTRAL_ONLY: "refused with any other value",
    Handling.LABEL: "accepted, without effect on sampling",
}


@dataclass(frozen=True, slots=True)
class BodySchema:
    """The request body of one route.

    `api` names the owner of the format, and `model` checks the fields. `others` are models that describe fields which
    `model` does not declare.
    """

    api: str
    model: type[BaseModel]
    fields: FieldTable
    example: Mapping[str, Any]
    others: tuple[type[BaseModel], ...] = ()


class _Untitled(GenerateJsonSchema):
    """A schema generator that leaves out the titles of fields, as they repeat the names."""

    def field_title_should_be_set(self, schema: object) -> bool:
        return False


def describe_body(body: BodySchema) -> dict[str, Any]:
    """Return the OpenAPI `requestBody` object, with a property for each field of the table."""
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
        "description": f"{body.api} body. A documented field that cannot be honoured is refused by name. An unknown"
        " field is accepted and named in the response header `x-ignored-fields`.",
        "required": True,
        "content": {"application/json": {"schema": schema, "example": dict(body.example)}},
    }


def _schema(model: type[BaseModel]) -> dict[str, Any]:
    schema = model.model_json_schema(schema_generator=_Untitled)
    return _resolve(schema, schema.pop("$defs", {}))


def _resolve(node: Any, definitions: Mapping[str, Any]) -> Any:
    """Return the node with each reference replaced by its definition, as OpenAPI allows no definitions in a body."""
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
    """Return whether an entry is useless to a reader.

    Such entries are the name of a model class, the default null, and a discriminator's mapping to definitions.
    """
    if key == "discriminator":
        return isinstance(value, dict) and "mapping" in value
    return (is_model and key == "title") or (key == "default" and value is None)


def _describe_field(rule: FieldRule, known: Mapping[str, Any]) -> dict[str, Any]:
    described = dict(known)
    if rule.handling is Handling.NEUTRAL_ONLY:
        described = {"enum": [*rule.neutral, None]}
    text = "; ".join(part for part in (_MEANING[rule.handling], rule.note) if part)
    return {**described, "description": text} if text else described
