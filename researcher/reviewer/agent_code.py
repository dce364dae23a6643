"""A look at an agent's code: whether its replies come from the model, or are computed from the question.

Place in the flow: the rules reviewer calls `look_at_agent` with the text of a program. Two sets of names are followed
through the code. What depends on the agent's parameter `model` is *of the model*, and what depends on `task` or
`session` is *of the question*. A reply of the question alone was computed by the code. Nothing is run here.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

AGENT_PARAMETERS = 3
RAW_CALLS = frozenset({"get", "strip", "lower", "upper", "str", "rstrip", "lstrip"})
"""Calls that leave a reply what it is."""
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class AgentLook:
    """The signs in the code of an agent of who writes its replies.

    `computed` are the lines of replies that the code computes from the question. `constant` are those of replies that
    are always the same. `checked` are lines at which a reply of the model is compared with something computed from the
    question. `mixed` are lines at which a name that is replied with gets a computed value. `asks_model` is true if the
    agent uses its model, and `replies_of_model` if some reply depends on it.
    """

    computed: tuple[int, ...] = ()
    constant: tuple[int, ...] = ()
    checked: tuple[int, ...] = ()
    mixed: tuple[int, ...] = ()
    asks_model: bool = True
    replies_of_model: bool = True


def look_at_agent(tree: ast.Module) -> AgentLook | None:
    """Return what the agent's code shows; None for a program without an agent of its own."""
    agent = find_function(tree, "agent")
    if agent is None or len(agent.args.args) < AGENT_PARAMETERS:
        return None
    task, model, session = (argument.arg for argument in agent.args.args[:AGENT_PARAMETERS])
    unused = {
        (node.name, index)
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node is not agent
        for index in _parameters_without_effect(node)
    }
    flow = _Flow(agent, {model}, {task, session}, frozenset(unused))
    flow.follow()
    computed: list[int] = []
    constant: list[int] = []
    replied: list[ast.expr] = []
    for reply in _replies(agent, session):
        if flow.is_of_model(reply):
            replied.append(reply)
        elif flow.is_of_question(reply):
            computed.append(reply.lineno)
        else:
            constant.append(reply.lineno)
    return AgentLook(
        computed=tuple(computed),
        constant=tuple(constant),
        checked=tuple(_checks(agent, flow)),
        mixed=tuple(_mixtures(agent, flow, replied)),
        asks_model=any(isinstance(node, ast.Name) and node.id == model for node in ast.walk(agent)),
        replies_of_model=bool(replied),
    )


def find_function(tree: ast.Module, name: str) -> _Function | None:
    """Return the function of this name at the top level; None if it is imported or missing."""
    functions = (node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return next((node for node in functions if node.name == name), None)


@dataclass(slots=True)
class _Flow:
    """The names of an agent that depend on its model, and those that depend on the question.

    `unused` are parameters of other functions of the file, by function and position, on which no result depends.
    """

    agent: _Function
    model: set[str]
    question: set[str]
    unused: frozenset[tuple[str, int]] = frozenset()
    assigned: list[tuple[str, ast.expr]] = field(default_factory=list[tuple[str, ast.expr]])

    def follow(self) -> None:
        """Follow assignments until no set grows."""
        # A reply that is given to the session does not make the session one of the model.
        given = set(self.question)
        self.assigned = [(name, value) for name, value in _assignments(self.agent) if name not in given]
        size = -1
        while size != (size := len(self.model) + len(self.question)):
            for name, value in self.assigned:
                if self.is_of_model(value):
                    self.model.add(name)
                if self.is_of_question(value):
                    self.question.add(name)
            self._follow_functions()

    def is_of_model(self, value: ast.expr) -> bool:
        return any(name in self.model for name in _names(value, self.unused))

    def is_of_question(self, value: ast.expr) -> bool:
        return any(name in self.question for name in _names(value, self.unused))

    def _follow_functions(self) -> None:
        """Take over functions inside of the agent that use the model."""
        for node in ast.walk(self.agent):
            if node is not self.agent and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                used = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
                if used & self.model:
                    self.model.add(node.name)
                elif used & self.question:
                    self.question.add(node.name)


def _names(value: ast.expr, unused: frozenset[tuple[str, int]]) -> Iterator[str]:
    """Yield the names that a value is made of; a condition decides between values and is no part of them."""
    if isinstance(value, ast.Name):
        yield value.id
    for child in ast.iter_child_nodes(value):
        if isinstance(child, ast.expr) and not _is_left_out(value, child, unused):
            yield from _names(child, unused)
        elif isinstance(child, ast.keyword | ast.comprehension):
            yield from _names(child.value if isinstance(child, ast.keyword) else child.iter, unused)


def _is_left_out(value: ast.expr, child: ast.expr, unused: frozenset[tuple[str, int]]) -> bool:
    """Return whether a part has no effect on its value: a condition, or an argument that the function ignores."""
    match value:
        case ast.IfExp(test=test):
            return child is test
        case ast.Call(func=ast.Name(id=name), args=args):
            return child in args and (name, args.index(child)) in unused
        case _:
            return False


def _parameters_without_effect(function: _Function) -> Iterator[int]:
    """Yield the positions of the parameters on which nothing depends that a function returns or yields."""
    results = [node.value for node in _own_nodes(function) if isinstance(node, ast.Return | ast.Yield)]
    for index, argument in enumerate(function.args.args):
        flow = _Flow(function, {argument.arg}, set())
        flow.follow()
        if not any(result is not None and flow.is_of_model(result) for result in results):
            yield index


def _assignments(agent: _Function) -> Iterator[tuple[str, ast.expr]]:
    """Yield each name with each value that it gets; a list that something is appended to gets that value too."""
    for node in ast.walk(agent):
        match node:
            case ast.Assign(targets=targets, value=value):
                yield from ((name, value) for target in targets for name in _targets(target))
            case ast.AugAssign(target=target, value=value) | ast.NamedExpr(target=target, value=value):
                yield from ((name, value) for name in _targets(target))
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                yield from ((name, value) for name in _targets(target))
            case ast.For(target=target, iter=value) | ast.comprehension(target=target, iter=value):
                yield from ((name, value) for name in _targets(target))
            case ast.withitem(context_expr=value, optional_vars=ast.expr() as target):
                yield from ((name, value) for name in _targets(target))
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name)), args=args):
                yield from ((name, value) for value in args)
            case _:
                pass


