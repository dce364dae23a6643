"""The grader python_tests itself, which runs each test of a program in its own sandbox."""

from __future__ import annotations

import json
import math
import re
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from threading import Event, Timer
from typing import IO, Any, cast

from swarm.environments.base import EnvironmentTask, Grade
from swarm.environments.graders.python_tests.assertions import (
    PreparedTest,
    Report,
    failure_of,
    parse_reports,
    read_test,
)
from swarm.errors import EnvironmentFailure
from swarm.processes.child import kill
from swarm.sandbox.sandbox import GuestLimits, Sandbox

START_TIMEOUT_S = 120.0
"""Seconds for the sandbox, the interpreter and the imports of the tests, on a busy machine too."""
MAX_OUTPUT_BYTES = 4 * 2**20
MAX_FIRST_LINE_BYTES = 4096
LIMITS = GuestLimits(
    tasks=64,
    memory_bytes=512 * 2**20,
    address_bytes=4 * 2**30,
    file_bytes=16 * 2**20,
    disk_bytes=64 * 2**20,
    tmp_bytes=64 * 2**20,
)
_INSIDE = Path(__file__).with_name("inside.py")
_FENCE = "```"
_PYTHON = frozenset({"python", "py", "python3"})
_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")


class PythonTests:
    """The grader itself: the share of tests that the program in a reply passes.

    It withstands a program that ends early, hangs or prints. It withstands a program that replaces builtins or the
    modules that the tests import, and objects that claim to equal everything. Nor can a program read the expected
    constants: the 4 of `assert f(2) == 4` never enters the sandbox, but the value of `f(2)` comes out and is compared
    here. If such an assertion stands outside branches and loops, its value must have come out.

    Its limits come from the interpreter that program and tests share. A program that searches its frames or its memory
    finds the inputs of the tests, and the mark that identifies their reports. With the mark it can forge every result
    that is decided inside: that of an assertion without a constant, or inside a branch or loop. It can also change what
    the tests use of a library, deep inside that library. It can return objects that lie about anything but equality,
    as in `assert f(2) > 3`. And a program that knows the inputs can contain a table of right answers.
    """

    def __init__(self, sandbox: Sandbox, seconds: float) -> None:
        """Give a program `seconds` for each test."""
        # CPU time adds up over threads, so that its limit exceeds the one of the clock.
        limits = replace(LIMITS, cpu_s=2 * math.ceil(seconds) + 10)
        self._sandbox, self._seconds = replace(sandbox, limits=limits), seconds

    def __call__(self, task: EnvironmentTask, reply: str, expected: object) -> Grade:
        """Return the share of tests that the program in the reply passes, as a grade.

        Raises ValueError for tests that cannot be used, and EnvironmentFailure if they cannot be run.
        """
        entry_point = task.answer.get("entry_point")
        tests = [read_test(text, entry_point if isinstance(entry_point, str) else None) for text in texts_of(expected)]
        program = program_of(reply)
        if program is None:
            return Grade(0.0, False, {"passed": 0, "tests": len(tests), "failure": "there is no Python in the reply"})
        return self._run_all(program, tests)

    def _run_all(self, program: str, tests: Sequence[PreparedTest]) -> Grade:
        passed, first_failure = 0, None
        for number, test in enumerate(tests, 1):
            reports = self._run(program, test)
            failure = f"it took longer than {self._seconds:g} s" if reports is None else failure_of(test, reports)
            passed += failure is None
            if failure is not None and first_failure is None:
                # The address of an object differs from run to run, and grades must not.
                first_failure = f"test {number}: {_ADDRESS.sub('0x', failure)}"
            if reports is None:
                # A program that hangs would take as long in each of the remaining tests.
                break
        details: dict[str, Any] = {"passed": passed, "tests": len(tests)}
        if first_failure is not None:
            details["failure"] = first_failure
        return Grade(passed / len(tests), passed == len(tests), details)

    def _run(self, program: str, test: PreparedTest) -> list[Report] | None:
        """Run one test and return its reports, or None if its time ran out.

        Raises EnvironmentFailure if the program was not started.
        """
        mark = secrets.token_hex(16)
        document = {"mark": mark, "program": program, "test": test.code}
        document |= {"imports": test.imports, "modules": test.modules}
        with (
            tempfile.TemporaryDirectory(prefix="swarm-tests-") as folder,
            tempfile.TemporaryFile() as errors,
            self._started(Path(folder), errors) as process,
        ):
            stdin, stdout = cast(IO[bytes], process.stdin), cast(IO[bytes], process.stdout)
            with _killed_after(process, START_TIMEOUT_S), suppress(BrokenPipeError):
                stdin.write(json.dumps(document).encode())
                stdin.close()
            with _killed_after(process, START_TIMEOUT_S):
                first = parse_reports(stdout.readline(MAX_FIRST_LINE_BYTES), mark)
            if first != [("started", None)]:
                self._sandbox.check()
                raise EnvironmentFailure(f"the tests could not be run: {_why_not(first, process, errors)}")
            with _killed_after(process, self._seconds) as is_over:
                output = stdout.read(MAX_OUTPUT_BYTES)
        return None if is_over.is_set() else parse_reports(output, mark)

    @contextmanager
    def _started(self, folder: Path, errors: IO[bytes]) -> Generator[subprocess.Popen[bytes]]:
        argv = [sys.executable, "-P", "-s", str(_INSIDE)]
        command = self._sandbox.command(argv, workdir=folder, server_url=None, files=(_INSIDE,))
        # Random hashes would change the order of a set, and so a grade, from run to run.
        environment = {name: value for name, value in command.env.items() if name != "PYTHONPATH"}
        environment["PYTHONHASHSEED"] = "0"
        process = subprocess.Popen(
            command.argv, cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
        )
        try:
            yield process
        finally:
            kill(process)
            for pipe in (process.stdin, process.stdout):
                with suppress(OSError):
                    cast(IO[bytes], pipe).close()
            command.cleanup()


