"""Numbers of settings as text, with every digit that was given and no rounding error of the computer."""

from __future__ import annotations

SIGNIFICANT_DIGITS = 12
"""More than anybody sets a learning rate to, and fewer than show that 3 * 0.1 is no decimal number."""


def number_as_text(value: float) -> str:
    """Return the number as text: 0.000166 stays 0.000166, and 3 * 0.1 is 0.3."""
    return f"{value:.{SIGNIFICANT_DIGITS}g}"
