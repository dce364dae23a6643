"""A base class for settings, which puts the docstring under each field into the JSON schema as its description."""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import Any

from pydantic import BaseModel, GetJsonSchemaHandler
from pydantic_core import CoreSchema


class DescribedModel(BaseModel):
    """A model whose fields are described where the class, or a base class of its, has them.

    pydantic has an option for this, but it reads the source code whenever the class is created. Here the source is read
    only when documentation or a planner asks for the schema.
    """

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler, /) -> dict[str, Any]:
        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema)["properties"]
        described = (base for base in reversed(cls.__mro__) if issubclass(base, DescribedModel))
        for name, description in (item for base in described for item in _docstrings_of(base).items()):
            if name in properties:
                properties[name]["description"] = description
        return schema


def _docstrings_of(model: type[BaseModel]) -> dict[str, str]:
    """Return the string that follows each field in the source of the class, by field."""
    [definition] = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    assert isinstance(definition, ast.ClassDef)
    found: dict[str, str] = {}
    for field, below in zip(definition.body, definition.body[1:], strict=False):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = inspect.cleandoc(text)
            case _:
                pass
    return found
