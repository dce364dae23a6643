"""The script that runs one program and one of its tests inside the sandbox, and reports the values of the test."""

from __future__ import annotations

import builtins
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from fractions import Fraction
from json import loads
from json.encoder import encode_basestring_ascii
from types import CodeType, ModuleType
from typing import Any, cast

# The functions below keep these builtins, even if a program replaces the shared ones.
globals()["__builtins__"] = dict(vars(builtins))

Report = Callable[[str, str], None]
"""Writes a report, given its kind and its data as JSON."""

PROGRAM, TEST = "solution", "tests"
"""Names of program and test as files. A test may import from the program, and runs as the main script itself."""
MAX_TEXT_CHARS = 200
_DICT: dict[object, object] = {}
KEYS, ITEMS = type(_DICT.keys()), type(_DICT.items())
"""Types of dict views, which compare equal to sets."""


class _Opaque(Exception):
    """A value that is not plain data."""


def main() -> None:
    document = loads(sys.stdin.buffer.read())
    report = _speaker(os.dup(1), document.pop("mark"))
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    try:
        copies = _import(document["imports"], document["modules"])
    except Exception as error:  # noqa: BLE001 - the boundary: a failed import is data of the grade
        report("broken", _described(error))
        return
    private = vars(builtins) | {"__import__": _importer(builtins.__import__, copies)}
    report("started", "null")
    _run(document["program"], document["test"], private, report)
    # Do not wait for threads of the program that still run.
    os._exit(0)


def _run(program: str, test: str, private: dict[str, Any], report: Report) -> None:
    real = {f"__real_{name}__": value for name, value in private.items()}
    own = {"__name__": "__main__", "__builtins__": private, **_checks(report)}
    # Otherwise the program could find this script as the module __main__.
    sys.modules[PROGRAM] = sys.modules["__main__"] = module = ModuleType(PROGRAM)
    names = vars(module)
    try:
        exec(_compiled(program, PROGRAM), names)
        seen = {name: value for name, value in names.items() if not name.startswith("__")}
        exec(_compiled(test, TEST), {**seen, **real, **own})
    except BaseException as error:  # noqa: BLE001 - the boundary: any error of a program is data of its grade
        report("raised", _described(error))
    else:
        report("done", "null")


def _compiled(code: str, name: str) -> CodeType:
    return compile(code, f"{name}.py", "exec", dont_inherit=True)


def _checks(report: Report) -> Mapping[str, Callable[..., None]]:
    """Return the functions that a test calls instead of asserting, each with the number of the assertion."""

    def check_value(number: int, value: object) -> None:
        report("value", f"[{number}, {_encoded_or_null(value)}]")

    def check_equal(number: int, first: object, second: object) -> None:
        left, right = _encoded_or_null(first), _encoded_or_null(second)
        if left == right == "null":
            check_truth(number, _agree_to_be_equal(first, second))
        else:
            report("pair", f"[{number}, {left}, {right}]")

    def check_truth(number: int, value: object) -> None:
        is_true = bool(value)
        report("truth", f"[{number}, {'true' if is_true else 'false'}]")
        if not is_true:
            raise AssertionError

    return {"__check_value__": check_value, "__check_equal__": check_equal, "__check_truth__": check_truth}


def _agree_to_be_equal(first: object, second: object) -> bool:
    """Return whether each of two objects says that it equals the other.

    An object that claims to equal everything is not enough.
    """
    answers = type(first).__eq__(first, second), type(second).__eq__(second, first)
    return all(answer is not NotImplemented and bool(answer) for answer in answers)


def encoded(value: Any) -> str:
    """Return plain data as JSON that includes its types.

    An instance of a subclass counts as a value of its builtin type, so that no `__eq__` of the program decides.

    Raises _Opaque for any other object, and ValueError for an integer of thousands of digits.
    """
    match value:
        case None | bool() | int() | float() | str():
            return _encoded_scalar(value)
        case list() | tuple() | set() | frozenset() | KEYS() | ITEMS():
            kind = "list" if isinstance(value, list) else "tuple" if isinstance(value, tuple) else "set"
            items = [encoded(item) for item in cast(Iterable[Any], value)]
            return f'["{kind}", [{", ".join(items)}]]'
        case dict():
            pairs = [f"[{encoded(name)}, {encoded(item)}]" for name, item in cast(dict[Any, Any], value).items()]
            return f'["dict", [{", ".join(pairs)}]]'
        case bytes() | bytearray():
            return f'["bytes", "{value.hex()}"]'
        case complex():
            return f'["complex", {_encoded_scalar(value.real)}, {_encoded_scalar(value.imag)}]'
        case Fraction() | Decimal():
            return f'["{"fraction" if isinstance(value, Fraction) else "decimal"}", "{value}"]'
        case _ if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
            return encoded(value.item())
        case _:
            raise _Opaque


def _encoded_scalar(value: bool | int | float | str | None) -> str:
    """Return the JSON of a scalar, whose type may be a subclass of a builtin type."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int():
            return int.__repr__(value)
        case float():
            shown = float.__repr__(value)
            return {"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN"}.get(shown, shown)
        case str():
            return encode_basestring_ascii(value)


def _encoded_or_null(value: object) -> str:
    """Return a JSON list with the value alone, or null if it is not plain data or has no end."""
    try:
        return f"[{encoded(value)}]"
    except (_Opaque, RecursionError, ValueError):
        return "null"


def _speaker(channel: int, mark: str) -> Report:
    write = os.write

    def report(kind: str, data: str) -> None:
        line = memoryview(f"{mark} {kind} {data}\n".encode())
        while line:
            line = line[write(channel, line) :]

    return report


def _import(statements: Iterable[str], modules: Iterable[str]) -> dict[str, ModuleType]:
    """Import the modules of a test and return copies, before a program can change their contents."""
    for statement in statements:
        exec(_compiled(statement, TEST), {"__name__": TEST})
    copies: dict[str, ModuleType] = {}
    for name in modules:
        copies[name] = ModuleType(name)
        vars(copies[name]).update(vars(sys.modules[name]))
    return copies


def _importer(real: Callable[..., ModuleType], copies: Mapping[str, ModuleType]) -> Callable[..., ModuleType]:
    def import_copy(
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Iterable[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        wanted = name if fromlist else name.partition(".")[0]
        return copies[wanted] if level == 0 and wanted in copies else real(name, globals, locals, fromlist, level)

    return import_copy


def _described(error: BaseException) -> str:
    return encode_basestring_ascii(f"{type(error).__name__}: {error}"[:MAX_TEXT_CHARS])


if __name__ == "__main__":
    main()
