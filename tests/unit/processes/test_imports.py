"""A library that is kept out of an import is there again afterwards, and one that is there already stays."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest

from swarm.processes.imports import kept_out


def test_a_library_that_is_kept_out_seems_not_to_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "this", raising=False)
    with kept_out("this"), pytest.raises(ModuleNotFoundError):
        import this  # noqa: F401
    assert find_spec("this") is not None


def test_a_library_that_is_there_already_stays() -> None:
    with kept_out("json"):
        import json
    assert sys.modules["json"] is json


def test_processes_of_our_own_import_httpx_without_its_command_line() -> None:
    code = "import sys; from swarm.processes.imports import plain_httpx\nwith plain_httpx(): import httpx\n"
    found = subprocess.run(
        [sys.executable, "-c", f"{code}print(httpx.Client, 'rich' in sys.modules)\nimport rich"],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert found.stdout.split()[-1] == "False"
