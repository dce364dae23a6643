"""`python -m bench compare` as a person calls it: two versions, real servers, an exit code and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from process_support import descendants, is_running
from repository_copies import copy_repository

import bench.board.probe as probe
from bench.__main__ import run_command
from bench.board.checkout import Tree
from bench.board.figures import FIGURES, Probe
from bench.board.rounds import ProbeError, measure
from swarm import __version__

ROOT = Path(__file__).parents[2]
LIMIT_S = 100


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_repository(tmp_path_factory.mktemp("repository") / "checkout")


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    """Where the command puts what is temporary."""
    path = tmp_path / "temporary"
    path.mkdir()
    return path


def start(checkout: Path, temporary: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "bench", "compare", *arguments],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout), "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(checkout: Path, temporary: Path, *arguments: str) -> tuple[int, str, str]:
    with start(checkout, temporary, *arguments) as process:
        output, errors = process.communicate(timeout=LIMIT_S)
        return process.returncode, output, errors


@pytest.mark.slow
def test_one_round_measures_both_versions_and_decides_nothing(checkout: Path, temporary: Path, tmp_path: Path) -> None:
    options = (
        "control_plane",
        "--against",
        "HEAD",
        "--minutes",
        "0.1",
        "--results",
        str(tmp_path / "results"),
        "--json",
    )
    code, output, errors = run(checkout, temporary, *options)
    assert code == 1 and "give it more --minutes" in errors, errors
    assert "not stored: only some of the probes" in errors and not (tmp_path / "results").exists()
    document = json.loads(output)
    assert document["version"] == document["against"]["version"] == __version__
    assert document["commit"] == document["against"]["commit"]
    assert set(document["figures"]) == {name for name, each in FIGURES.items() if each.probe is Probe.CONTROL_PLANE}
    for figure in document["figures"].values():
        assert figure["rounds"] == 1 and figure["new"] > 0 and figure["old"] > 0
        assert (figure["verdict"], figure["low"], figure["high"]) == ("too few rounds", None, None)
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--against", "v9"), "bench: no version 'v9' in this repository: name a commit, a tag or a branch\n"),
        ((), "bench: there is no earlier version in this repository: name one with --against\n"),
    ],
    ids=["named", "previous"],
)
def test_a_version_that_there_is_not_is_one_line_and_exit_code_2(
    checkout: Path, temporary: Path, arguments: tuple[str, ...], said: str
) -> None:
    assert run(checkout, temporary, *arguments) == (2, "", said)
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("arguments", [("warp",), ("--minutes", "0"), ("--minutes", "soon")])
def test_wrong_usage_is_exit_code_2_and_starts_nothing(
    temporary: Path, arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setattr(sys, "argv", ["bench", "compare", *arguments])
    with pytest.raises(SystemExit) as ended:
        run_command()
    said = capsys.readouterr()
    assert (ended.value.code, said.out) == (2, "") and "Usage" in said.err
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow)],
    ids=["SIGTERM", "SIGINT"],
)
def test_a_comparison_that_is_ended_leaves_neither_files_nor_processes(
    checkout: Path, temporary: Path, number: signal.Signals, code: int
) -> None:
    with start(checkout, temporary, "control_plane", "--against", "HEAD") as process:
        deadline = time.monotonic() + LIMIT_S
        # The command, a probe of each version, and their servers.
        while len(started := descendants(process.pid)) < 4:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)
        process.send_signal(number)
        process.communicate(timeout=LIMIT_S)
    assert process.returncode == code
    assert [each for each in started if is_running(each)] == []
    assert list(temporary.iterdir()) == []


@pytest.fixture
def lacking(tmp_path: Path) -> Tree:
    """A version from before there was a client."""
    (tmp_path / "lacking" / "swarm").mkdir(parents=True)
    (tmp_path / "lacking" / "swarm" / "__init__.py").write_text('__version__ = "0.0.1"\n')
    return Tree(tmp_path / "lacking", "0.0.1", "0" * 12)


def test_what_the_older_version_lacks_is_left_out_with_a_line(lacking: Tree) -> None:
    lines: list[str] = []
    measured = measure(
        Tree(ROOT, __version__, "1" * 12), lacking, [Probe.CONTROL_PLANE], time.monotonic(), lines.append
    )
    assert measured.pairs == {}
    [line] = lines
    assert line.startswith("control_plane is left out: 0.0.1 (000000000000): ImportError: cannot import name"), line
    assert measured.skipped == {Probe.CONTROL_PLANE: line.removeprefix("control_plane is left out: ")}


def test_a_newer_version_that_cannot_be_measured_is_an_error(lacking: Tree) -> None:
    with pytest.raises(ProbeError, match=r"0\.0\.1 .*ImportError"):
        measure(lacking, lacking, [Probe.TRAINING], time.monotonic(), print)


def test_every_probe_has_a_program() -> None:
    assert set(probe.PROBES) == set(Probe)
