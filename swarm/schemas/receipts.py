"""The receipt of a ledger: which ledger has acknowledged how many episodes, sealed so that nobody can invent one."""

from __future__ import annotations

import hmac
from dataclasses import dataclass, replace

RECEIPT_HEADER = "x-swarm-receipt"
"""The header in which a client brings back the newest receipt that it was given."""

_MAX_DIGITS = 18


@dataclass(frozen=True, slots=True)
class Receipt:
    """The number of episodes that a ledger had acknowledged during one of its openings.

    `ledger_id` and `opening` are names. The names of later openings are larger as text. The seal shows that the ledger
    itself has given the receipt.
    """

    ledger_id: str
    opening: str
    acknowledged: int
    seal: str = ""

    @classmethod
    def parse(cls, text: str) -> Receipt | None:
        """Return the receipt in a text, or None if it has another form."""
        parts = text.split(".", 4)
        if len(parts) != 4:
            return None
        ledger_id, opening, number, seal = parts
        if not (number.isascii() and number.isdecimal() and len(number) <= _MAX_DIGITS):
            return None
        return cls(ledger_id, opening, int(number), seal)

    def sealed(self, secret: str) -> Receipt:
        """Return the receipt with the seal of a ledger's secret."""
        content = f"{self.ledger_id}.{self.opening}.{self.acknowledged}"
        return replace(self, seal=hmac.digest(secret.encode(), content.encode(), "sha256").hex()[:32])

    def is_sealed_with(self, secret: str) -> bool:
        """Return whether a ledger with this secret has given the receipt."""
        return hmac.compare_digest(self.sealed(secret).seal.encode(), self.seal.encode())

    def __str__(self) -> str:
        return f"{self.ledger_id}.{self.opening}.{self.acknowledged}.{self.seal}"


def newest_receipt(known: str | None, given: str | None) -> str | None:
    """Return the receipt to bring back: the one of the later opening or of more episodes."""
    if known is None or given is None:
        return known or given
    before, after = Receipt.parse(known), Receipt.parse(given)
    if before is None or after is None or before.ledger_id != after.ledger_id:
        return given
    is_older = (after.opening, after.acknowledged) < (before.opening, before.acknowledged)
    return known if is_older else given
