"""The checks of a study's files below a home: those that were noted, checkpoints, and all files at its end."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments_db import Artifact, JsonObject, Run
from researcher.home import STUDIES, place_below
from researcher.loop.pruning import OPTIMIZER_STATE
from researcher.phases import CHECKPOINTS, LEDGER, MANIFEST, MANIFESTS, PRUNED
from researcher.record.ledgers import read_ledgers
from researcher.record.seal import Progress, digest_file, list_files
from researcher.verification.result import RecordCheck

if TYPE_CHECKING:
    from researcher.verification.record import StudyRecord

OF_OTHER_CHECKS = ("program", "job", "report.")
"""The beginnings of the kinds of files that have a check of their own."""


class StudyFiles:
    """The files of a study below one home, wherever its record says they were. Each is read once for its digest."""

    def __init__(self, home: Path, study_id: str, on_progress: Progress) -> None:
        self.home, self._study_id, self._on_progress = home, study_id, on_progress
        self._digests: dict[Path, JsonObject] = {}

    @property
    def folder(self) -> Path:
        return self.home / STUDIES / self._study_id

    def place(self, stored: str) -> Path | None:
        """Return where a stored path lies below the home; None for a path outside of the study's folder."""
        return place_below(self.home, self._study_id, stored)

    def name(self, place: Path) -> str:
        return str(place.relative_to(self.folder))

    def name_of(self, artifact: Artifact) -> str:
        """Return the path of a file of the record below the study's folder, or as it is stored."""
        place = self.place(artifact.path)
        return artifact.path if place is None else self.name(place)

    def find_problem(self, place: Path) -> str | None:
        """Return why a file below the home cannot be compared; None if it can."""
        if not place.is_file():
            return f"{self.name(place)} is not there any more"
        if not place.resolve().is_relative_to(self.home.resolve()):
            return f"{self.name(place)} is a link to {place.resolve()}, outside of {self.home}"
        return None

    def digest(self, place: Path) -> JsonObject:
        if place not in self._digests:
            self._digests[place] = digest_file(place, self._on_progress)
        return self._digests[place]

    def compare(self, place: Path, known: Mapping[str, Any]) -> str | None:
        """Return how a file differs from its size, and its digest if that is known; None if it does not."""
        if (problem := self.find_problem(place)) is not None:
            return problem
        if (size := place.stat().st_size) != known["bytes"]:
            return f"{self.name(place)} has {size} bytes, and it had {known['bytes']}"
        if "sha256" in known and self.digest(place)["sha256"] != known["sha256"]:
            return f"{self.name(place)} has other content than it had"
        return None


def check_files(record: StudyRecord) -> Iterator[RecordCheck]:
    """Check the files that were noted while runs ended, such as logs."""
    artifacts = [item for item in record.store.list_artifacts(record.id) if not item.kind.startswith(OF_OTHER_CHECKS)]
    check = RecordCheck("files", len(artifacts))
    for item in artifacts:
        if (place := record.files.place(item.path)) is None:
            check.leave_out(f"{item.path} lies outside of the study's folder")
        elif problem := record.files.compare(place, {"bytes": item.size_bytes, "sha256": item.sha256}):
            check.mismatches.append(problem)
    yield check


def check_checkpoints(record: StudyRecord) -> Iterator[RecordCheck]:
    """Check the kept weights against the digests in their manifests, and the manifests against those in the record."""
    check, read = RecordCheck("checkpoints", 0), 0
    for run in record.runs.values():
        removed = {record.files.place(path) for path in run.external_ids.get(PRUNED, ())} - {None}
        for stored in _checkpoints_of(run):
            place = record.files.place(stored)
            if place is None:
                check.leave_out(f"{stored} lies outside of the study's folder: it may be on another machine")
            elif place in removed:
                check.leave_out(f"the study removed {record.files.name(place)}")
                check.mismatches += [f"{record.files.name(place)} was removed, and is there"] if place.exists() else []
            else:
                check.checked += 1
                sizes = _compare_checkpoint(record.files, place, run.external_ids.get(MANIFESTS, {}).get(stored), check)
                read += sum(sizes)
    check.notes += [f"{read:,} bytes of weights were read"] if read else []
    yield check


def check_sealed_files(record: StudyRecord) -> Iterator[RecordCheck]:
    """Compare all files below the study's folder with those that were there once nothing worked on it any more."""
    if record.seal is None:
        reason = "its files have digests once it has ended" if not record.study.status.is_end else ""
        lost = [] if reason else [f"the study is {record.study.status}, and the digests of its files are gone"]
        yield RecordCheck("all files", len(lost), lost, [reason] if reason else [])
        return
    files, sealed = record.files, record.seal.files
    check = RecordCheck("all files", len(sealed))
    for name, known in sealed.items():
        problem = files.compare(files.folder / name, known)
        if problem is not None and Path(name).name == LEDGER and "rows" in known:
            problem = _compare_ledger(files, name, known, check, problem)
        check.mismatches += [problem] if problem else []
    check.mismatches += [
        f"{name} was added since the study ended" for name in list_files(files.folder) if name not in sealed
    ]
    yield check


def _compare_ledger(
    files: StudyFiles, name: str, known: Mapping[str, Any], check: RecordCheck, problem: str
) -> str | None:
    """Return how a ledger with other bytes differs; None if only tokens were removed from it, as `swarm gc` does."""
    if files.find_problem(files.folder / name) is not None:
        return problem
    [ledger] = read_ledgers([files.folder / name], has_episodes=False)
    if ledger.damage is not None:
        return ledger.damage
    if ledger.digest != known["rows"]:
        return f"{name} has other rows than it had"
    check.leave_out(f"tokens were removed from {name} since the study ended: those that are left were not compared")
    return None


def _checkpoints_of(run: Run) -> list[str]:
    final, by_step = run.external_ids.get("checkpoint"), run.external_ids.get(CHECKPOINTS, {})
    return [*by_step.values(), *([final] if final else [])]


def _compare_checkpoint(files: StudyFiles, place: Path, manifest: str | None, check: RecordCheck) -> Iterator[int]:
    """Note how a checkpoint differs, and yield the sizes of the files that were read for it."""
    path = place / MANIFEST
    if (problem := files.find_problem(path)) is not None:
        check.mismatches.append(problem)
        return
    if manifest is None:
        check.notes.append(f"{files.name(path)} has no digest in the record")
    elif files.digest(path)["sha256"] != manifest:
        check.mismatches.append(f"{files.name(path)} is not the manifest that was written")
    for name, known in _files_of(path).items():
        if name == OPTIMIZER_STATE and not (place / name).exists():
            check.leave_out("the study removed the state of optimizers, which only further training needs")
            continue
        if (problem := files.compare(place / name, known)) is not None:
            check.mismatches.append(problem)
        yield known["bytes"]


def _files_of(manifest: Path) -> Mapping[str, Mapping[str, Any]]:
    try:
        return json.loads(manifest.read_bytes())["files"]
    except (ValueError, KeyError, TypeError):
        return {}
