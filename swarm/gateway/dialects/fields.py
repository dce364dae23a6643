"""Field tables, which define the handling of each field of a request body, and the fields that several APIs share."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Any, Generic, Literal, Protocol, TypeVar, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from swarm.errors import BadRequest, UnknownParameter
from swarm.rollout.model_request import ModelRequest, SamplingDefaults
from swarm.sampling_limits import SAMPLING_LIMITS, Temperature
from swarm.types import Grammar, GrammarKind, SamplingParams

MAX_NAMED_FIELDS = 32
MAX_SHOWN_CHARACTERS = 80
MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 1000
MAX_CHOICES = 128
ANY_MODEL = "any name; one that is not the served model's is named in `x-ignored-fields`"


class Handling(StrEnum):
    """The handling of a documented field by the server."""

    HONOURED = "honoured"
    EVAL_ONLY = "honoured in eval episodes, refused in train episodes"
    NEUTRAL_ONLY = "refused"
    LABEL = "accepted"


@dataclass(frozen=True, slots=True)
class FieldRule:
    """The rule for one documented field.

    `neutral` holds the values of a `NEUTRAL_ONLY` field that change nothing, so that they are accepted. `note` is shown
    in the docs.

    Any field without a rule is unknown: it is accepted and named in the response.
    """

    handling: Handling
    neutral: tuple[object, ...] = ()
    note: str = ""


FieldTable = Mapping[str, FieldRule]


def honoured(*names: str, note: str = "") -> dict[str, FieldRule]:
    return dict.fromkeys(names, FieldRule(Handling.HONOURED, note=note))


def eval_only(*names: str) -> dict[str, FieldRule]:
    """Return rules for sampling parameters that change the distribution in a way that the loss does not account for."""
    return dict.fromkeys(names, FieldRule(Handling.EVAL_ONLY))


def labels(*names: str) -> dict[str, FieldRule]:
    return dict.fromkeys(names, FieldRule(Handling.LABEL))


def refused(name: str, *neutral: object, note: str = "") -> dict[str, FieldRule]:
    return {name: FieldRule(Handling.NEUTRAL_ONLY, neutral, note)}


def never(*names: str) -> dict[str, FieldRule]:
    """Return rules for fields that are refused with any value."""
    return dict.fromkeys(names, FieldRule(Handling.NEUTRAL_ONLY))


UNTRAINED_SAMPLING = eval_only(
    "top_p", "top_k", "min_p", "min_tokens", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias"
)
"""The rules of sampling parameters that OpenAI's and vLLM's APIs share."""


def refuse_unsupported(body: Mapping[str, Any], table: FieldTable) -> None:
    """Raise UnknownParameter for the first field that the server cannot honour."""
    for name, value in body.items():
        field = table.get(name)
        if field is None or field.handling is not Handling.NEUTRAL_ONLY or value is None:
            continue
        if any(_same(value, neutral) for neutral in field.neutral):
            continue
        allowed = f"only {' or '.join(repr(value) for value in field.neutral)} is" if field.neutral else "it is not"
        raise UnknownParameter(f"{name} cannot be honoured: {allowed} supported; leave it out", param=name)


def unknown_fields(body: Mapping[str, Any], table: FieldTable, others: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the names of the fields that the table lacks and of other parts without effect, for a response header.

    They are in ASCII. At most MAX_NAMED_FIELDS are named; a last entry gives the number of the others.
    """
    names = [*sorted(body.keys() - table.keys()), *others]
    shown_names = [ascii(name)[1:-1][:MAX_SHOWN_CHARACTERS] for name in names[:MAX_NAMED_FIELDS]]
    return (
        (*shown_names, f"and {len(names) - MAX_NAMED_FIELDS} more")
        if len(names) > MAX_NAMED_FIELDS
        else tuple(shown_names)
    )


def _same(value: object, neutral: object) -> bool:
    """Return whether two JSON values are equal. Unlike in Python, true is not 1."""
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)


def shown(value: object) -> str:
    return repr(value)[:MAX_SHOWN_CHARACTERS]


