"""The check of the report: it is written anew from the recomputed scores and compared line by line.

A picture may differ by a pixel on another machine, so the table of its data is compared instead.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Collection, Iterator
from hashlib import sha256
from itertools import zip_longest
from pathlib import Path

from experiments_db import Artifact
from researcher.report.write import WRITER, build_report
from researcher.verification.files import StudyFiles
from researcher.verification.record import StudyRecord
from researcher.verification.result import RecordCheck
from researcher.verification.scores import RecomputedStore

_GROWING = re.compile(r"^.*wall clock \(s\).*$(?:\n *<td.*$)*", re.MULTILINE)
"""Matches what still changes while the report is written: the row with the time of the study's own process."""

TEXTS = (".md", ".html", ".csv")
PDF = "report.pdf"
MAX_LINES = 5
"""The largest number of differing lines that are named per file; one changed score shows in several places."""

_PICTURE = re.compile(r"data:image/png;base64,[A-Za-z0-9+/=]*")


def check_report(record: StudyRecord) -> Iterator[RecordCheck]:
    store, study_id = record.store, record.id
    artifacts = [item for item in store.list_artifacts(study_id) if item.kind.startswith("report.")]
    if not artifacts:
        yield RecordCheck("report", 0, notes=["no report was written"])
        return
    places = {item.id: place for item in artifacts if (place := record.files.place(item.path)) is not None}
    notes = [f"{item.path} lies outside of the study's folder" for item in artifacts if item.id not in places]
    root = record.files.folder / "report"
    yield _check_presence(record.files, root, places.values(), len(artifacts), notes)
    present = [item for item in artifacts if item.id in places and record.files.find_problem(places[item.id]) is None]
    has_images = any(
        _is_changed(record.files, item, places[item.id]) for item in present if not item.path.endswith(TEXTS)
    )
    mismatches, notes = list[str](), list[str]()
    with tempfile.TemporaryDirectory(prefix="report-") as folder:
        build_report(store.seen_as(RecomputedStore), study_id, Path(folder), has_images=has_images)
        for artifact in present:
            place = places[artifact.id]
            again, found = Path(folder) / place.relative_to(root), place.read_bytes()
            if artifact.path.endswith(TEXTS):
                found_by, reason = _compare(found, again, artifact)
                mismatches += found_by
                notes += reason
            elif sha256(found).hexdigest() != artifact.sha256 and found != _bytes(again):
                mismatches.append(f"{record.files.name(place)} was changed since it was written")
    yield RecordCheck("report", len(present), mismatches, list(dict.fromkeys(notes)))


def _check_presence(
    files: StudyFiles, root: Path, places: Collection[Path], noted: int, notes: list[str]
) -> RecordCheck:
    """Check that the files of the report are there, and no others."""
    found = [path for path in sorted(root.rglob("*")) if not path.is_dir() and path.name != PDF]
    mismatches = [f"{files.name(path)} was added to the report" for path in found if path not in places]
    mismatches += [problem for place in places if (problem := files.find_problem(place)) is not None]
    return RecordCheck("files of the report", len(places), mismatches, notes, noted - len(places))


def _is_changed(files: StudyFiles, artifact: Artifact, place: Path) -> bool:
    return files.digest(place)["sha256"] != artifact.sha256


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


def _bytes(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


def _short(line: str | None) -> str:
    text = " ".join((line or "").split())
    return text if len(text) <= 120 else f"{text[:119]}…"
