"""The assertions of a test: they are rewritten before the test runs, and decided afterwards."""

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
"""Kind and data of one line that inside.py wrote."""

_CONVERSIONS: Mapping[str, Callable[[Any], Any]] = MappingProxyType(
    {each.__name__: each for each in (set, frozenset, list, tuple, dict, sorted, complex, float, int, str, bool)}
)
"""Functions whose result for a constant is a constant too."""

# The compiler recognizes super by its name.
_BUILTINS = frozenset(name for name in dir(builtins) if not name.startswith("_")) - {"super"}
_BRANCHES = (
    ast.If, ast.For, ast.AsyncFor, ast.While, ast.Try, ast.TryStar, ast.With, ast.AsyncWith, ast.Match, ast.ClassDef,
)  # fmt: skip
_MAX_SHOWN = 80


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant that a value must equal, or be the same object as if `is_same`."""

    value: Any
    is_same: bool = False

    def holds_of(self, value: Any) -> bool:
        return value is self.value if self.is_same else bool(value == self.value)


@dataclass(frozen=True, slots=True)
class Assertion:
    """One assertion of a test.

    `expected` is the constant that a value must equal, or None for any other assertion. `is_certain` says that a test
    which runs to its end has run this assertion.
    """

    line: int
    expected: Constant | None
    is_certain: bool


@dataclass(frozen=True, slots=True)
class PreparedTest:
    """A test as it runs inside.

    `imports` are the import statements, which run before all else, and `modules` are the modules that they name.
    """

    code: str
    imports: tuple[str, ...]
    modules: tuple[str, ...]
    assertions: tuple[Assertion, ...]


def read_test(text: str, entry_point: str | None = None) -> PreparedTest:
    """Return a test with its assertions rewritten.

    Functions called `test...` without arguments are called, and so is `check(candidate)` of HumanEval, with the
    `entry_point`. A program may define its function under the name of a builtin. Such a name means the builtin if the
    test also uses other names of the program. It does so too in assertions that do not compare with a constant.

    Raises ValueError for text that is not Python, or that asserts nothing.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"{text.strip()[:40]!r} is not Python: {getattr(error, 'msg', None) or error}") from None
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
        raise ValueError(f"{text.strip()[:40]!r} has no assert statement")
    modules = dict.fromkeys(module for each in statements for module in _modules(each))
    code = ast.unparse(ast.fix_missing_locations(rewritten))
    return PreparedTest(code, tuple(map(ast.unparse, statements)), tuple(modules), tuple(rewriter.assertions))


def parse_reports(output: bytes, mark: str) -> list[Report]:
    """Return the reports in the lines that begin with the mark, and ignore all other output."""
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
    """Return the first failure in words, or None if the test passed.

    A test passed if it ran to its end, no assertion failed, and no certain assertion is missing.
    """
    seen: set[int] = set()
    is_done = False
    for report in reports:
        match report:
            case "done", _:
                is_done = True
            case "raised", str(text):
                return text
            case kind, [int(number), *reported] if 0 <= number < len(test.assertions):
                assertion = test.assertions[number]
                if not _holds(assertion.expected, kind, reported):
                    shown = f": got {_shown(reported[0])}" if kind == "value" else ""
                    return f"the assertion in line {assertion.line} failed{shown}"
                seen.add(number)
            case _:
                return "the output of the test cannot be read"
    if not is_done:
        return "the program ended before the test did"
    certain = {number for number, assertion in enumerate(test.assertions) if assertion.is_certain}
    return None if seen and certain <= seen else "the test ended before its assertions ran"


def decoded(value: Any) -> Any:
    """Return the value that inside.encoded wrote.

    Raises ValueError for any other data.
    """
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
        raise ValueError(f"there is no value of kind {str(kind)[:_MAX_SHOWN]!r}") from error


def _holds(expected: Constant | None, kind: str, reported: Sequence[Any]) -> bool:
    """Return whether a report shows that its assertion holds.

    A report whose kind does not fit the assertion was not written by the test.
    """
    try:
        match kind, reported:
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


def _shown(reported: Any) -> str:
    if reported is None:
        return "an object that is not a plain value"
    try:
        return repr(decoded(reported[0]))[:_MAX_SHOWN]
    except (ValueError, RecursionError):
        return "a value that cannot be shown"


class _Rewriter(ast.NodeTransformer):
    """A transformer that replaces assertions by calls.

    `called` are functions that the module calls in any case, and `bound` are names that the test itself defines.
    """

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
        # By convention, the expected value is on the right.
        _mean_builtins(right, self._bound)
        return self._call("equal", node, None, left, right)

    def _call(self, kind: str, node: ast.Assert, expected: Constant | None, *arguments: ast.expr) -> ast.stmt:
        number = ast.Constant(len(self.assertions))
        self.assertions.append(Assertion(node.lineno, expected, self._is_certain))
        call = ast.Call(ast.Name(f"__check_{kind}__", ast.Load()), [number, *arguments], [])
        return ast.copy_location(ast.Expr(call), node)


def _mean_builtins(tree: ast.AST, bound: set[str]) -> None:
    """Make the names of builtins mean builtins, whatever the program defines, except for names in `bound`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in _BUILTINS and node.id not in bound:
            node.id = f"__real_{node.id}__"


def _is_straight(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether a call of the function runs all of its statements."""
    leaves = any(isinstance(each, ast.Return | ast.Yield | ast.YieldFrom) for each in ast.walk(node))
    return isinstance(node, ast.FunctionDef) and not node.decorator_list and not leaves


def _parts(tested: ast.expr) -> list[ast.expr]:
    return tested.values if isinstance(tested, ast.BoolOp) and isinstance(tested.op, ast.And) else [tested]


def _constant(node: ast.expr) -> Constant | None:
    """Return the constant that an expression stands for, or None if only running it can tell.

    It is a literal, or a call such as set() or sorted() of a literal.
    """
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
    """Return the names of the modules that a statement imports, including their parent packages."""
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
