"""What a program's text shows without running it: its functions, what it reaches for, who writes its replies."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

AGENT_PARAMETERS = 3
RAW_CALLS = frozenset({"get", "strip", "lower", "upper", "str", "rstrip", "lstrip"})
"""Calls that leave a reply what it is."""
HELD_OUT = frozenset({"validation", "test"})

SWARM_MODULES = frozenset({"swarm", "swarm.program", "swarm.tasks", "swarm.errors", "swarm.types"})
ALLOWED_MODULES = frozenset(
    {
        "__future__", "abc", "argparse", "asyncio", "base64", "bisect", "collections", "concurrent", "contextlib",
        "copy", "csv", "dataclasses", "datetime", "decimal", "enum", "fractions", "functools", "hashlib", "heapq",
        "html", "itertools", "json", "logging", "math", "numbers", "operator", "os", "pathlib", "pprint", "queue",
        "random", "re", "secrets", "statistics", "string", "sys", "textwrap", "threading", "time", "traceback",
        "types", "typing", "unicodedata", "uuid", "warnings", "httpx", "openai", "pydantic", "yaml",
    }
)  # fmt: skip
KNOWING_MODULES = ("swarm.environments", "swarm.tasks", "reasoning_gym", "verifiers", "experiments_db", "researcher")
"""Modules that make tasks with their answers, or hold the record of the study."""
MEDDLING_MODULES = frozenset(
    {"ctypes", "gc", "importlib", "inspect", "mmap", "multiprocessing", "signal", "socket", "subprocess"}
)
"""Modules by which a program reaches beyond its attempt."""
FORBIDDEN_NAMES = frozenset(
    {"eval", "exec", "compile", "__import__", "globals", "locals", "vars", "breakpoint", "input"}
)
MEDDLING_CALLS = frozenset(
    {"_getframe", "fork", "kill", "system", "popen", "__subclasses__", "__import__", "execv", "execve", "symlink"}
)
ALLOWED_OF_OS = frozenset({"environ", "getenv", "path", "cpu_count", "getpid", "sep", "linesep", "fspath"})
ALLOWED_DUNDERS = frozenset({"__name__", "__file__", "__doc__", "__init__", "__post_init__", "__enter__", "__exit__"})

_URL = re.compile(r"https?://", re.IGNORECASE)
_READERS = frozenset({"read_text", "read_bytes", "listdir", "scandir", "walk", "glob", "iglob", "rglob", "iterdir"})
_CUTTERS = frozenset({"split", "partition", "rpartition", "replace", "removesuffix"})
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Reach:
    """Something that a program reaches for.

    `is_refused` means that a program of a language model is not run with it. `is_beyond` means that no agent needs it
    for its attempt, whoever wrote the program; `is_leak` is what may know the answers.
    """

    line: int
    what: str
    is_refused: bool = True
    is_beyond: bool = False
    is_leak: bool = False


@dataclass(frozen=True, slots=True)
class AgentLook:
    """The signs in the code of an agent of who writes its replies.

    `computed` are the lines of replies that the code computes from the question. `checked` are lines at which a reply
    of the model is compared with something computed from the question. `asks_model` is true if the agent uses its
    model, and `replies_of_model` if some reply depends on it.
    """

    computed: tuple[int, ...] = ()
    checked: tuple[int, ...] = ()
    asks_model: bool = True
    replies_of_model: bool = True


class ProgramCode:
    """The text of a program, parsed once. Raises SyntaxError or ValueError for a text that is no Python."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tree = ast.parse(text)
        self.nodes = list(ast.walk(self.tree))
        self.functions = {node.name: node for node in self.tree.body if isinstance(node, _Function)}
        """The functions at the top level, by name."""

    @property
    def has_agent(self) -> bool:
        """True if the program defines an agent at its top level."""
        return "agent" in self.functions

    @property
    def description(self) -> str:
        return ast.get_docstring(self.tree) or ""

    @cached_property
    def constants(self) -> tuple[object, ...]:
        return tuple(node.value for node in self.nodes if isinstance(node, ast.Constant))

    @cached_property
    def literals(self) -> tuple[str, ...]:
        """The texts that stand in the program."""
        return tuple(value for value in self.constants if isinstance(value, str))

    def ignores_arguments(self, name: str) -> bool:
        """Return whether a function never names its arguments; false without such a function."""
        if (function := self.functions.get(name)) is None:
            return False
        given = {argument.arg for argument in function.args.args}
        return not any(isinstance(node, ast.Name) and node.id in given for node in ast.walk(function))

    def literals_without(self, function: str) -> Iterator[str]:
        """Yield the texts outside of a function."""
        for part in self.tree.body:
            if part is not self.functions.get(function):
                yield from (
                    node.value
                    for node in ast.walk(part)
                    if isinstance(node, ast.Constant) and isinstance(node.value, str)
                )

    def tables(self, least: int) -> Iterator[tuple[int, list[str]]]:
        """Yield the line and the texts of each literal list or mapping with so many entries."""
        for node in self.nodes:
            entries = _entries(node)
            if len(entries) >= least:
                yield getattr(node, "lineno", 0), entries

    def reaches(self) -> Iterator[Reach]:
        """Yield what the program reaches for, in no order."""
        for node in self.nodes:
            yield from _reaches_of(node)
        if any(_is_cut(node) for node in self.nodes):
            what = "it takes the address of its model apart, by which the server can be commanded"
            for node in self.nodes:
                if isinstance(node, ast.Attribute) and node.attr == "base_url" and isinstance(node.value, ast.Name):
                    yield Reach(node.lineno, what, is_refused=False, is_beyond=True)
        yield from self._files()

    def find_metadata(self) -> int | None:
        """Return the first line that uses metadata of a task; None for none."""
        lines = (node.lineno for node in self.nodes if isinstance(node, ast.Attribute) and node.attr == "metadata")
        return next(lines, None)

    def look_at_agent(self) -> AgentLook | None:
        """Return what the agent's code shows; None for a program without an agent of its own.

        Two sets of names are followed through the code: those that depend on the agent's parameter `model`, and those
        that depend on `task` or `session`, which are of the question. A reply of the question alone was computed.
        """
        agent = self.functions.get("agent")
        if agent is None or len(agent.args.args) < AGENT_PARAMETERS:
            return None
        task, model, session = (argument.arg for argument in agent.args.args[:AGENT_PARAMETERS])
        others = (function for function in self.functions.values() if function is not agent)
        unused = {(other.name, index) for other in others for index in _parameters_without_effect(other)}
        flow = _Flow(agent, {model}, {task, session}, frozenset(unused))
        flow.follow()
        replies = list(_replies(agent, session))
        of_model = [reply for reply in replies if flow.is_of_model(reply)]
        return AgentLook(
            computed=tuple(
                reply.lineno for reply in replies if flow.is_of_question(reply) and not flow.is_of_model(reply)
            ),
            checked=tuple(_checks(agent, flow)),
            asks_model=any(isinstance(node, ast.Name) and node.id == model for node in ast.walk(agent)),
            replies_of_model=bool(of_model),
        )

    def _files(self) -> Iterator[Reach]:
        """Yield the first call that reads a file which the program has not written itself."""
        calls = [node for node in self.nodes if isinstance(node, ast.Call)]
        written = {_path_of(call) for call in calls if _writes(call)}
        for call in calls:
            if _reads(call) and (_path_of(call) is None or _path_of(call) not in written):
                what = f"it reads files, in which answers may stand ({ast.unparse(call)[:80]})"
                yield Reach(call.lineno, what, is_refused=False, is_beyond=True, is_leak=True)
                return


