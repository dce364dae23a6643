"""How a setting's number is written: every digit it was given with, and none of a computer's own.

Place in the flow: names of arms, reports and the explorer write settings through here, so that one number looks the
same wherever it stands. Scores are measurements and are rounded by whoever shows them.
"""

from __future__ import annotations

SIGNIFICANT_DIGITS = 12
"""More than anybody sets a learning rate to, and fewer than show that 3 * 0.1 is no decimal number."""


def number_as_text(value: float) -> str:
    """0.000166 stays 0.000166, and 3 * 0.1 is 0.3."""
    return f"{value:.{SIGNIFICANT_DIGITS}g}"
