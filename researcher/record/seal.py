"""The files of a study below its folder, and their digests, which are stored once nothing works on the study."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

from experiments_db import ExperimentStore, JsonObject, RunStatus
from researcher.phases import LEDGER
from researcher.record.ledgers import read_ledgers

UNSEALED = {
    "report": "files of the report, which is written anew and compared line by line",
    "recorded": "the position of a recorder",
    "recorder.log": "the log of a recorder",
    "output.log": "the output of a detached process",
    "servers.token": "the token of the study's servers",
    "record.sums": "what was signed",
    "record.sums.sig": "its signature",
}
"""Names of files and folders that no digest covers, and what they are."""
UNSEALED_ENDINGS = (".lock", ".control", "-shm")
"""Ends of names of files that belong to a database, which has a digest itself."""

RUNS = "runs"
"""The folder with one folder for each run."""
CHUNK = 2**24
PART = 2**30
"""The bytes between two lines of progress."""

Progress = Callable[[str], None]


def list_files(folder: Path) -> Iterator[str]:
    """Yield the paths below a study's folder of all files that a seal covers, links included, in order."""
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in UNSEALED)
        linked = [name for name in folders if (Path(place) / name).is_symlink()]
        for name in sorted([*names, *linked]):
            if name not in UNSEALED and not name.endswith(UNSEALED_ENDINGS):
                yield str((Path(place) / name).relative_to(folder))


def digest_file(path: Path, on_progress: Progress = lambda line: None) -> JsonObject:
    """Return the size and the SHA-256 of a file, read in pieces. Raises OSError."""
    digest, done, total = sha256(), 0, path.stat().st_size
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            if total > PART and done // PART != (done + len(chunk)) // PART:
                on_progress(f"{path}: {(done + len(chunk)) / 1e9:.1f} of {total / 1e9:.1f} GB read")
            done += len(chunk)
    return {"bytes": done, "sha256": digest.hexdigest()}


def seal(store: ExperimentStore, study_id: str, folder: Path) -> None:
    """Store the digests of a study that has ended: of its files, and of rows that are final only now.

    Raises OSError or ResearchError.
    """
    files = {name: digest_file(folder / name) for name in list_files(folder) if (folder / name).is_file()}
    ledgers = [folder / name for name in files if Path(name).name == LEDGER]
    for ledger in read_ledgers(ledgers, has_episodes=False):
        if ledger.digest is not None:
            name = str(ledger.path.relative_to(folder))
            files[name] = {**files[name], "rows": ledger.digest}
    store.seal_study(study_id, files)


def compare_files(store: ExperimentStore, study_id: str, folder: Path) -> list[str]:
    """Return how the files of a study and its rows belong to different times; empty if they fit.

    A copy of the database that was put back does not know the runs of newer files. Older files lack runs that have
    finished. After an end, every file also has the size and the content that it had; of large files only the size is
    compared.
    """
    known = {run.id: run for run in store.list_runs(study_id=study_id)}
    present = {path.name for path in (folder / RUNS).iterdir()} if (folder / RUNS).is_dir() else set[str]()
    found = [
        f"{RUNS}/{name} is of no run on record: the database is older than the files"
        for name in sorted(present - known.keys())
    ]
    found += [
        f"{RUNS}/{name} is missing, and its run has finished: the files are older than the database"
        for name, run in known.items()
        if run.status is RunStatus.FINISHED and name not in present
    ]
    sealed = store.find_seal(study_id)
    for name, then in {} if sealed is None else sealed.files.items():
        path = folder / name
        if not path.is_file():
            found.append(f"{name} was there when the study ended, and is gone")
        elif path.stat().st_size != then["bytes"] or (
            then["bytes"] <= CHUNK and digest_file(path)["sha256"] != then["sha256"]
        ):
            found.append(f"{name} is not as it was when the study ended")
    return found
