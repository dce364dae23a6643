"""The tables of a ledger, each declared once by the class of its rows: their SQL, and values in and out of columns."""

from __future__ import annotations

import json
import struct
import sys
import zlib
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, asdict, fields
from enum import StrEnum
from types import NoneType
from typing import Any, Generic, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from swarm.errors import LedgerError
from swarm.ledger.rows import (
    AuditRow,
    BatchRow,
    EpisodeRow,
    EvaluationRow,
    EventRow,
    JobRow,
    LeaseRow,
    ModelUse,
    SamplingSettings,
    StateRow,
)
from swarm.live_settings import JobChange
from swarm.pass_at_k import PassAtK
from swarm.types import Grammar, GrammarKind, SamplingParams, Turn

SCHEMA_VERSION = 2
APPLICATION_ID = 0x53574C47
"""The number in SQLite's header that marks the file as a ledger, so that no other program's database is written to."""

ACKNOWLEDGED = "('completed', 'trained', 'dropped')"
"""The states, in SQL, of an episode whose stored result was acknowledged to its client."""

Stored = None | int | float | str | bytes
R = TypeVar("R")

# json.dumps makes a new encoder at each call that asks for other separators.
_ENCODER = json.JSONEncoder(separators=(",", ":"))


def to_json(value: object) -> str:
    """Return a value as compact JSON. Raise LedgerError for a value that JSON cannot express."""
    try:
        return _ENCODER.encode(value)
    except (TypeError, ValueError) as error:
        raise LedgerError(f"cannot be stored as JSON: {error}") from error


class ColumnCodec(NamedTuple):
    """The form of a value in a column: its type in SQL, and the functions to and from that form."""

    sql: str
    encode: Callable[[Any], Stored]
    decode: Callable[[Any], Any]


def _packed(typecode: str) -> ColumnCodec:
    """Return the codec of numbers as bytes of fixed width, little-endian."""

    def pack(values: Sequence[float]) -> bytes:
        numbers: array[Any] = array(typecode, values)
        if sys.byteorder == "big":
            numbers.byteswap()
        return numbers.tobytes()

    def unpack(blob: bytes) -> tuple[float, ...]:
        numbers: array[Any] = array(typecode)
        numbers.frombytes(blob)
        if sys.byteorder == "big":
            numbers.byteswap()
        return tuple(numbers)

    return ColumnCodec("BLOB", pack, unpack)


# Every token id and weight version fits in signed 32 bits; -1 means "none" in both. Logprobs keep all 64 bits, so that
# they are read back bit by bit.
INTEGERS, FLOATS = _packed("i"), _packed("d")
_PARAM_DEFAULTS = {parameter.name: parameter.default for parameter in fields(SamplingParams)}


def _encode_params(params: SamplingParams) -> str:
    """Return the parameters that differ from the defaults, which are few."""
    given = {name: value for name, usual in _PARAM_DEFAULTS.items() if (value := getattr(params, name)) != usual}
    if params.grammar is not None:
        given["grammar"] = asdict(params.grammar)
    return to_json(given)


def _decode_params(stored: str) -> SamplingParams:
    params: dict[str, Any] = json.loads(stored)
    for name in ("stop", "stop_token_ids"):
        params[name] = tuple(params.get(name, ()))
    params["logit_bias"] = tuple((token_id, bias) for token_id, bias in params.get("logit_bias", ()))
    if (grammar := params.get("grammar")) is not None:
        params["grammar"] = Grammar(GrammarKind(grammar["kind"]), grammar["text"])
    return SamplingParams(**params)


def encode_passes(passes: Sequence[PassAtK]) -> str:
    return to_json([asdict(each) for each in passes])


def _decode_passes(stored: str) -> tuple[PassAtK, ...]:
    return tuple(PassAtK(**each) for each in json.loads(stored))


def to_sampling(stored: str) -> tuple[SamplingSettings, ...]:
    return tuple(
        SamplingSettings(temperature, tuple((name, value) for name, value in others))
        for temperature, others in json.loads(stored)
    )


def _to_tuple(stored: str) -> tuple[Any, ...]:
    return tuple(json.loads(stored))


def _from_mapping(value: Mapping[str, Any]) -> str:
    return to_json(dict(value))


def _codec_of(hint: Any) -> ColumnCodec:
    """Return the usual codec of a type."""
    if hint == tuple[SamplingSettings, ...]:
        return ColumnCodec("TEXT", to_json, to_sampling)
    kind: Any = get_origin(hint) or hint
    if kind is tuple:
        return ColumnCodec("TEXT", to_json, _to_tuple)
    if issubclass(kind, Mapping):
        return ColumnCodec("TEXT", _from_mapping, json.loads)
    sql = {bool: "INTEGER", int: "INTEGER", float: "REAL"}.get(kind, "TEXT")
    encode = int if kind is bool else str if issubclass(kind, StrEnum) else kind
    return ColumnCodec(sql, encode, kind)