def _targets(target: ast.expr) -> Iterator[str]:
    match target:
        case ast.Name(id=name):
            yield name
        case ast.Tuple(elts=elements) | ast.List(elts=elements):
            for element in elements:
                yield from _targets(element)
        case ast.Subscript(value=value) | ast.Starred(value=value) | ast.Attribute(value=value):
            yield from _targets(value)
        case _:
            pass


def _replies(agent: _Function, session: str) -> Iterator[ast.expr]:
    """Yield what the agent replies with: what it returns, and what it gives to its session."""
    for node in _own_nodes(agent):
        match node:
            case ast.Return(value=ast.expr() as value) if not _is_reply(value, session) and not _is_none(value):
                yield value
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="reply"), args=[value, *_]):
                if name == session:
                    yield value
            case _:
                pass


def _is_none(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is None


def _is_reply(value: ast.expr, session: str) -> bool:
    """Return whether a value is a call of `session.reply`, which is yielded for itself."""
    match value:
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="reply")):
            return name == session
        case _:
            return False


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function without those of functions inside of it."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield child
            yield from _own_nodes(child)


def _checks(agent: _Function, flow: _Flow) -> Iterator[int]:
    """Yield the lines at which a reply of the model is compared with what the code has computed from the question."""
    for node in ast.walk(agent):
        match node:
            case ast.Compare(left=left, ops=[ast.Eq() | ast.NotEq()], comparators=[right]):
                for reply, other in ((left, right), (right, left)):
                    is_reply = flow.is_of_model(reply) and _is_raw(reply)
                    if is_reply and flow.is_of_question(other) and not flow.is_of_model(other):
                        yield node.lineno
            case _:
                pass


def _is_raw(value: ast.expr) -> bool:
    """Return whether a value is a reply as it is, and not, say, its length."""
    match value:
        case ast.Name() | ast.Attribute():
            return True
        case ast.Subscript(value=inner):
            return _is_raw(inner)
        case ast.BoolOp(values=values):
            return all(_is_raw(each) or isinstance(each, ast.Constant) for each in values)
        case ast.Call(func=ast.Attribute(value=inner, attr=name)):
            return name in RAW_CALLS and _is_raw(inner)
        case ast.Call(func=ast.Name(id="str"), args=[inner]):
            return _is_raw(inner)
        case _:
            return False


def _mixtures(agent: _Function, flow: _Flow, replied: Iterable[ast.expr]) -> Iterator[int]:
    """Yield the lines at which a name that is replied with gets a value that the code computes from the question."""
    names = {value.id for value in replied if isinstance(value, ast.Name)}
    for name, value in flow.assigned:
        is_computed = flow.is_of_question(value) and not flow.is_of_model(value)
        if name in names and is_computed:
            yield value.lineno
