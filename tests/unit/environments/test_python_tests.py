"""Programs are graded by their tests in a sandbox: right ones pass, and nothing but being right earns anything."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.environments import Grade, load_environment
from swarm.environments.base import EnvironmentTask
from swarm.environments.graders.python_tests import assertions
from swarm.environments.graders.python_tests.inside import encoded
from swarm.environments.graders.python_tests.sandboxed_tests import PythonTests, program_of
from swarm.errors import EnvironmentFailure, SandboxUnavailable
from swarm.sandbox.sandbox import Sandbox, find_sandbox
from swarm.tasks import Split
from swarm.types import Task

needs_bwrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")

ADD = "def add(a, b):\n    return a + b\n"
ADDS = ["assert add(1, 2) == 3", "assert add(2, 2) == 4 and add(-1, 1) == 0"]
CHECK = """
METADATA = {"author": "somebody"}

def check(candidate):
    assert candidate(1, 2) == 3
    assert abs(candidate(0.1, 0.2) - 0.3) < 1e-6
"""
TASK = EnvironmentTask(Task("Write add.", "t1"), {"entry_point": "add"})

Run = Callable[..., Grade]


@pytest.fixture(scope="module")
def sandbox() -> Sandbox:
    return find_sandbox(otherwise="install it")


@pytest.fixture(scope="module")
def run(sandbox: Sandbox) -> Run:
    def run_tests(reply: str, tests: object, seconds: float = 60) -> Grade:
        return PythonTests(sandbox, seconds)(TASK, reply, tests)

    return run_tests


RIGHT = {
    "a program": (ADD, ADDS),
    "a fenced program": (f"Like this:\n```python\n{ADD}```\nIt adds.", ADDS),
    "HumanEval's check of the entry point": (ADD, CHECK),
    "functions of pytest": (ADD, "def test_one(): assert add(1, 2) == 3\ndef test_two(): assert add(0, 0) == 0"),
    "no main block of the program": (ADD + "if __name__ == '__main__':\n    add(input())", ADDS[0]),
    "an import of the program": (ADD, "from solution import add as plus\nassert plus(1, 2) == 3"),
    "containers": ("def f(): return {'a': [(1, 2.5), {3}], 2: b'b'}", "assert f() == {'a': [(1, 2.5), {3}], 2: b'b'}"),
    "conversions": ("def f(): return [4, 5]", "assert set(f()) == set((5, 4))\nassert sorted(f()) == [4, 5]"),
    "truth": ("def f(x): return x", "assert f(None) is None\nassert f(1)\nassert not f(0)\nassert f(True) is True"),
    "numbers of other types": ("from fractions import Fraction\ndef f(): return Fraction(1, 2)", "assert f() == 0.5"),
    "a function with the name of a builtin": ("def sum(a, b): return a + b", "assert sum(1, 2) == 3"),
    "a function with the name of a builtin, by way of a variable": (
        "def sum(a, b): return a + b",
        "def test_sum():\n    total = sum(1, 2)\n    assert total == 3",
    ),
    "classes of a test": (
        "class A:\n    def f(self): return 1",
        "class B(A):\n    def f(self): return super().f() + len('a')\nassert B().f() == 2\nassert isinstance(B(), A)",
    ),
    "errors that are called for": (
        "def f(x): raise ValueError",
        "try:\n    f(1)\nexcept ValueError:\n    seen = True\nassert seen",
    ),
    "classes": (
        "from __future__ import annotations\nfrom dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\n"
        "    def twice(self): return P(2 * self.x)",
        "assert P(2).twice() == P(4)\nassert P(2).twice().x == 4",
    ),
    "what is printed": (
        "def f(): print('hello')",
        "import io, contextlib\n"
        "with contextlib.redirect_stdout(io.StringIO()) as out:\n    f()\n"
        "assert out.getvalue() == 'hello\\n'",
    ),
    "libraries": (
        "import math\ndef f(): return math.pi",
        "import os.path as p\nfrom math import isclose\nassert isclose(f(), 3.1416, rel_tol=1e-3)\nassert p.sep",
    ),
}  # fmt: skip


@needs_bwrap
@pytest.mark.parametrize("name", RIGHT)
def test_right_programs_pass(run: Run, name: str) -> None:
    grade = run(*RIGHT[name])
    assert grade.is_success and grade.score == 1, grade.details


@needs_bwrap
def test_the_score_is_the_share_of_tests_and_success_is_all_of_them(run: Run) -> None:
    grade = run("def add(a, b): return 3", ADDS)
    assert (grade.score, grade.is_success) == (0.5, False)
    assert grade.details == {
        "passed": 1, "tests": 2, "failure": "test 2: the assertion in line 1 failed: got 3",
    }  # fmt: skip


BUILTINS = """
import builtins, json, math, operator, os, sys, __main__
for name in ("bool", "abs", "len", "all", "isinstance", "exec", "compile", "type", "AssertionError"):
    setattr(builtins, name, lambda *a, **k: True)
    json.__builtins__[name] = lambda *a, **k: True
