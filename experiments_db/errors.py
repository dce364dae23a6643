"""The failures of the store, as one tree.

StoreError
├── RecordNotFound       no record, or no database, of that name
├── InvalidRecord        a value that cannot be stored: not JSON, out of range, or naming a missing record
├── StoreConflict        the record exists and says otherwise
│   ├── FrozenCharter    a study has one charter, for good
│   ├── TestSplitOpened  the test split has been scored before
│   ├── IllegalMove      a run cannot go from its status to this one
│   ├── LeaseHeld        another live owner works on this resource
│   └── StoreLeaseLost   this owner has been replaced, or let go; its writes are refused
├── SchemaMismatch       the database has the tables of another version; nothing in it was changed
│   └── NotAStore        it holds something else
├── ReadOnlyStore        a write on a store that was opened for reading
└── StoreUnavailable     busy, full, damaged or unreachable; the transaction was rolled back
"""

from __future__ import annotations


class StoreError(Exception):
    """Base of the tree. `message` is one line: what is wrong and what to do about it."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class RecordNotFound(StoreError):
    pass


class InvalidRecord(StoreError):
    pass


class StoreConflict(StoreError):
    pass


class FrozenCharter(StoreConflict):
    pass


class TestSplitOpened(StoreConflict):
    # Keeps pytest from collecting the class by its name.
    __test__ = False


class IllegalMove(StoreConflict):
    pass


class LeaseHeld(StoreConflict):
    """A lease of another live owner. `owner` has it; the last heartbeat came `age_s` seconds ago."""

    def __init__(self, message: str, *, owner: str, age_s: float) -> None:
        super().__init__(message)
        self.owner = owner
        self.age_s = age_s


class StoreLeaseLost(StoreConflict):
    pass


class SchemaMismatch(StoreError):
    pass


class NotAStore(SchemaMismatch):
    pass


class ReadOnlyStore(StoreError):
    pass


class StoreUnavailable(StoreError):
    """A database that cannot be used now.

    `may_pass` says that the same call may succeed later with nothing changed. Examples: another process writes, the
    disk is full, the connection was lost.
    """

    def __init__(self, message: str, *, may_pass: bool = False) -> None:
        super().__init__(message)
        self.may_pass = may_pass