def _reaches_of(node: ast.AST) -> Iterator[Reach]:
    match node:
        case ast.Import(names=names):
            for alias in names:
                yield from _of_module(alias.name, node.lineno)
                if alias.name == "swarm.tasks":
                    yield _tasks_with_answers(alias.name, node.lineno)
        case ast.ImportFrom(module=module, names=names, level=level):
            if level or module is None:
                yield Reach(node.lineno, "a program is one file: relative imports find nothing")
            else:
                yield from _of_module(module, node.lineno)
                yield from _of_names(module, [alias.name for alias in names], node.lineno)
        case ast.Name() | ast.Attribute():
            yield from _of_name(node)
        case ast.Call():
            yield from _of_call(node)
        case ast.Constant(value=str() as text) if _URL.match(text):
            what = f"it names an address of its own: {text[:60]!r}"
            yield Reach(node.lineno, what, is_refused=False, is_beyond=True)
        case ast.Assign(targets=[ast.Attribute() as target, *_]) if ast.unparse(target).startswith("swarm."):
            what = f"it replaces {ast.unparse(target)}, a part of the library"
            yield Reach(node.lineno, what, is_refused=False, is_beyond=True)
        case _:
            return


def _of_name(node: ast.Name | ast.Attribute) -> Iterator[Reach]:
    """Yield a name that a program may not use."""
    match node:
        case ast.Name(id=name) if name in FORBIDDEN_NAMES:
            shown = name
        case ast.Attribute(value=ast.Name(id="os"), attr=name) if name not in ALLOWED_OF_OS:
            shown = f"os.{name}"
        case ast.Attribute(attr=name) if name.startswith("__") and name not in ALLOWED_DUNDERS:
            shown = f"the attribute {name}"
        case _:
            return
    yield Reach(node.lineno, f"{shown} is not allowed in a program", is_beyond=name in MEDDLING_CALLS)


