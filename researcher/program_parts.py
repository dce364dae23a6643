"""The parts of a program: its agent, its training reward and its order of tasks, compared by their syntax trees."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from researcher.scope import ArmPart

PROGRAM_PARTS = (ArmPart.AGENT, ArmPart.REWARD, ArmPart.SCHEDULE)
"""The parts that are functions of a program, which has the names of these functions."""
_PLAIN_AGENT = ast.dump(ast.parse("from swarm.program import answer_in_turn as agent").body[0])
"""The agent that a program without one has."""


@dataclass(frozen=True, slots=True)
class _Statement:
    """A statement at the top level of a program: the names that it binds, those that it uses, and its syntax tree."""

    binds: frozenset[str]
    uses: frozenset[str]
    tree: str


def find_differing_parts(code: str, other: str) -> tuple[ArmPart, ...]:
    """Return the parts in which two programs differ.

    A part is its function with everything of the file that the function uses. Comments, docstrings and layout are no
    difference. A program without an agent has the plain one.
    """
    own, others = _parts_of(code), _parts_of(other)
    return tuple(part for part in PROGRAM_PARTS if own[part] != others[part])


def find_varied_parts(codes: Sequence[str]) -> tuple[ArmPart, ...]:
    """Return the parts in which some program differs from the first one."""
    found = {part for code in codes[1:] for part in find_differing_parts(code, codes[0])}
    return tuple(part for part in PROGRAM_PARTS if part in found)


def _parts_of(code: str) -> Mapping[ArmPart, tuple[str, ...]]:
    """Return each part as the syntax trees of its statements; those that bind no name belong to every part."""
    statements = [item for node in ast.parse(code).body for item in _read(node)]
    return {part: tuple(_statements_of(part, statements)) for part in PROGRAM_PARTS}


def _statements_of(part: ArmPart, statements: Sequence[_Statement]) -> Iterator[str]:
    wanted: set[str] = {part}
    size = 0
    while size != (size := len(wanted)):
        wanted |= {name for item in statements if item.binds & wanted for name in item.uses}
    for item in statements:
        is_plain = part is ArmPart.AGENT and item.tree == _PLAIN_AGENT
        if (item.binds & wanted or not item.binds) and not is_plain:
            yield item.tree


def _read(node: ast.stmt) -> Iterator[_Statement]:
    """Yield a statement of the top level; one for each name of an import, and none for what is not run in a study."""
    match node:
        case ast.Import(names=names):
            for alias in names:
                bound = alias.asname or alias.name.partition(".")[0]
                yield _Statement(frozenset({bound}), frozenset(), ast.dump(ast.Import([alias])))
        case ast.ImportFrom(module="__future__"):
            return
        case ast.ImportFrom(module=module, names=names, level=level):
            for alias in names:
                bound = frozenset({alias.asname or alias.name}) - {"*"}
                yield _Statement(bound, frozenset(), ast.dump(ast.ImportFrom(module, [alias], level)))
        case ast.Expr(value=ast.Constant()):
            return
        case ast.If(test=test) if any(isinstance(each, ast.Name) and each.id == "__name__" for each in ast.walk(test)):
            return
        case _:
            used = frozenset(each.id for each in ast.walk(node) if isinstance(each, ast.Name))
            yield _Statement(frozenset(_bound_by(node)), used, ast.dump(_without_docstrings(node)))


def _bound_by(node: ast.AST) -> Iterator[str]:
    """Yield the names that a statement binds at the top level."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
            return
        case ast.Name(id=name, ctx=ast.Store()):
            yield name
        case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
            yield name
        case ast.alias(name=name, asname=asname):
            yield asname or name.partition(".")[0]
        case ast.Lambda():
            return
        case _:
            pass
    for child in ast.iter_child_nodes(node):
        yield from _bound_by(child)


def _without_docstrings(node: ast.stmt) -> ast.stmt:
    """Return the statement without the docstrings in it. The tree was parsed for this purpose, so it is changed."""
    for each in ast.walk(node):
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and ast.get_docstring(each):
            each.body = each.body[1:]
    return node
