"""Measures two versions in turns: rounds of fresh processes, in which the two take single training steps by turns.

Place in the flow: command.py gives the two trees and the time, and judges what comes out. probe.py, as a program, does
the measuring. Knows nothing of git and statistics.

In each round both versions are started anew, because a process is a little faster or slower than the next one of the
same program for as long as it lives. Then they take steps in the order A B B A, the next round B A A B, so that neither
what grows nor what passes on the machine falls on one of them alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from bench.board.checkout import Tree
from bench.board.figures import FIGURES, Probe
from bench.board.verdict import Pair

PROGRAM = Path(__file__).with_name("probe.py")
STEPS = 4
"""Steps of each version in a round. More of them would leave time for fewer rounds, and rounds are what is counted."""
START_LIMIT_S = 240.0
STEP_LIMIT_S = 120.0
STOP_LIMIT_S = 40.0
MARGIN = 1.1
"""A round may take so much longer than the longest before."""


class ProbeError(Exception):
    """A version cannot be measured; the message says why, in one line."""

    def __init__(self, tree: Tree, reason: str) -> None:
        super().__init__(f"{tree.name}: {reason}")
        self.tree = tree


@dataclass(slots=True)
class Measurements:
    """The pairs of each figure, in the order of rounds, and why probes were left out."""

    pairs: dict[str, list[Pair]] = field(default_factory=dict[str, list[Pair]])
    skipped: dict[Probe, str] = field(default_factory=dict[Probe, str])


def measure(
    new: Tree, old: Tree, probes: Sequence[Probe], deadline: float, report: Callable[[str], None]
) -> Measurements:
    """Rounds of all probes until the next one would probably end after `deadline`, a time of `time.monotonic()`; at
    least one. A probe that the old version cannot run is left out, which `report` is told.

    Raises ProbeError if the new version cannot be measured.
    """
    measured = Measurements()
    longest = 0.0
    number = 0
    while number == 0 or time.monotonic() + MARGIN * longest <= deadline:
        began = time.monotonic()
        for probe in probes:
            if probe in measured.skipped:
                continue
            try:
                pairs = measure_round(probe, new, old, is_new_first=number % 2 == 0)
            except ProbeError as error:
                if error.tree is new:
                    raise
                measured.skipped[probe] = str(error)
                report(f"{probe} is left out: {error}")
                continue
            for name, pair in pairs.items():
                measured.pairs.setdefault(name, []).append(pair)
        if len(measured.skipped) == len(probes):
            break
        number += 1
        longest = max(longest, time.monotonic() - began)
        report(f"round {number} took {time.monotonic() - began:.0f} s")
    return measured


def measure_round(probe: Probe, new: Tree, old: Tree, *, is_new_first: bool, steps: int = STEPS) -> dict[str, Pair]:
    """The mean of each figure over `steps` steps of each version. Raises ProbeError."""
    first, second = (new, old) if is_new_first else (old, new)
    taken: dict[Path, list[Mapping[str, float]]] = {new.path: [], old.path: []}
    with ExitStack() as stack:
        runs = {tree.path: stack.enter_context(_start(probe, tree)) for tree in (first, second)}
        for run in runs.values():
            run.wait_until_ready()
        for number in range(steps):
            for tree in (first, second) if number % 2 == 0 else (second, first):
                taken[tree.path].append(runs[tree.path].take_step())
    names = [name for name, figure in FIGURES.items() if figure.probe is probe]
    return {name: Pair(_mean(taken[new.path], name), _mean(taken[old.path], name)) for name in names}


def _mean(steps: Sequence[Mapping[str, float]], name: str) -> float:
    return sum(step[name] for step in steps) / len(steps)


class _Run:
    """A probe that runs as a process of its own."""

    def __init__(self, tree: Tree, process: subprocess.Popen[str], log: Path) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._tree = tree
        self._process = process
        self._requests: IO[str] = process.stdin
        self._answers: IO[str] = process.stdout
        self._log = log

    def wait_until_ready(self) -> None:
        answer = self._read(START_LIMIT_S)
        if "missing" in answer:
            raise ProbeError(self._tree, answer["missing"])

    def take_step(self) -> Mapping[str, float]:
        # If the probe has ended, what it said last is still to be read.
        with suppress(BrokenPipeError):
            self._requests.write("\n")
            self._requests.flush()
        answer = self._read(STEP_LIMIT_S)
        if "missing" in answer:
            raise ProbeError(self._tree, answer["missing"])
        return answer

    def _read(self, limit_s: float) -> dict[str, Any]:
        # Reading a line has no time limit of its own; it ends with the process.
        limit = threading.Timer(limit_s, self._process.terminate)
        limit.start()
        try:
            line = self._answers.readline()
        finally:
            limit.cancel()
        if not line:
            said = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            raise ProbeError(self._tree, f"the probe ended: {said[-1] if said else f'nothing within {limit_s:g} s'}")
        return json.loads(line)


@contextmanager
def _start(probe: Probe, tree: Tree) -> Iterator[_Run]:
    with tempfile.TemporaryDirectory(prefix="bench-board-") as directory:
        log = Path(directory) / "probe.log"
        with (
            log.open("w", encoding="utf-8") as stderr,
            subprocess.Popen(
                [sys.executable, str(PROGRAM), probe, str(tree.path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                cwd=directory,
                env=_environment(tree),
            ) as process,
        ):
            run = _Run(tree, process, log)
            try:
                yield run
            except BaseException:
                # A probe that is not waiting for a request would not notice the end of its input for minutes.
                process.terminate()
                raise
            finally:
                _end(process)


def _environment(tree: Tree) -> dict[str, str]:
    """Settings of the service that the caller happens to have would be measured as well."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SWARM_")}
    # Neither the working directory nor the probe's own directory may stand before the tree.
    return {**kept, "PYTHONPATH": str(tree.path), "PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1"}


def _end(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError):
        process.stdin.close()
    for end in (lambda: None, process.terminate, process.kill):
        end()
        try:
            process.wait(timeout=STOP_LIMIT_S)
            return
        except subprocess.TimeoutExpired:
            continue