class _Column(NamedTuple):
    name: str
    field: str
    codec: ColumnCodec
    sql: str


class Table(Generic[R]):
    """A table whose rows are those of a frozen class: it has a column for each field, in their order, and others."""

    def __init__(
        self,
        name: str,
        kind: type[R],
        *,
        parts: Mapping[str, Table[Any]] | None = None,
        names: Mapping[str, str] | None = None,
        codecs: Mapping[str, ColumnCodec] | None = None,
        constraint: str = "",
        **declared: str,
    ) -> None:
        """Declare a table.

        A field in `parts` has the columns of that table. `names` are columns that are not called like their field, and
        `codecs` those of fields that are not stored as usual. `declared` are columns in SQL: those of no field, and
        those of which more is known than their type.
        """
        self._name, self._kind, self._parts = name, kind, parts or {}
        self._constraint, self._declared = constraint, declared
        hints = get_type_hints(kind)
        self._own = [
            _column(field, hints[field.name], names or {}, codecs or {})
            for field in fields(kind)  # pyright: ignore[reportArgumentType]
            if field.name not in self._parts
        ]
        of_parts = [name for part in self._parts.values() for name in part.columns]
        self.columns: tuple[str, ...] = (*(column.name for column in self._own), *of_parts)
        """The columns of the fields."""

    def sql(self) -> str:
        """Return the statement that creates the table."""
        known = {column.name: column.sql for table in (self, *self._parts.values()) for column in table._own}
        lines = [f"{name} {self._declared.get(name, sql)}" for name, sql in known.items()]
        lines += [f"{name} {sql}" for name, sql in self._declared.items() if name not in known]
        return f"CREATE TABLE {self._name} ({', '.join([*lines, *filter(None, [self._constraint])])});\n"

    def insert(self, *others: str) -> str:
        """Return the statement that inserts what `encode` returns, and `others`."""
        names = (*self.columns, *others)
        return f"INSERT INTO {self._name} ({', '.join(names)}) VALUES ({', '.join(f':{name}' for name in names)})"

    def encode(self, row: R) -> dict[str, Stored]:
        """Return the columns of a row. Raise LedgerError for a value that JSON cannot express."""
        stored = self.encode_some({column.field: getattr(row, column.field) for column in self._own})
        for field, part in self._parts.items():
            stored |= part.encode(getattr(row, field))
        return stored

    def encode_some(self, values: Mapping[str, Any]) -> dict[str, Stored]:
        """Return the columns of these fields, in the order of the table."""
        return {
            name: None if (value := values[field]) is None else codec.encode(value)
            for name, field, codec, _ in self._own
            if field in values
        }

    def decode(self, stored: Mapping[str, Any] | Any) -> R:
        """Return a row from the columns of a query."""
        values: dict[str, Any] = {}
        for name, field, codec, _ in self._own:
            value = stored[name]
            values[field] = None if value is None else codec.decode(value)
        for field, part in self._parts.items():
            values[field] = part.decode(stored)
        return self._kind(**values)


def _column(field: Field[Any], hint: Any, names: Mapping[str, str], codecs: Mapping[str, ColumnCodec]) -> _Column:
    given = get_args(hint)
    is_optional = NoneType in given
    codec = codecs.get(field.name) or _codec_of(given[0] if is_optional else hint)
    sql = codec.sql if is_optional else f"{codec.sql} NOT NULL"
    default = field.default_factory() if field.default_factory is not MISSING else field.default
    if not is_optional and default is not MISSING:
        usual = codec.encode(default)
        sql += f" DEFAULT {usual!r}" if isinstance(usual, str) else f" DEFAULT {usual}"
    return _Column(names.get(field.name, field.name), field.name, codec, sql)