def _of_module(module: str, line: int) -> Iterator[Reach]:
    top = module.split(".")[0]
    is_leak = module.startswith(KNOWING_MODULES) and module not in SWARM_MODULES
    if top == "swarm" and module not in SWARM_MODULES:
        modules = ", ".join(sorted(SWARM_MODULES))
        what = f"import public names only, from {modules}; not from {module}"
        yield Reach(line, what, is_beyond=is_leak, is_leak=is_leak)
    elif top != "swarm" and top not in ALLOWED_MODULES:
        is_beyond = is_leak or top in MEDDLING_MODULES
        yield Reach(line, f"a program may not import {module}", is_beyond=is_beyond, is_leak=is_leak)


def _of_names(module: str, names: Sequence[str], line: int) -> Iterator[Reach]:
    if module == "os":
        for name in names:
            if name not in ALLOWED_OF_OS:
                yield Reach(line, f"os.{name} is not allowed in a program", is_beyond=name in MEDDLING_CALLS)
    if module in SWARM_MODULES:
        public = dir(importlib.import_module(module))
        yield from (Reach(line, f"{module} has no name {name!r}") for name in names if name not in public)
    for name in names:
        if name.endswith("SwarmClient"):
            what = f"it imports {name}, which no agent needs for its attempt"
            yield Reach(line, what, is_refused=False, is_beyond=True)
        elif module == "swarm.tasks" and name != "run_agent":
            yield _tasks_with_answers(f"{module}.{name}", line)


def _tasks_with_answers(name: str, line: int) -> Reach:
    what = f"it imports {name}, which makes tasks with their answers"
    return Reach(line, what, is_refused=False, is_beyond=True, is_leak=True)


def _of_call(call: ast.Call) -> Iterator[Reach]:
    """Yield what a call reaches for: beyond its attempt, or a held-out split, on which only the evaluator scores."""
    name = getattr(call.func, "attr", None) or getattr(call.func, "id", "")
    if name in MEDDLING_CALLS:
        yield Reach(call.lineno, f"it calls {name}, which reaches beyond its attempt", is_refused=False, is_beyond=True)
    if not (isinstance(call.func, ast.Attribute) and name in ("tasks", "stream")):
        return
    for argument in (*call.args, *(keyword.value for keyword in call.keywords)):
        for part in ast.walk(argument):
            split = part.value if isinstance(part, ast.Constant) else getattr(part, "attr", None)
            if isinstance(split, str) and split.lower() in HELD_OUT:
                yield Reach(call.lineno, f"the {split.lower()} split is held out: train on the train split")


def _is_cut(node: ast.AST) -> bool:
    """Return whether a call splits or replaces in the address of a model."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in _CUTTERS
        and "base_url" in ast.unparse(node.func.value)
    )


def _entries(node: ast.AST) -> list[str]:
    """Return the texts of a literal table: its elements, or its keys and values."""
    match node:
        case ast.Dict(keys=keys, values=values):
            return [*_texts([key for key in keys if key is not None]), *_texts(values)]
        case ast.List(elts=elements) | ast.Tuple(elts=elements) | ast.Set(elts=elements):
            nested = [inner for each in elements if isinstance(each, ast.Tuple | ast.List) for inner in each.elts]
            return _texts([*elements, *nested])
        case _:
            return []


def _texts(values: Sequence[ast.expr]) -> list[str]:
    return [str(each.value) for each in values if isinstance(each, ast.Constant) and isinstance(each.value, str | int)]


def _reads(call: ast.Call) -> bool:
    match call.func:
        case ast.Name(id="open"):
            return not _writes(call)
        case ast.Attribute(attr="open"):
            return not _writes(call)
        case ast.Attribute(attr=name):
            return name in _READERS
        case _:
            return False


def _writes(call: ast.Call) -> bool:
    """Return whether a call opens a file for writing alone."""
    match call.func:
        case ast.Attribute(attr="write_text" | "write_bytes" | "mkdir"):
            return True
        case ast.Name(id="open") | ast.Attribute(attr="open"):
            modes = [*call.args[:2], *(each.value for each in call.keywords if each.arg == "mode")]
            texts = [each.value for each in modes if isinstance(each, ast.Constant) and isinstance(each.value, str)]
            return any(text in {"w", "a", "x", "wb", "ab", "wt"} for text in texts)
        case _:
            return False


def _path_of(call: ast.Call) -> str | None:
    """Return the literal path that a call is about; None if it is computed."""
    candidates = list(call.args[:1])
    match call.func:
        # As in Path("notes.txt").read_text().
        case ast.Attribute(value=ast.Call(args=[path, *_])):
            candidates.append(path)
        case _:
            pass
    texts = [each.value for each in candidates if isinstance(each, ast.Constant)]
    return next((text for text in texts if isinstance(text, str)), None)


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
            if node is not self.agent and isinstance(node, _Function):
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
    """Yield the positions of the parameters that have no influence on what a function returns or yields."""
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
        if not isinstance(child, _Function | ast.Lambda):
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