def unsupported(message: str, **context: object) -> PydanticCustomError:
    """Return the error that a validator raises for a valid value that the server cannot honour."""
    return PydanticCustomError("unsupported", cast(Any, message), context or None)


def only(*neutral: object) -> BeforeValidator:
    """Return a validator that refuses every value except None and these."""

    def check(value: object) -> object:
        if value is not None and not any(value is each or value == each for each in neutral):
            raise unsupported("only {allowed} is supported", allowed=" or ".join(map(repr, neutral)))
        return value

    return BeforeValidator(check)


def type_of(value: object) -> object:
    """Return the field `type` of a JSON object, or None for any other value."""
    return cast("dict[str, object]", value).get("type") if isinstance(value, dict) else None


def joined_text(*kinds: str) -> Callable[[object], object]:
    """Return a function that joins the text parts of a content. It refuses a part that has no type of `kinds`."""

    def join(content: object) -> object:
        if not isinstance(content, list):
            return content
        texts: list[str] = []
        for part in cast("list[object]", content):
            if (kind := type_of(part)) not in kinds:
                raise unsupported("content parts of type {kind} are not supported: send text", kind=shown(kind))
            text = cast("dict[str, object]", part).get("text")
            if not isinstance(text, str):
                raise PydanticCustomError("text", "a text part needs a string in its field text")
            texts.append(text)
        return "".join(texts)

    return join


class Strict(BaseModel):
    """A model without conversions between JSON types, such as from string to number. Unknown fields are kept."""

    model_config = ConfigDict(extra="allow", strict=True)


class StrictBody(BaseModel):
    """A body that declares only the honoured fields. The field table handles the others."""

    model_config = ConfigDict(extra="ignore", strict=True)


def _as_list(stop: object) -> object:
    return [stop] if isinstance(stop, str) else stop


StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]
StopList = Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS)]
StopStrings = Annotated[StopList, BeforeValidator(_as_list, json_schema_input_type=StopString | StopList)]

_RANGE_ERRORS = frozenset({"greater_than", "greater_than_equal", "less_than", "less_than_equal", "finite_number"})


def one_line(error: ValidationError, *, prefix: Iterable[str] = ()) -> BadRequest:
    """Return the first error of a body as one line that names the field.

    `prefix` is the path from the body to the validated value. The result is UnknownParameter for a value out of range
    or one that cannot be honoured, else BadRequest.
    """
    first = error.errors(include_url=False)[0]
    param = ".".join([*prefix, *(str(part) for part in first["loc"])]) or None
    refused_value = first["type"] == "unsupported" or first["type"] in _RANGE_ERRORS
    got = f" (got {shown(first['input'])})" if first["type"] in _RANGE_ERRORS else ""
    message = f"{param}: {first['msg']}{got}" if param else first["msg"]
    return (UnknownParameter if refused_value else BadRequest)(message, param=param)


Form = TypeVar("Form", bound=BaseModel)


def checked_body(form: type[Form], body: Mapping[str, Any], table: FieldTable) -> Form:
    """Return the body as a model of class `form`.

    Raises BadRequest, or UnknownParameter for a field that cannot be honoured. Both name the field in `param`.
    """
    if not isinstance(cast(object, body), Mapping):
        raise BadRequest("the body must be a JSON object")
    refuse_unsupported(body, table)
    try:
        return form.model_validate(dict(body))
    except ValidationError as error:
        raise one_line(error) from error


def _enforceable(mode: str) -> str:
    if mode == "auto":
        raise unsupported("only required is supported: for auto, send in `tools` just those that may be called")
    return mode


AllowedMode = Annotated[Literal["auto", "required"], AfterValidator(_enforceable)]
"""The `mode` of OpenAI's `allowed_tools`: `required` means that the reply must call one of them."""

MAX_BIASES = 1024
MAX_TOP_LOGPROBS = int(SAMPLING_LIMITS["top_logprobs"].high)
MAX_ALTERNATIVES = 1024