JOBS = Table("jobs", JobRow, job_id="INTEGER PRIMARY KEY", origin_job_id="INTEGER REFERENCES jobs")
JOB_CHANGES = Table(
    "job_changes",
    JobChange,
    job_id="INTEGER NOT NULL REFERENCES jobs",
    at="REAL NOT NULL",
    constraint="PRIMARY KEY (job_id, revision)",
)
LEASES = Table("leases", LeaseRow, fence="INTEGER PRIMARY KEY AUTOINCREMENT", ended_at="REAL")
STATES = Table("states", StateRow, state_id="INTEGER PRIMARY KEY")
EVENTS = Table("events", EventRow, event_id="INTEGER PRIMARY KEY")
AUDIT = Table("audit", AuditRow, audit_id="INTEGER PRIMARY KEY")
BATCHES = Table("batches", BatchRow, batch_id="TEXT PRIMARY KEY", job_id="INTEGER NOT NULL REFERENCES jobs")
USE = Table("use of an episode", ModelUse)
EPISODES = Table(
    "episodes",
    EpisodeRow,
    parts={"use": USE},
    number="INTEGER PRIMARY KEY",
    episode_id="TEXT NOT NULL UNIQUE",
    job_id="INTEGER NOT NULL REFERENCES jobs",
    batch_id="TEXT REFERENCES batches",
    checksum="INTEGER NOT NULL",
    is_compacted="INTEGER NOT NULL DEFAULT 0",
)
TURNS = Table(
    "turns",
    Turn,
    names={
        "index": "turn_index",
        "output_ids_T": "output_ids",
        "logprobs_T": "logprobs",
        "weight_versions_T": "weight_versions",
    },
    codecs={
        "prompt_ids": INTEGERS,
        "output_ids_T": INTEGERS,
        "logprobs_T": FLOATS,
        "weight_versions_T": INTEGERS,
        "params": ColumnCodec("TEXT", _encode_params, _decode_params),
    },
    episode_id="TEXT NOT NULL REFERENCES episodes (episode_id)",
    checksum="INTEGER NOT NULL",
    constraint="PRIMARY KEY (episode_id, turn_index)",
)
EVALUATIONS = Table(
    "evaluations",
    EvaluationRow,
    codecs={"pass_at_k": ColumnCodec("TEXT", encode_passes, _decode_passes)},
    evaluation_id="INTEGER PRIMARY KEY",
    job_id="INTEGER NOT NULL REFERENCES jobs",
    payload_digest="TEXT",
)

SCHEMA = (
    "".join(
        table.sql()
        for table in (JOBS, JOB_CHANGES, LEASES, STATES, EVENTS, AUDIT, BATCHES, EPISODES, TURNS, EVALUATIONS)
    )
    + """
CREATE UNIQUE INDEX one_trained_batch_per_step ON batches (job_id, step) WHERE state = 'trained';
CREATE INDEX episodes_by_state ON episodes (state);
CREATE INDEX episodes_by_client ON episodes (client_id);
CREATE INDEX episodes_by_batch ON episodes (batch_id) WHERE batch_id IS NOT NULL;
CREATE INDEX episodes_by_task ON episodes (task_id) WHERE task_id IS NOT NULL;
CREATE UNIQUE INDEX one_decision_per_transaction ON episodes (transaction_sha256)
    WHERE transaction_sha256 IS NOT NULL AND inquiry_url IS NULL;
CREATE UNIQUE INDEX one_evaluation_per_step ON evaluations (job_id, step) WHERE state <> 'rewound';
CREATE TABLE demonstrations (digest TEXT PRIMARY KEY, content BLOB NOT NULL, at REAL NOT NULL);
CREATE TABLE launches (key TEXT PRIMARY KEY, job_id INTEGER NOT NULL REFERENCES jobs, at REAL NOT NULL);
CREATE TABLE episode_counts (
    job_id INTEGER NOT NULL REFERENCES jobs,
    state TEXT NOT NULL,
    outcome TEXT NOT NULL,
    n INTEGER NOT NULL,
    PRIMARY KEY (job_id, state, outcome)
) WITHOUT ROWID;
CREATE TABLE trained_groups (
    job_id INTEGER NOT NULL REFERENCES jobs,
    data_source TEXT NOT NULL,
    n INTEGER NOT NULL,
    PRIMARY KEY (job_id, data_source)
) WITHOUT ROWID;
CREATE TABLE marks (
    ledger_id TEXT NOT NULL, sequence INTEGER NOT NULL, acknowledged INTEGER NOT NULL, secret TEXT NOT NULL
);
INSERT INTO marks VALUES (lower(hex(randomblob(16))), 0, 0, lower(hex(randomblob(16))));
CREATE TABLE openings (
    number INTEGER PRIMARY KEY,
    opening TEXT NOT NULL UNIQUE,
    ledger_id TEXT NOT NULL,
    acknowledged INTEGER NOT NULL
);
"""
)
"""The tables and indexes in SQL. `marks` has one row, and `openings` one for each time that a server opened the ledger.
"""

RESULT_COLUMNS = (
    "episode_id", "task_id", "idempotency_key", "payload_digest", "reward", "is_success", "metadata", "turn_rewards",
    "rewards",
)  # fmt: skip
"""The columns of an episode's result, in the order of its checksum."""


def checksum(values: Iterable[Stored]) -> int:
    """Return the CRC-32 of values as SQLite stores them. Text and its UTF-8 bytes are the same.

    Each turn and each result is stored with one, because SQLite notices a broken page only where its structure is.
    """
    total = 0
    for value in values:
        total = zlib.crc32(_bytes_of(value), total)
    return total


def is_intact(stored: Stored, values: Iterable[Stored]) -> bool:
    """Return whether a row is as it was written."""
    return stored == checksum(values)


def _bytes_of(value: Stored) -> bytes:
    match value:
        case None:
            return b"\0"
        case str():
            value = value.encode()
        case int():
            return b"i%d" % value
        case float():
            # SQLite stores whole numbers as integers, and so has no negative zero.
            return struct.pack("<cd", b"f", value + 0.0)
        case _:
            pass
    return b"t%d:%b" % (len(value), value)
