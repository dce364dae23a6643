"""The reason of a failure in one line: of a traceback only the error; the rest is in the log."""

from __future__ import annotations

import re

MAX_CHARS = 600
_TRACEBACK = "Traceback (most recent call last)"
_BEGIN = re.compile(r"(?:\|\s*)?Traceback \(most recent call last\):?")
# The error is at the start of a line or, in text without line breaks, after the code of the last frame. The line of a
# program that was run elsewhere stands before it.
_RAISED = re.compile(
    r"(?:^|[\s|])((?:\w+\.py, line \d+: )?(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*"
    r"(?:Error|Exception|Interrupt|Exit|Warning|Failure|Invalid|Broken|Rejected|Unavailable|Stop\w*)"
    r"(?=:\s|\s*$|\s*\|))"
)


def in_one_line(text: str) -> str:
    """Return `text` on one line; a traceback in it becomes its error, and the text before it stays."""
    if _TRACEBACK not in text:
        return " ".join(text.split())[:MAX_CHARS]
    begin = _BEGIN.search(text)
    before = " ".join(text[: begin.start()].split()) if begin else ""
    traceback = text[text.rindex(_TRACEBACK) + len(_TRACEBACK) :]
    raised = list(_RAISED.finditer(traceback))
    last = traceback[raised[-1].start(1) :] if raised else _last_line(traceback)
    found = " ".join(last.replace(" | ", " ").split())
    return " ".join(part for part in (before, found) if part)[:MAX_CHARS]


def last_words(log: str, lines: int) -> str:
    """Return the end of a log on one line: the error of its last traceback, or its last lines."""
    if _TRACEBACK in log:
        return in_one_line(log[log.rindex(_TRACEBACK) :])
    return " | ".join(line.strip() for line in log.splitlines()[-lines:] if line.strip())[-MAX_CHARS:]


def _last_line(text: str) -> str:
    lines = [line.strip() for line in re.split(r"\n| \| ", text) if line.strip(" :|")]
    return lines[-1] if lines else ""