_COMPACT: Mapping[str, object] = MappingProxyType(
    {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"}
)
"""llguidance's options for JSON without whitespace. A small model may write whitespace without end if it is allowed.

The options are part of the grammar's text. A recorded turn keeps its own text, and so the options it was sampled with.
"""
_STRUCTURES = ("json", "regex", "choice", "grammar", "json_object")


def _to_number(value: object) -> object:
    """Return an integer as a float. One too large for a float becomes infinite, which later checks refuse."""
    if not isinstance(value, int) or isinstance(value, bool):
        return value
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


Number = Annotated[float, BeforeValidator(_to_number)]
AskedTemperature = Annotated[Temperature, BeforeValidator(_to_number)]


class SamplingBody(StrictBody):
    """The sampling fields that OpenAI's and vLLM's APIs share. None means the same as an absent field."""

    model: str = Field(min_length=1)
    stream: bool | None = None
    temperature: AskedTemperature | None = Field(default=None, ge=0, le=2)
    top_p: Number | None = Field(default=None, gt=0, le=1, allow_inf_nan=False)
    top_k: int | None = Field(default=None, ge=-1, lt=2**31)
    min_p: Number | None = Field(default=None, ge=0, le=1, allow_inf_nan=False)
    presence_penalty: Number | None = Field(default=None, ge=-2, le=2, allow_inf_nan=False)
    frequency_penalty: Number | None = Field(default=None, ge=-2, le=2, allow_inf_nan=False)
    repetition_penalty: Number | None = Field(
        default=None,
        ge=SAMPLING_LIMITS["repetition_penalty"].low,
        le=SAMPLING_LIMITS["repetition_penalty"].high,
        allow_inf_nan=False,
    )
    logit_bias: dict[str, Number] | None = Field(default=None, max_length=MAX_BIASES)
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    stop: StopStrings | None = None
    stop_token_ids: list[Annotated[int, Field(ge=0, lt=2**31)]] | None = Field(default=None, max_length=128)
    min_tokens: int | None = Field(default=None, ge=0, lt=2**31)
    ignore_eos: bool | None = None
    structured_outputs: dict[str, Any] | None = None

    def sampling_params(
        self,
        defaults: SamplingDefaults,
        *,
        max_tokens: int | None,
        grammar: Grammar | None = None,
        top_logprobs: int = 0,
    ) -> SamplingParams:
        """Return the sampling parameters of the body.

        Raises BadRequest for a logit bias whose key is not a token id, or for two grammars.
        """
        structure = None if self.structured_outputs is None else structured_grammar(self.structured_outputs)
        if grammar is not None and structure is not None:
            raise BadRequest("send either response_format or structured_outputs", param="structured_outputs")
        own_stops = tuple(self.stop_token_ids or ())
        return SamplingParams(
            max_tokens=max_tokens or defaults.max_tokens,
            temperature=defaults.temperature if self.temperature is None else self.temperature,
            top_p=defaults.top_p if self.top_p is None else self.top_p,
            # vLLM's clients send -1 to switch it off.
            top_k=max(self.top_k or 0, 0),
            seed=None if self.seed is None else self.seed % 2**63,
            stop=tuple(self.stop or ()),
            stop_token_ids=own_stops if self.ignore_eos else tuple(dict.fromkeys(defaults.stop_token_ids + own_stops)),
            min_p=self.min_p or 0.0,
            presence_penalty=self.presence_penalty or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            repetition_penalty=1.0 if self.repetition_penalty is None else self.repetition_penalty,
            logit_bias=_biases(self.logit_bias or {}),
            min_tokens=self.min_tokens or 0,
            ignore_eos=bool(self.ignore_eos),
            grammar=grammar or structure,
            top_logprobs=top_logprobs,
        )


def _biases(given: Mapping[str, float]) -> tuple[tuple[int, float], ...]:
    biases: dict[int, float] = {}
    for token, bias in given.items():
        if not token.isdecimal() or not token.isascii() or len(token) > 10:
            raise BadRequest(f"logit_bias: {shown(token)} is not a token id", param="logit_bias")
        if not (limit := SAMPLING_LIMITS["logit_bias"]).allows(bias):
            raise UnknownParameter(f"logit_bias: {bias} cannot be honoured: send {limit}", param="logit_bias")
        biases[int(token)] = bias
    return tuple(sorted(biases.items()))


class _JsonSchema(Strict):
    name: str | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Strict):
    """OpenAI's `response_format`. A schema is always enforced strictly."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: _JsonSchema | None = None

    @model_validator(mode="after")
    def _schema_if_named(self) -> ResponseFormat:
        if self.type == "json_schema" and self.json_schema is None:
            raise PydanticCustomError("missing", "type json_schema needs the field json_schema")
        return self

    def grammar(self) -> Grammar | None:
        if self.type == "text":
            return None
        if self.type == "json_object" or self.json_schema is None or self.json_schema.schema_ is None:
            return json_object_grammar()
        return json_schema_grammar(self.json_schema.schema_)


def json_object_grammar() -> Grammar:
    return Grammar(GrammarKind.JSON_OBJECT, _compact({"type": "object"}))


def json_schema_grammar(schema: Mapping[str, Any]) -> Grammar:
    return Grammar(GrammarKind.JSON_SCHEMA, _compact(schema))


def _compact(schema: Mapping[str, Any]) -> str:
    """Return the schema as JSON text. The client's own options for llguidance are replaced."""
    return json.dumps({**schema, "x-guidance": dict(_COMPACT)}, ensure_ascii=False)


