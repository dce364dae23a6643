"""Files that a program logged, on the page of its run."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from explorer_words import words
from streamlit.testing.v1 import AppTest

from experiments_db import record_run

OpenPage = Callable[..., AppTest]


def png() -> bytes:
    """Return a picture of one pixel."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0\0")) + chunk(b"IEND", b"")


def logged(folder: Path, name: str, content: bytes) -> tuple[Path, str, Path]:
    """Return a database with a run that logged this file, the run's id, and the copy."""
    source = folder / name
    source.write_bytes(content)
    database = folder / "home" / "research.db"
    with record_run("own", database=database) as run:
        copy = run.log_file(source)
    return database, run.id, copy


@pytest.mark.parametrize(
    ("name", "content", "kind"), [("a.png", png(), "image"), ("a.csv", b"a,b\n1,=x\n", "dataframe")]
)
def test_a_picture_and_a_table_are_shown(
    open_page: OpenPage, tmp_path: Path, name: str, content: bytes, kind: str
) -> None:
    database, run_id, copy = logged(tmp_path, name, content)
    page = open_page("training", database, training=run_id, part="Artifacts", file=str(copy))
    assert not page.exception and name in words(page) and "cannot be shown" not in words(page)
    assert len(page.get(kind)) == (2 if kind == "dataframe" else 1)


@pytest.mark.parametrize("name", ["a.png", "a.parquet", "a.csv", "a.svg", "a.html", "a"])
def test_a_file_that_is_not_what_its_name_says_costs_only_its_picture(
    open_page: OpenPage, tmp_path: Path, name: str
) -> None:
    database, run_id, copy = logged(tmp_path, name, b"\xff\x00<script>alert(1)</script>")
    page = open_page("training", database, training=run_id, part="Artifacts", file=str(copy))
    assert not page.exception and not page.get("image") and name in words(page)


def test_a_logged_file_that_was_deleted_is_named_as_gone(open_page: OpenPage, tmp_path: Path) -> None:
    database, run_id, copy = logged(tmp_path, "a.png", png())
    copy.unlink()
    page = open_page("training", database, training=run_id, part="Artifacts", file=str(copy))
    assert not page.exception and "no longer there" in page.warning[0].value
