"""What a test asserts: taken apart before it is run, compared afterwards.

Place in the flow: sandboxed_tests.py sends the code of a `PreparedTest` into the sandbox and gives what comes back to
`failure_of`. Each assertion becomes a call of what inside.py offers. A constant that something must equal stays here.
This module runs nothing.
"""

from __future__ import annotations

import ast
import builtins
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from types import MappingProxyType
from typing import Any, cast

from swarm.environments.graders.python_tests.inside import PROGRAM

Report = tuple[str, Any]
"""Kind and data of a line from inside."""

_CONVERSIONS: Mapping[str, Callable[[Any], Any]] = MappingProxyType(
    {each.__name__: each for each in (set, frozenset, list, tuple, dict, sorted, complex, float, int, str, bool)}
)
"""What of a constant is still one."""

# The compiler looks for super by its name.
_BUILTINS = frozenset(name for name in dir(builtins) if not name.startswith("_")) - {"super"}
_BRANCHES = (
    ast.If, ast.For, ast.AsyncFor, ast.While, ast.Try, ast.TryStar, ast.With, ast.AsyncWith, ast.Match, ast.ClassDef,
)  # fmt: skip
_MAX_SHOWN = 80


@dataclass(frozen=True, slots=True)
class Constant:
    """What a value must equal, or `is_same`: be."""

    value: Any
    is_same: bool = False

    def holds_of(self, value: Any) -> bool:
        return value is self.value if self.is_same else bool(value == self.value)


@dataclass(frozen=True, slots=True)
class Assertion:
    """`expected` is the constant that a value must equal, None for any other assertion. `is_certain`: whoever runs the
    test to its end comes past it."""

    line: int
    expected: Constant | None
    is_certain: bool


@dataclass(frozen=True, slots=True)
class PreparedTest:
    """Code to run inside, import statements to run before all else, the modules these name, and what is asserted."""

    code: str
    imports: tuple[str, ...]
    modules: tuple[str, ...]
    assertions: tuple[Assertion, ...]


def read_test(text: str, entry_point: str | None = None) -> PreparedTest:
    """Functions of no arguments called `test...` are called, as is `check(candidate)` of HumanEval with the
    `entry_point`. Raises ValueError for what is no Python, or asserts nothing.

    A program may call what it was asked for like a builtin. Where a test uses any other name of the program's, and in
    what is no comparison with a constant, the names of builtins mean builtins.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"{text.strip()[:40]!r} is no Python: {getattr(error, 'msg', None) or error}") from None
    called = {name for statement in tree.body if (name := _called(statement))}
    for name in _to_call(tree, called, entry_point):
        called.add(name.partition("(")[0])
        tree.body += ast.parse(name).body
    statements = [each for each in tree.body if isinstance(each, ast.Import | ast.ImportFrom)]
    statements = [each for each in statements if PROGRAM not in _modules(each)]
    bound = _bound(tree)
    loaded = {each.id for each in ast.walk(tree) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)}
    rewriter = _Rewriter(called, bound)
    rewritten: ast.Module = rewriter.visit(tree)
    if any(not name.startswith("__") for name in loaded - bound - _BUILTINS):
        _mean_builtins(rewritten, bound)
    if not rewriter.assertions:
        raise ValueError(f"{text.strip()[:40]!r} has no assert statement in it")
    modules = dict.fromkeys(module for each in statements for module in _modules(each))
    code = ast.unparse(ast.fix_missing_locations(rewritten))
    return PreparedTest(code, tuple(map(ast.unparse, statements)), tuple(modules), tuple(rewriter.assertions))


def parse_reports(output: bytes, mark: str) -> list[Report]:
    """The lines that begin with the mark; whatever else was written is none of ours."""
    reports: list[Report] = []
    prefix = f"{mark} ".encode()
    for line in output.split(b"\n"):
        if line.startswith(prefix):
            kind, _, data = line.removeprefix(prefix).partition(b" ")
            try:
                reports.append((kind.decode(), json.loads(data)))
            except (ValueError, RecursionError):
                reports.append(("cut off", None))
    return reports


def failure_of(test: PreparedTest, reports: Iterable[Report]) -> str | None:
    """What the first failure was, None if the test passed: it ran to its end, nothing failed, nothing is missing."""
    seen: set[int] = set()
    is_done = False
    for report in reports:
        match report:
            case "done", _:
                is_done = True
            case "raised", str(text):
                return text
            case kind, [int(number), *said] if 0 <= number < len(test.assertions):
                assertion = test.assertions[number]
                if not _holds(assertion.expected, kind, said):
                    shown = f": got {_shown(said[0])}" if kind == "value" else ""
                    return f"the assertion of line {assertion.line} does not hold{shown}"
                seen.add(number)
            case _:
                return "what came out cannot be read"
    if not is_done:
        return "the program ended before its test"
    certain = {number for number, assertion in enumerate(test.assertions) if assertion.is_certain}
    return None if seen and certain <= seen else "the test ended without its assertions"


def decoded(value: Any) -> Any:
    """The inverse of inside.encoded. Raises ValueError for what is no such value."""
    if not isinstance(value, list):
        return value
    kind, *content = cast(list[Any], value)
    try:
        match kind:
            case "list" | "tuple" | "set":
                make: Callable[[Any], Any] = {"list": list, "tuple": tuple, "set": frozenset}[kind]
                return make(map(decoded, content[0]))
            case "dict":
                return {decoded(name): decoded(item) for name, item in content[0]}
            case "bytes":
                return bytes.fromhex(content[0])
            case "complex":
                return complex(*content)
            case _:
                return {"fraction": Fraction, "decimal": Decimal}[kind](content[0])
    except (TypeError, ArithmeticError, LookupError, AttributeError) as error:
        raise ValueError(f"no value of kind {str(kind)[:_MAX_SHOWN]!r}") from error


def _holds(expected: Constant | None, kind: str, said: Sequence[Any]) -> bool:
    """A report of another kind than the assertion calls for is none that the test has made."""
    try:
        match kind, said:
            case "truth", [is_true] if expected is None:
                return is_true is True
            case "pair", [[first], [second]] if expected is None:
                return bool(decoded(first) == decoded(second))
            case "value", [[value]] if expected is not None:
                return expected.holds_of(decoded(value))
            case _:
                return False
    except (ValueError, RecursionError, ArithmeticError):
        return False


def _shown(said: Any) -> str:
    if said is None:
        return "an object that is no plain value"
    try:
        return repr(decoded(said[0]))[:_MAX_SHOWN]
    except (ValueError, RecursionError):
        return "a value that cannot be shown"


class _Rewriter(ast.NodeTransformer):
    """Puts calls in the place of assertions. `called` are functions that the module calls in any case, `bound` names
    that the test gives a meaning of its own."""

    def __init__(self, called: set[str], bound: set[str]) -> None:
        self.assertions: list[Assertion] = []
        self._called, self._bound = called, bound
        self._is_certain, self._depth = True, 0

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            return self._visit_inner(node, self._depth == 0 and node.name in self._called and _is_straight(node))
        return self._visit_inner(node, False) if isinstance(node, _BRANCHES) else super().visit(node)

    def visit_Assert(self, node: ast.Assert) -> list[ast.stmt]:
        return [self._rewritten(part, node) for part in _parts(node.test)]

    def _visit_inner(self, node: ast.AST, is_certain: bool) -> ast.AST:
        before = self._is_certain
        self._is_certain, self._depth = is_certain, self._depth + 1
        self.generic_visit(node)
        self._is_certain, self._depth = before, self._depth - 1
        return node

    def _rewritten(self, tested: ast.expr, node: ast.Assert) -> ast.stmt:
        match tested:
            case ast.Compare(left=left, ops=[ast.Is()], comparators=[ast.Constant(value=None | bool() as value)]):
                return self._call("value", node, Constant(value, is_same=True), left)
            case ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]):
                return self._equal(node, left, right)
            case _:
                _mean_builtins(tested, self._bound)
                return self._call("truth", node, None, tested)

    def _equal(self, node: ast.Assert, left: ast.expr, right: ast.expr) -> ast.stmt:
        if (expected := _constant(right)) is not None:
            return self._call("value", node, expected, left)
        if (expected := _constant(left)) is not None:
            return self._call("value", node, expected, right)
        # What is on the right is what is expected.
        _mean_builtins(right, self._bound)
        return self._call("equal", node, None, left, right)

    def _call(self, kind: str, node: ast.Assert, expected: Constant | None, *arguments: ast.expr) -> ast.stmt:
        number = ast.Constant(len(self.assertions))
        self.assertions.append(Assertion(node.lineno, expected, self._is_certain))
        call = ast.Call(ast.Name(f"__check_{kind}__", ast.Load()), [number, *arguments], [])
        return ast.copy_location(ast.Expr(call), node)


def _mean_builtins(tree: ast.AST, bound: set[str]) -> None:
    """Put builtins in the place of their names, whatever the program calls by the same. `bound` is the test's own."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in _BUILTINS and node.id not in bound:
            node.id = f"__real_{node.id}__"


