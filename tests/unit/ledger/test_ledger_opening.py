"""Opening a file: one that cannot be written is left alone, the check of a large one ends in time."""

from __future__ import annotations

import ctypes
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from swarm.errors import LedgerError
from swarm.ledger import Ledger
from swarm.ledger.integrity import opening
from swarm.schemas import EpisodeState

PR_CAPBSET_DROP, CAP_DAC_OVERRIDE = 24, 1

OPEN = """
import sys
from pathlib import Path
from swarm.errors import LedgerError
from swarm.ledger import Ledger
try:
    Ledger.open(Path(sys.argv[1])).close()
except LedgerError as error:
    print(error.message)
"""


@pytest.mark.parametrize("is_new", [True, False])
def test_read_only_directory_is_refused_in_one_line(path: Path, is_new: bool) -> None:
    path.parent.mkdir(parents=True)
    if not is_new:
        Ledger.open(path).close()
    before = [] if is_new else content_of(path)
    path.parent.chmod(0o500)
    try:
        ended = subprocess.run(
            [sys.executable, "-c", OPEN, str(path)],
            capture_output=True, text=True, timeout=30, cwd=Path(__file__).parents[3], preexec_fn=obey_permissions,
        )  # fmt: skip
    finally:
        path.parent.chmod(0o700)
    (line,) = ended.stdout.splitlines() or [ended.stderr]
    assert str(path.parent) in line
    assert "cannot be opened" in line
    assert not path.exists() if is_new else content_of(path) == before


def test_check_of_a_large_file_ends_in_time_and_finds_what_it_gets_to(
    script: Any, ledger: Ledger, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script.complete("e1")
    ledger.close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE ballast (bytes BLOB)")
        connection.executemany("INSERT INTO ballast VALUES (?)", [(bytes(3000),)] * 2000)
    content = bytearray(path.read_bytes())
    content[-4096:] = b"\xff" * 4096
    path.write_bytes(content)
    with pytest.raises(LedgerError, match="is damaged"):
        Ledger.open(path)
    monkeypatch.setattr(opening, "CHECK_LIMIT_S", 0.0)
    reopened = Ledger.open(path)
    try:
        assert script.wait(reopened.episode("e1")).state is EpisodeState.COMPLETED
    finally:
        reopened.close()


def obey_permissions() -> None:
    """Without this capability even root is bound by the mode of a directory; nobody else has it to lose."""
    ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0)


def content_of(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        return [str(version), *connection.iterdump()]
