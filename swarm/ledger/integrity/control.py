"""The control file: which ledger is beside it, and how far that ledger had come when it last answered."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path

from swarm.errors import LedgerError
from swarm.processes.flush import flush

logger = logging.getLogger(__name__)

PLACE_BYTES = 512
PLACES = 2
# After a loss of power the file may be this far behind the ledger. That only makes a loss harder to notice.
SYNC_EVERY_S = 1.0
# A ledger that takes longer to read is closed without a digest, and opened without a check of it.
DIGEST_LIMIT_S = 3.0
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class ClosedFile:
    """Size and digest of the ledger's file after its server had closed it.

    Nothing changes the file until a server opens it.
    """

    size: int
    sha256: str

    @classmethod
    def of(cls, path: Path, limit_s: float | None = DIGEST_LIMIT_S) -> ClosedFile | None:
        """Return size and digest of a file, or None if that takes longer than the limit. Raise OSError."""
        give_up_at = None if limit_s is None else time.monotonic() + limit_s
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
                if give_up_at is not None and time.monotonic() > give_up_at:
                    return None
            return cls(file.tell(), digest.hexdigest())


@dataclass(frozen=True, slots=True)
class Mark:
    """The progress of a ledger: `sequence` counts its commits, `acknowledged` the episodes that ended with a result.

    Neither ever falls. `closed` is None while a server has the ledger open, and after that server was killed.
    """

    ledger_id: str
    sequence: int
    acknowledged: int
    closed: ClosedFile | None = None


def control_path(ledger: Path) -> Path:
    """Return the path of a ledger's control file."""
    return ledger.with_name(f"{ledger.name}.control")


def read_mark(ledger: Path) -> Mark | None:
    """Return the mark in a ledger's control file, or None if there is no readable file.

    Raise LedgerError if the system refuses to read it.
    """
    path = control_path(ledger)
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LedgerError(f"{path} cannot be read: {error.strerror}") from error
    places = [content[start : start + PLACE_BYTES] for start in range(0, PLACES * PLACE_BYTES, PLACE_BYTES)]
    found = [decoded for place in places if (decoded := _decode(place)) is not None]
    if not found:
        logger.warning("%s is damaged", path)
        return None
    return max(found, key=lambda each: each[0])[1]


class ControlFile:
    """The control file, open for writing by one thread at a time.

    Each commit is noted after it is on disk and before any caller is answered. So the ledger is never behind its
    control file, unless a part of it is lost. A note is one write within a page of the file, which no `kill -9` tears.
    The notes alternate between two places, so that a loss of power leaves one of them whole.
    """

    def __init__(self, descriptor: int, path: Path, mark: Mark) -> None:
        self._descriptor = descriptor
        self._path = path
        self._mark = mark
        self._notes = 0
        self._synced_at = time.monotonic()
        self._is_behind = False

    @classmethod
    def create(cls, ledger: Path, mark: Mark) -> ControlFile:
        """Write the file anew, whole and on disk, and return it. Raise OSError."""
        path = control_path(ledger)
        draft = path.with_name(f"{path.name}.partial")
        descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        try:
            os.write(descriptor, _encode(0, mark) * PLACES)
            os.fsync(descriptor)
            draft.replace(path)
            flush(path.parent)
        except BaseException:
            os.close(descriptor)
            draft.unlink(missing_ok=True)
            raise
        return cls(descriptor, path, mark)

    @property
    def mark(self) -> Mark:
        return self._mark

    def note(self, sequence: int, acknowledged: int) -> None:
        """Note a commit.

        A file that cannot be written is logged: the commit itself is safe, and the next note replaces this one.
        """
        self._write(Mark(self._mark.ledger_id, sequence, acknowledged))
        self._is_behind = True
        if time.monotonic() - self._synced_at >= SYNC_EVERY_S:
            self.sync()

    @property
    def is_behind(self) -> bool:
        """Return whether there are notes that a loss of power would lose."""
        return self._is_behind

    def sync(self) -> None:
        """Flush the notes to disk."""
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            logger.error("%s cannot be written: %s", self._path, error.strerror)
        self._is_behind, self._synced_at = False, time.monotonic()

    def abandon(self) -> None:
        """Close the file as it is, since nobody writes to the ledger."""
        os.close(self._descriptor)

    def close(self, closed: ClosedFile | None) -> None:
        """Note the state of the closed ledger, and close the file."""
        self._write(Mark(self._mark.ledger_id, self._mark.sequence, self._mark.acknowledged, closed))
        self.sync()
        os.close(self._descriptor)

    def _write(self, mark: Mark) -> None:
        self._mark, self._notes = mark, self._notes + 1
        try:
            os.pwrite(self._descriptor, _encode(self._notes, mark), self._notes % PLACES * PLACE_BYTES)
        except OSError as error:
            logger.error("%s cannot be written: %s", self._path, error.strerror)


def _encode(number: int, mark: Mark) -> bytes:
    content = json.dumps({"note": number, **asdict(mark)}).encode()
    return b"%08x %-*s\n" % (zlib.crc32(content), PLACE_BYTES - 10, content)


def _decode(place: bytes) -> tuple[int, Mark] | None:
    check, _, content = place.partition(b" ")
    content = content.rstrip()
    if check != b"%08x" % zlib.crc32(content):
        return None
    fields = json.loads(content)
    number, closed = fields.pop("note"), fields.pop("closed")
    return number, Mark(**fields, closed=None if closed is None else ClosedFile(**closed))
