"""What becomes of each field of a request body: the table that a dialect checks bodies against and the docs print.

Place in the flow: below the dialects. Three things can happen to a documented field: it is honoured, it is refused by
name unless its value asks for nothing, or it is a label or hint that asks nothing of the sampling. Any other field is
unknown: accepted and named. Knows nothing of any one API.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError
from pydantic import Field as Bounds
from pydantic_core import PydanticCustomError

from swarm.errors import BadRequest, UnknownParameter

MAX_NAMED_FIELDS = 32
MAX_SHOWN_CHARACTERS = 80
MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 1000
ANY_MODEL = "any name; one that is not the served model's is named in `x-ignored-fields`"


class Handling(StrEnum):
    """What happens to a documented field."""

    HONOURED = "honoured"
    EVAL_ONLY = "honoured in eval episodes, refused in train episodes"
    NEUTRAL_ONLY = "refused"
    LABEL = "accepted"


@dataclass(frozen=True, slots=True)
class Field:
    """`neutral` are the values of a `NEUTRAL_ONLY` field that ask for nothing; `note` completes the docs."""

    handling: Handling
    neutral: tuple[object, ...] = ()
    note: str = ""


FieldTable = Mapping[str, Field]


def honoured(*names: str, note: str = "") -> dict[str, Field]:
    return dict.fromkeys(names, Field(Handling.HONOURED, note=note))


def eval_only(*names: str) -> dict[str, Field]:
    """Sampling parameters that change the distribution in a way the loss does not follow."""
    return dict.fromkeys(names, Field(Handling.EVAL_ONLY))


def labels(*names: str) -> dict[str, Field]:
    return dict.fromkeys(names, Field(Handling.LABEL))


def refused(name: str, *neutral: object, note: str = "") -> dict[str, Field]:
    return {name: Field(Handling.NEUTRAL_ONLY, neutral, note)}


def refuse_unsupported(body: Mapping[str, Any], table: FieldTable) -> None:
    """Raises UnknownParameter for a field that asks for what cannot be done."""
    for name, value in body.items():
        field = table.get(name)
        if field is None or field.handling is not Handling.NEUTRAL_ONLY or value is None:
            continue
        if any(_same(value, neutral) for neutral in field.neutral):
            continue
        allowed = f"only {' or '.join(repr(value) for value in field.neutral)} is" if field.neutral else "it is not"
        raise UnknownParameter(f"{name} cannot be honoured: {allowed} supported by this server", param=name)


def unknown_fields(body: Mapping[str, Any], table: FieldTable) -> tuple[str, ...]:
    """The names of fields that are in no table, as a response header can carry them, and how many more there are."""
    names = sorted(body.keys() - table.keys())
    shown_names = [ascii(name)[1:-1][:MAX_SHOWN_CHARACTERS] for name in names[:MAX_NAMED_FIELDS]]
    return (
        (*shown_names, f"and {len(names) - MAX_NAMED_FIELDS} more")
        if len(names) > MAX_NAMED_FIELDS
        else tuple(shown_names)
    )


def _same(value: object, neutral: object) -> bool:
    """Equal in JSON: true is no number."""
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)


def shown(value: object) -> str:
    return repr(value)[:MAX_SHOWN_CHARACTERS]


def unsupported(message: str, **context: object) -> PydanticCustomError:
    """For validators: a value that is sound but cannot be honoured."""
    return PydanticCustomError("unsupported", cast(Any, message), context or None)


class Strict(BaseModel):
    """A JSON number is never read from a string, nor the other way round; further fields are kept."""

    model_config = ConfigDict(extra="allow", strict=True)


class StrictBody(BaseModel):
    """A body of which only the honoured fields are declared; the rest is judged by its table."""

    model_config = ConfigDict(extra="ignore", strict=True)


def _as_list(stop: object) -> object:
    return [stop] if isinstance(stop, str) else stop


StopString = Annotated[str, Bounds(min_length=1, max_length=MAX_STOP_CHARACTERS)]
StopStrings = Annotated[list[StopString], BeforeValidator(_as_list), Bounds(max_length=MAX_STOP_STRINGS)]

_RANGE_ERRORS = frozenset({"greater_than", "greater_than_equal", "less_than", "less_than_equal", "finite_number"})


def one_line(error: ValidationError, *, prefix: Iterable[str] = ()) -> BadRequest:
    """The first thing wrong with a body, naming the field. `prefix` is where the validated value stands in it."""
    first = error.errors(include_url=False)[0]
    param = ".".join([*prefix, *(str(part) for part in first["loc"])]) or None
    refused_value = first["type"] == "unsupported" or first["type"] in _RANGE_ERRORS
    got = f" (got {shown(first['input'])})" if first["type"] in _RANGE_ERRORS else ""
    message = f"{param}: {first['msg']}{got}" if param else first["msg"]
    return (UnknownParameter if refused_value else BadRequest)(message, param=param)