math.isclose = abs = len = all = lambda *a, **k: True
json.JSONEncoder.encode = lambda *a: "[0, true]"
for name in list(vars(__main__)):
    setattr(__main__, name, lambda *a, **k: True)
def add(a, b):
    math.isclose = lambda *a, **k: True
    return 7
"""
TRUTHS = ["from math import isclose\nassert isclose(add(1, 2), 3)", "import math\nassert math.isclose(add(1, 2), 3)"]
TRUTHS += ["assert abs(add(1, 2) - 3) < 1e-9", "difference = abs(add(1, 2) - 3)\nassert difference < 1e-9"]
TRUTHS += ["def is_close(a, b): return abs(a - b) < 1e-9\nassert all([is_close(add(1, 2), 3)])"]
EQUAL_TO_ALL = """
class Equal:
    def __eq__(self, other): return True
    def __hash__(self): return 0
class Number(int):
    __eq__ = Equal.__eq__
    __hash__ = Equal.__hash__
class List(list):
    __eq__ = Equal.__eq__
"""
FINDS_REPORTS = """
import sys
def add(a, b):
    seen = sys._getframe(1).f_globals
    check = seen["__check_truth__"]
    say = dict(zip(check.__code__.co_freevars, check.__closure__))["say"].cell_contents
    for number in range(9):
        check(number, True)
        say("truth", f"[{number}, true]")
    say("done", "null")
    import os
    os._exit(0)
"""
READS = """
import glob, os, sys
text = ""
for path in [*glob.glob("/proc/[0-9]*/fd/*"), *glob.glob("/proc/[0-9]*/cmdline"), *glob.glob("/proc/[0-9]*/environ"),
             *glob.glob("./**", recursive=True), *glob.glob("/tmp/**", recursive=True)]:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        text += os.read(handle, 100_000).decode(errors="replace")
    except OSError:
        pass
def add(a, b):
    frame, found = sys._getframe(1), text
    while frame:
        found += repr((frame.f_code.co_consts, frame.f_locals, frame.f_globals))
        frame = frame.f_back
    return str(int("271828181") + 1) in found