def _is_straight(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a call comes past everything in it."""
    leaves = any(isinstance(each, ast.Return | ast.Yield | ast.YieldFrom) for each in ast.walk(node))
    return isinstance(node, ast.FunctionDef) and not node.decorator_list and not leaves


def _parts(tested: ast.expr) -> list[ast.expr]:
    return tested.values if isinstance(tested, ast.BoolOp) and isinstance(tested.op, ast.And) else [tested]


def _constant(node: ast.expr) -> Constant | None:
    """The value of a literal, or of set(), sorted() and the like of one; None for what must be run to be known."""
    try:
        match node:
            case ast.Call(func=ast.Name(id=name), args=[inner], keywords=[]) if name in _CONVERSIONS:
                constant = _constant(inner)
                return constant and Constant(_CONVERSIONS[name](constant.value))
            case _:
                return Constant(ast.literal_eval(node))
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError, ArithmeticError):
        return None


def _called(statement: ast.stmt) -> str | None:
    match statement:
        case ast.Expr(value=ast.Call(func=ast.Name(id=name))):
            return name
        case _:
            return None


def _to_call(tree: ast.Module, called: set[str], entry_point: str | None) -> list[str]:
    calls: list[str] = []
    for each in tree.body:
        if isinstance(each, ast.FunctionDef) and each.name not in called:
            arguments = ast.unparse(each.args)
            if each.name.startswith("test") and not arguments:
                calls.append(f"{each.name}()")
            elif each.name == "check" and arguments == "candidate" and entry_point and entry_point.isidentifier():
                calls.append(f"check({entry_point})")
    return calls


def _modules(statement: ast.Import | ast.ImportFrom) -> list[str]:
    """Names of the modules that a statement imports, packages above them included."""
    names = [alias.name for alias in statement.names] if isinstance(statement, ast.Import) else [statement.module or ""]
    whole = [name.split(".") for name in names if name]
    return [".".join(parts[:end]) for parts in whole for end in range(1, len(parts) + 1)]


def _bound(tree: ast.Module) -> set[str]:
    bound: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                bound.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                bound.add(name)
            case ast.alias(name=name, asname=other):
                bound.add(other or name.partition(".")[0])
            case ast.ExceptHandler(name=str(name)):
                bound.add(name)
            case _:
                pass
    return bound
