"""Tables as CSV files for download."""

from __future__ import annotations

from typing import Any

import pandas as pd

# A spreadsheet runs text that begins with one of these as a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def to_csv(frame: pd.DataFrame) -> bytes:
    """Return the frame as CSV in UTF-8 with a header.

    A text cell that a spreadsheet would take for a formula gets a leading apostrophe.
    """
    return frame.apply(lambda column: column.map(_defused)).to_csv(index=False).encode()


def _defused(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