def program_of(reply: str) -> str | None:
    """Return the program in a reply, or None if there is none.

    It is the last fenced block of Python, else the last block without a language, else the whole of a reply without
    fences. Blocks of other languages and a block that is never closed are not programs.
    """
    blocks: dict[bool, list[str]] = {True: [], False: []}
    language: str | None = None
    lines: list[str] = []
    is_fenced = False
    for line in reply.splitlines():
        mark = line.strip()
        if language is None and mark.startswith(_FENCE):
            language, lines, is_fenced = mark.removeprefix(_FENCE).strip().lower(), [], True
        elif language is not None and mark == _FENCE:
            if language in _PYTHON or not language:
                blocks[language in _PYTHON].append("\n".join(lines))
            language = None
        else:
            lines.append(line)
    if not is_fenced:
        return reply if reply.strip() else None
    found = blocks[True] or blocks[False]
    return found[-1] if found else None


def texts_of(expected: object) -> list[str]:
    """Return the list of tests.

    Raises ValueError for a value that is neither a text nor a list of texts.
    """
    texts = cast(list[object], expected) if isinstance(expected, list) else [expected]
    found = [text for text in texts if isinstance(text, str) and text.strip()]
    if not found or len(found) < len(texts):
        raise ValueError(f"tests must be Python code, a string or a list of strings, not {str(texts)[:40]!r}")
    return found


@contextmanager
def _killed_after(process: subprocess.Popen[bytes], seconds: float) -> Generator[Event]:
    """Kill the process if the block takes longer than `seconds`; the event says whether it was killed."""
    is_over = Event()

    def end() -> None:
        is_over.set()
        process.kill()

    timer = Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield is_over
    finally:
        timer.cancel()


def _why_not(first: Sequence[Report], process: subprocess.Popen[bytes], errors: IO[bytes]) -> str:
    match first:
        case [("broken", str(text))]:
            return f"an import failed: {text}"
        case _:
            kill(process)
            errors.seek(0)
            last = errors.read(2**16).decode(errors="replace").strip().splitlines()[-1:]
            return last[0] if last else f"the sandbox did not start within {START_TIMEOUT_S:g} s"
