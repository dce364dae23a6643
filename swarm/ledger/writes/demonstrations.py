"""Demonstrations, stored once by their digest."""

from __future__ import annotations

import sqlite3
import time
import zlib


def insert_demonstrations(connection: sqlite3.Connection, digest: str, content: bytes) -> None:
    """Store demonstrations as JSON lines, unless they are stored already."""
    connection.execute(
        "INSERT OR IGNORE INTO demonstrations (digest, content, at) VALUES (?, ?, ?)",
        (digest, zlib.compress(content), time.time()),
    )