"""
HOSTILE = {
    "ends early": "import sys\nsys.exit(0)",
    "ends at once": "import os\nos._exit(0)",
    "ends in a test": "import os\ndef add(a, b): os._exit(0)",
    "raises what ends a program": "def add(a, b): raise SystemExit(0)",
    "prints": "print('passed', 2, 'done null', '1.0')\nimport os\nos.write(1, b'done null\\n')",
    "writes reports without their mark": (
        "import os\nfor number in range(9):\n    try: os.write(number, b'done null\\n0 done null\\n')\n"
        "    except OSError: pass"
    ),
    "is equal to everything": EQUAL_TO_ALL + "def add(a, b): return Equal()",
    "is a number equal to everything": EQUAL_TO_ALL + "def add(a, b): return Number(7)",
    "uses what mocks offer": "from unittest.mock import ANY\ndef add(a, b): return ANY",
    "has a syntax error": "def add(a, b) return a + b",
    "is prose": "I would add the two numbers.",
    "is in another language": "```rust\nfn add() {}\n```",
}
HOSTILE_TO_A_TEST = {
    **{name: (program, "\n".join(ADDS)) for name, program in HOSTILE.items()},
    "puts others in the place of builtins": (BUILTINS, TRUTHS),
    "finds how it is reported": (FINDS_REPORTS, [CHECK]),
    "is in a container and equal to everything": (
        EQUAL_TO_ALL + "def add(a, b): return Equal()", "x = [3]\nassert [add(1, 2)] == x",
    ),
    "is a list equal to everything": (EQUAL_TO_ALL + "def add(a, b): return List()", "x = [3]\nassert add(1, 2) == x"),
    "claims equality to an object": (
        EQUAL_TO_ALL + "def add(a, b): return Equal()",
        "from collections import deque\nassert add(1, 2) == deque([3])",
    ),
    "leaves nothing to check": ("def cases(): return []", "for a, b in cases():\n    assert a == b"),
}  # fmt: skip


@needs_bwrap
@pytest.mark.parametrize("name", HOSTILE_TO_A_TEST)
def test_a_program_made_for_its_test_earns_nothing(run: Run, name: str) -> None:
    grade = run(*HOSTILE_TO_A_TEST[name])
    assert (grade.score, grade.is_success) == (0, False), grade.details


@needs_bwrap
def test_what_a_test_expects_is_not_in_the_sandbox_at_all(run: Run) -> None:
    grade = run(READS, "assert add(1, 2) == 271828182")
    assert grade.details["failure"].endswith("got False")


@needs_bwrap
def test_a_program_that_hangs_is_ended_and_its_other_tests_are_not_run(run: Run) -> None:
    tests = ["assert add(0, 0) == 0", "assert add(1, 2) == 3", "assert add(0, 0) == 0"]
    grade = run(f"{ADD}sure = add\ndef add(a, b):\n    while a: pass\n    return sure(a, b)", tests, seconds=2)
    assert grade.details == {"passed": 1, "tests": 3, "failure": "test 2: it took longer than 2 s"}
    assert not grade.is_success


@needs_bwrap
@pytest.mark.parametrize(
    "program",
    [
        "x = bytearray(8 * 2**30)",
        "import os\nwhile True: os.write(2, b'x' * 2**20); print('x' * 2**20)",
    ],
)
def test_a_program_that_takes_too_much_earns_nothing(run: Run, program: str) -> None:
    assert run(f"{program}\n{ADD}", ADDS[0], seconds=3).score == 0


@needs_bwrap
def test_the_order_of_sets_is_the_same_each_time(run: Run) -> None:
    program, tests = "def f(): return list({'a', 'b', 'c', 'd', 'e', 'f'})", "assert f() == 0"
    assert run(program, tests) == run(program, tests)


UNUSABLE = [
    (None, "tests must be Python code, a string or a list of strings, not "),
    ("", "tests must be Python code"),
    ([], "tests must be Python code"),
    (["assert add(1, 2) == 3", 4], "tests must be Python code"),
    ("assert add(1, 2 == 3", "is not Python: "),
    ("add(1, 2)", "has no assert statement"),
]


@pytest.mark.parametrize(("tests", "message"), UNUSABLE)
def test_tests_that_cannot_be_used_are_told(tests: object, message: str) -> None:
    with pytest.raises(ValueError, match=message) as told:
        PythonTests(Sandbox("/bin/false", ()), 1)(TASK, ADD, tests)
    assert "\n" not in str(told.value)


@needs_bwrap
def test_tests_that_cannot_be_run_are_a_failure_and_never_a_score(run: Run) -> None:
    with pytest.raises(EnvironmentFailure, match=r"an import failed: ModuleNotFoundError: .*nothing_such"):
        run(ADD, "import nothing_such\nassert add(1, 2) == 3")


def test_a_sandbox_that_does_not_start_is_a_failure_and_never_a_score(tmp_path: Path) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: no more namespaces' >&2\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(SandboxUnavailable, match="bwrap: no more namespaces"):
        PythonTests(Sandbox(str(broken), ()), 1)(TASK, ADD, ADDS)


@pytest.mark.parametrize(
    ("reply", "program"),
    [
        (ADD, ADD),
        ("```python\na = 1\n```\nor\n```python\nb = 2\n```", "b = 2"),
        ("```python\na = 1\n```\nwhich prints\n```\n1\n```", "a = 1"),
        ("```py\na = 1\n```", "a = 1"),
        ("so:\n```\na = 1\n```", "a = 1"),
        ("```python\na = 1\n", None),
        ("```json\n{}\n```", None),
        ("\n", None),
    ],
)
def test_the_program_is_the_last_block_of_python_else_the_whole_reply(reply: str, program: str | None) -> None:
    assert program_of(reply) == program


@pytest.mark.timeout(400)
@pytest.mark.parametrize("line", ["```python\n", "```\n", "``` ", "x\n```python x\n"])
def test_a_long_reply_is_read_in_linear_time(line: str) -> None:
    program_of(line * 200_000)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
    | st.complex_numbers(allow_nan=False) | st.fractions() | st.decimals(allow_nan=False),
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text() | st.integers(), inner),
)  # fmt: skip


@given(VALUES)
def test_values_come_out_of_the_sandbox_as_they_are(value: Any) -> None:
    again = assertions.decoded(json.loads(encoded(value)))
    assert again == value and type(again) is type(value)


def test_what_equals_a_builtin_value_comes_out_as_one() -> None:
    numpy = pytest.importorskip("numpy")
    for value, plain in (
        (numpy.int64(3), 3),
        (numpy.float32(0.5), 0.5),
        (numpy.bool_(True), True),
        ({1: 2}.keys(), {1}),
    ):
        assert assertions.decoded(json.loads(encoded(value))) == plain
    assert assertions.decoded(json.loads(encoded({Fraction(1, 3), "a"}))) == {Fraction(1, 3), "a"}


def test_forged_reports_are_no_success_and_no_crash() -> None:
    test = assertions.read_test("assert f(1) == 2\nassert f(2) > 3")
    lines = [b"value [0, [2]]", b"truth [1, true]", b"done null"]
    assert verdict(test, lines) is None
    for number in range(3):
        assert verdict(test, lines[:number] + lines[number + 1 :]) is not None
    for forged in (
        b"truth [0, true]", b"pair [0, [1], [1]]", b"value [0, null]", b"value [0, [3]]", b"value [7, [2]]",
        b"value null", b"value [-1, [2]]", b'value [0, [["set", [["list", []]]]]]', b'value [0, [["complex", {}]]]',
        b"value [0", b"truth [1, 1]", b"value " + b"[" * 10_000, b"\xff [0, [2]]", b"raised 7", b"truth [1, false]",
    ):  # fmt: skip
        assert verdict(test, [*lines, forged]) is not None, forged


def verdict(test: Any, lines: list[bytes]) -> str | None:
    return assertions.failure_of(
        test, assertions.parse_reports(b"".join(b"mark " + line + b"\n" for line in lines), "mark")
    )


def rows(tests: object) -> str:
    splits = ["train", "train", "validation", "test"]
    return "".join(
        json.dumps({"question": f"Write add, {number}.", "tests": tests, "part": split}) + "\n"
        for number, split in enumerate(splits)
    )


@needs_bwrap
def test_a_task_file_takes_the_grader_and_its_option(tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text(rows(ADDS))
    options = "answer=tests&split=part&grader=python_tests&grader_seconds=60"
    environment = load_environment(f"{tmp_path / 'tasks.jsonl'}?{options}")
    task = next(environment.tasks(Split.TRAIN))
    assert environment.solution(task) is None
    grade = environment.grade(task, [{"role": "assistant", "content": ADD}])
    assert grade == Grade(1.0, True, {"passed": 2, "tests": 2})


def test_without_a_sandbox_nothing_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tasks.jsonl").write_text(rows(ADDS))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxUnavailable, match="install the package 'bubblewrap'") as refused:
        load_environment(f"{tmp_path / 'tasks.jsonl'}?answer=tests&split=part&grader=python_tests")
    assert "unsafe" not in refused.value.message and "--planner" not in refused.value.message
