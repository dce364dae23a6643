"""Tables as files for download."""

from __future__ import annotations

import io
from typing import Any

import pandas as pd

# A spreadsheet runs text that begins with one of these as a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def to_csv(frame: pd.DataFrame) -> bytes:
    """Return the frame as CSV in UTF-8 with a header.

    A text cell that a spreadsheet would take for a formula gets a leading apostrophe.
    """
    return frame.apply(lambda column: column.map(_defused)).to_csv(index=False).encode()


def to_parquet(frame: pd.DataFrame) -> bytes:
    """Return the frame as a Parquet file.

    A column of mixed kinds (a factor that is a number in one arm, a word in another) is stored as text.
    """
    buffer = io.BytesIO()
    pd.DataFrame({str(name): _uniform(column) for name, column in frame.items()}).to_parquet(buffer, index=False)
    return buffer.getvalue()


def _defused(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def _uniform(column: pd.Series) -> pd.Series:
    kinds = {type(value) for value in column.dropna()}
    if len(kinds) > 1 or kinds & {list, tuple, dict}:
        return column.map(lambda value: value if pd.api.types.is_scalar(value) and pd.isna(value) else str(value))
    return column
