"""The interpreter of a checkout: the fastest build of the version that PATH has, and a line that says so."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "choose_python.sh"
NAME = f"python3.{sys.version_info.minor}"
SLOW = "-X tracemalloc"
MakeBuild = Callable[..., Path]


@pytest.fixture
def make_build(tmp_path: Path) -> MakeBuild:
    """Puts this interpreter, run with the given options, into a directory of its own."""

    def make(directory: str, options: str = "", name: str = NAME) -> Path:
        path = tmp_path / directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f'#!/bin/sh\nexec "{sys.executable}" {options} "$@"\n')
        path.chmod(0o755)
        return path

    return make


def choose(tmp_path: Path, *builds: Path) -> subprocess.CompletedProcess[str]:
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("bash", "awk"):
        found = shutil.which(tool)
        assert found is not None
        (tools / tool).symlink_to(found)
    path = ":".join(str(directory) for directory in (*(build.parent for build in builds), tools))
    return subprocess.run([SCRIPT], env={"PATH": path}, capture_output=True, text=True, timeout=60)


def test_a_build_that_is_clearly_faster_is_taken_and_named(tmp_path: Path, make_build: MakeBuild) -> None:
    slow, fast = make_build("slow", SLOW), make_build("fast")

    chosen = choose(tmp_path, slow, fast)

    assert (chosen.returncode, chosen.stdout) == (0, f"{fast}\n")
    assert f"{fast} is faster than {slow}" in chosen.stderr and f"PYTHON={slow}" in chosen.stderr


def test_what_has_no_name_of_its_version_is_found_as_python3(tmp_path: Path, make_build: MakeBuild) -> None:
    plain = make_build("plain", name="python3")

    assert choose(tmp_path, plain).stdout == f"{plain}\n"


def test_without_a_version_that_serves_it_is_one_line_and_exit_code_1(tmp_path: Path, make_build: MakeBuild) -> None:
    broken = make_build("broken", "-c 'raise SystemExit(1)'")

    chosen = choose(tmp_path, broken)

    assert (chosen.returncode, chosen.stdout) == (1, "")
    assert chosen.stderr == "neither Python 3.11 nor 3.12 is in PATH with its modules venv and ensurepip\n"
