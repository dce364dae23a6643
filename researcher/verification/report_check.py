"""The check of the report: it is written anew from the recomputed scores and compared line by line.

A picture may differ by a pixel on another machine, so the table of its data is compared instead.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from hashlib import sha256
from itertools import zip_longest
from pathlib import Path

from experiments_db import Artifact
from researcher.report.write import WRITER, build_report
from researcher.verification.record import StudyRecord
from researcher.verification.result import RecordCheck
from researcher.verification.scores import RecomputedStore

_GROWING = re.compile(r"^.*wall clock \(s\).*$(?:\n *<td.*$)*", re.MULTILINE)
"""Matches what still changes while the report is written: the row with the time of the study's own process."""

TEXTS = (".md", ".html", ".csv")
MAX_LINES = 5
"""The largest number of differing lines that are named per file; one changed score shows in several places."""

_PICTURE = re.compile(r"data:image/png;base64,[A-Za-z0-9+/=]*")


def check_report(record: StudyRecord) -> Iterator[RecordCheck]:
    store, study_id = record.store, record.id
    artifacts = [item for item in store.list_artifacts(study_id) if item.kind.startswith("report.")]
    if not artifacts:
        yield RecordCheck("report", 0, notes=["no report was written"])
        return
    root = min((Path(item.path).parent for item in artifacts), key=lambda path: len(path.parts))
    mismatches: list[str] = []
    notes: list[str] = []
    checked = 0
    has_images = any(_is_changed(item) for item in artifacts if not item.path.endswith(TEXTS))
    with tempfile.TemporaryDirectory(prefix="report-") as folder:
        build_report(store.seen_as(RecomputedStore), study_id, Path(folder), has_images=has_images)
        for artifact in artifacts:
            again = Path(folder) / Path(artifact.path).relative_to(root)
            checked += 1
            if (found := _read(artifact)) is None:
                notes.append(f"{artifact.path} is not there any more")
            elif artifact.path.endswith(TEXTS):
                found_by, reason = _compare(found, again, artifact)
                mismatches += found_by
                notes += reason
            elif sha256(found).hexdigest() != artifact.sha256 and found != _bytes(again):
                mismatches.append(f"{artifact.path} was changed since it was written")
    yield RecordCheck("report", checked, mismatches, list(dict.fromkeys(notes)))


def _is_changed(artifact: Artifact) -> bool:
    """Return whether the file exists with other bytes than were written."""
    found = _read(artifact)
    return found is not None and sha256(found).hexdigest() != artifact.sha256


def _compare(found: bytes, again: Path, artifact: Artifact) -> tuple[list[str], list[str]]:
    """Return the mismatches and the notes of one text."""
    is_as_written = sha256(found).hexdigest() == artifact.sha256
    text = found.decode(errors="replace")
    if artifact.path.endswith((".md", ".html")) and WRITER not in text and is_as_written:
        return [], ["the report was written by another version: it is as it was written, its numbers were not compared"]
    lines = [
        f"{Path(artifact.path).name}, line {number}: {_short(old)!r} should be {_short(new)!r}"
        for number, (old, new) in enumerate(zip_longest(_lines(text), _lines(_bytes(again).decode())), 1)
        if old != new
    ]
    more = [f"{Path(artifact.path).name}: {len(lines) - MAX_LINES} more lines"] if len(lines) > MAX_LINES else []
    return [*lines[:MAX_LINES], *more], []


def _lines(text: str) -> list[str]:
    """Return the lines without what may differ: pictures, and the time that grows."""
    return _PICTURE.sub("", _GROWING.sub("", text)).splitlines()


def _read(artifact: Artifact) -> bytes | None:
    try:
        return Path(artifact.path).read_bytes()
    except OSError:
        return None


def _bytes(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


def _short(line: str | None) -> str:
    text = " ".join((line or "").split())
    return text if len(text) <= 120 else f"{text[:119]}…"