def _parsed_schema(text: str) -> dict[str, Any]:
    with suppress(ValueError, RecursionError):
        if isinstance(schema := json.loads(text), dict):
            return cast("dict[str, Any]", schema)
    raise BadRequest("structured_outputs.json must be a JSON schema or its text", param="structured_outputs")


def structured_grammar(given: Mapping[str, Any]) -> Grammar:
    """Return the grammar of vLLM's `structured_outputs`.

    Raises BadRequest unless exactly one of json, regex, choice, grammar and json_object is given with a valid value.
    """
    asked = {name: value for name, value in given.items() if value is not None}
    name = next(iter(asked), "")
    if len(asked) != 1 or name not in _STRUCTURES:
        raise BadRequest(
            f"structured_outputs takes exactly one of {', '.join(_STRUCTURES)}", param="structured_outputs"
        )
    value = asked[name]
    match name, value:
        case "json", dict():
            return json_schema_grammar(cast("dict[str, Any]", value))
        case "json", str():
            return json_schema_grammar(_parsed_schema(value))
        case "json_object", True:
            return json_object_grammar()
        case "regex", str():
            return Grammar(GrammarKind.REGEX, value)
        case "grammar", str():
            return Grammar(GrammarKind.LARK, value)
        case "choice", [*alternatives] if _are_texts(cast("list[object]", alternatives)):
            return Grammar(GrammarKind.REGEX, "|".join(re.escape(str(each)) for each in alternatives))
        case _:
            raise BadRequest(f"structured_outputs.{name} has a value of the wrong type", param="structured_outputs")


def _are_texts(alternatives: list[object]) -> bool:
    return 0 < len(alternatives) <= MAX_ALTERNATIVES and all(isinstance(each, str) for each in alternatives)


class _StreamOptions(Strict):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None

    @field_validator("continuous_usage_stats")
    @classmethod
    def _usage_at_the_end(cls, is_asked: bool | None) -> bool | None:
        if is_asked:
            raise unsupported("usage is sent once, at the end: use include_usage instead")
        return is_asked


class CompletionsBody(SamplingBody):
    """The fields that chat and text completions share."""

    n: int | None = Field(default=None, ge=1, le=MAX_CHOICES)
    max_tokens: int | None = Field(default=None, ge=1, lt=2**31)
    response_format: ResponseFormat | None = None
    stream_options: _StreamOptions | None = None
    return_token_ids: bool | None = None

    @property
    def includes_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def format_grammar(self) -> Grammar | None:
        return self.response_format.grammar() if self.response_format else None


class _Streamable(Protocol):
    @property
    def stream(self) -> bool | None: ...


Form_co = TypeVar("Form_co", bound=_Streamable, covariant=True)


@dataclass(frozen=True, slots=True)
class CheckedCall(Generic[Form_co]):
    """A checked request: its body, the call that it asks for, and its fields without effect, in printable ASCII."""

    body: Form_co
    call: ModelRequest
    ignored_fields: tuple[str, ...]

    @property
    def stream(self) -> bool:
        return bool(self.body.stream)
