"""The signature of a record: one list of the digests of all that `verify` covers, and its signature beside it."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from typing import TYPE_CHECKING

from researcher.errors import ResearchError
from researcher.record.seal import list_files
from researcher.verification import ssh_signature
from researcher.verification.record import StudyRecord
from researcher.verification.report_check import PDF
from researcher.verification.result import RecordCheck

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

SUMS, SIGNATURE = "record.sums", "record.sums.sig"
NAMESPACE = "researcher-record"
"""What a signature is for, so that one for something else does not fit."""


def list_digests(record: StudyRecord) -> dict[str, str]:
    """Return the digest of each table and of each file below the study's folder, by its name.

    Raises ResearchError for a study that has not ended.
    """
    if record.seal is None:
        raise ResearchError(f"study {record.id} is {record.study.status}: it can be signed once it has ended")
    rows = record.store.compute_digest(record.id)
    last = record.store.compute_later_digest(record.id, events=record.seal.rows.tables["events"].rows)
    files = record.files
    report = sorted(path for path in (files.folder / "report").rglob("*") if path.is_file())
    names = [*list_files(files.folder), *(files.name(path) for path in report if path.name != PDF)]
    return {
        **{f"rows of {name}": table.sha256 for name, table in rows.tables.items()},
        **{f"rows of {name} at the end": table.sha256 for name, table in last.tables.items()},
        **{f"file {name}": _digest(record, name) for name in names},
    }


def sign_record(record: StudyRecord, key: Ed25519PrivateKey) -> str:
    """Write the list of digests and its signature beside the record, and return the digest of the list.

    Raises ResearchError for a study that has not ended, or OSError.
    """
    sums = _write(record.id, list_digests(record))
    signature = ssh_signature.sign(sums, key, NAMESPACE)
    (record.files.folder / SUMS).write_bytes(sums)
    (record.files.folder / SIGNATURE).write_text(signature, encoding="ascii")
    return sha256(sums).hexdigest()


def check_signature(record: StudyRecord, key: Ed25519PublicKey) -> Iterator[RecordCheck]:
    """Check the signature of the list, and the list against the record."""
    check = RecordCheck("signature", 1)
    try:
        sums = (record.files.folder / SUMS).read_bytes()
        armored = (record.files.folder / SIGNATURE).read_text(encoding="ascii")
        ssh_signature.verify(sums, armored, key, NAMESPACE)
    except OSError:
        check.mismatches.append(
            f"there is no {SIGNATURE}, or no {SUMS}: the record was not signed, or they were removed"
        )
    except (ssh_signature.SignatureWrong, UnicodeDecodeError) as error:
        reason = error if isinstance(error, ssh_signature.SignatureWrong) else "it is damaged"
        check.mismatches.append(f"{SIGNATURE} is wrong: {reason}")
    else:
        try:
            check.mismatches += _compare(record, sums.decode())
        except ResearchError as error:
            check.mismatches.append(str(error))
    yield check


def _compare(record: StudyRecord, sums: str) -> Iterator[str]:
    first, *lines = sums.splitlines()
    if first != f"study {record.id}":
        yield f"{SUMS} is that of another study: {first}"
        return
    signed = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    found = {_in_one_line(name): digest for name, digest in list_digests(record).items()}
    for name in sorted({*signed, *found}):
        if signed.get(name) != found.get(name):
            change = "was added" if name not in signed else "is gone" if name not in found else "was changed"
            yield f"{name}: {change} since the record was signed"


def _write(study_id: str, digests: dict[str, str]) -> bytes:
    lines = [f"study {study_id}", *(f"{digest}  {_in_one_line(name)}" for name, digest in digests.items())]
    return "".join(f"{line}\n" for line in lines).encode()


def _in_one_line(name: str) -> str:
    """Return the name of a file without a line break, with which it could pass for several lines."""
    return name.encode("unicode_escape").decode()


def _digest(record: StudyRecord, name: str) -> str:
    place = record.files.folder / name
    return record.files.find_problem(place) or str(record.files.digest(place)["sha256"])
