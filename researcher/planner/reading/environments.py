"""The environment that a topic names: a bundled one in the words people use, a library's by reference, or a path.

Place in the flow: topic.py asks first, for a path or a reference holds words that would else be read. A study is judged
on one environment: a second one is not understood. This module opens nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from researcher.planner.reading.foreign import Kind, Part
from swarm.environments.registry import LIBRARIES

# An unambiguous name of a family is looked for first: "adding a KL term to word reversal" is about reversal.
CLEAR_NAMES = (
    (
        "calc",
        r"calc|calculators?(?: tools?)?|tool[- ]?(?:use|using|calls?|calling)|tools|function[- ]calling"
        r"|multiplication|multiplying",
    ),
    (
        "guess",
        r"guessing(?:[- ](?:games?|tasks?|(?:secret )?numbers?))?|guess (?:games?|tasks?)"
        r"|number[- ]guessing(?: games?)?|number game|higher[ -](?:or|and)[ -]lower(?: games?)?",
    ),
    (
        "chain",
        r"(?:keeping )?(?:a )?running totals?|chain(?:ed)? (?:task|environment|sums?|additions?|arithmetic)"
        r"|chain(?=[ ]*(?:$|[?.,;:!]))",
    ),
    ("reverse", r"(?:(?:word|string)[- ])?(?:reverse|reversals?)|reversing|reversed|backwards"),
    ("sort", r"(?:letter[- ])?sort(?:ing|ed)?(?! of\b)|alphabetical(?:ly)?(?: order)?"),
    ("copy", r"copy|copying|copies|echo(?:ing)?"),
    ("count", r"counting(?: letters?)?|count (?:letters?|task|environment)|letter[- ]count(?:s|ing)?"),
    ("add", r"additions?|add (?:(?:two )?numbers?|task|environment)|adding (?:two )?numbers|arithmetic|sums"),
)
LOOSE_NAMES = (
    ("count", r"counts?"), ("add", r"add|adding|sum"), ("chain", r"chain(?![- ]of[- ]thoughts?)"), ("guess", r"guess"),
)  # fmt: skip

_REFERENCE = re.compile(rf"\b(?:{'|'.join(LIBRARIES)}):[\w./@-]*\w(?:\?[\w=&.,-]*\w)?")
_PATH = re.compile(r"(?<![\w./])(?:~|\.{0,2}/)?[\w.-]+(?:/[\w.-]+)*/?(?:\?[\w=&.,-]*\w)?")
_DATA_FILE = re.compile(r"\.(?:jsonl|parquet|csv)$")


@dataclass(frozen=True, slots=True)
class NamedEnvironments:
    """`read` are the places in the text that name what is used, `unknown` what cannot be used beside it."""

    task: str | None
    reference: str | None
    read: tuple[tuple[int, int], ...]
    unknown: tuple[Part, ...]


def find_environments(text: str) -> NamedEnvironments:
    references = [(match.span(), match.group()) for match in _REFERENCE.finditer(text)]
    paths, unknown = _find_paths(text)
    given = sorted([*references, *paths])
    bundled = _find_bundled(_without(text, [span for span, _ in given]))
    if given:
        reference = given[0][1]
        rest = [*(item for item in given if item[1] != reference), *bundled]
        read = tuple(span for span, name in given if name == reference)
        return NamedEnvironments(None, reference, read, (*unknown, *_further(text, rest, reference)))
    task = bundled[0][1] if bundled else None
    rest = [item for item in bundled if item[1] != task]
    read = tuple(span for span, name in bundled if name == task)
    return NamedEnvironments(task, None, read, (*unknown, *_further(text, rest, str(task))))


def _further(text: str, named: list[tuple[tuple[int, int], str]], first: str) -> list[Part]:
    remedy = f"a study is judged on one environment, here {first}: begin another study for this one"
    return [Part(text[start:end], start, Kind.ENVIRONMENT, remedy) for (start, end), _ in named]


def _find_bundled(text: str) -> list[tuple[tuple[int, int], str]]:
    """Every place of a clear name, or the places of the first loose one."""
    for table in (CLEAR_NAMES, LOOSE_NAMES):
        found = [
            (match.span(), name)
            for name, pattern in table
            for match in re.finditer(
                rf"(?<!\w)(?:{pattern}|(?<=on )the {name}|(?<=on ){name})(?!\w)", text, re.IGNORECASE
            )
        ]
        chosen: list[tuple[tuple[int, int], str]] = []
        for span, name in sorted(found, key=lambda item: (item[0][0] - item[0][1], item[0][0])):
            if not any(span[0] < other[1] and other[0] < span[1] for other, _ in chosen):
                chosen.append((span, name))
        chosen.sort()
        if chosen:
            return chosen if table is CLEAR_NAMES else [item for item in chosen if item[1] == chosen[0][1]]
    return []


def _find_paths(text: str) -> tuple[list[tuple[tuple[int, int], str]], list[Part]]:
    """Folders and files of tasks; what looks like one and does not exist is not understood."""
    found: list[tuple[tuple[int, int], str]] = []
    unknown: list[Part] = []
    for match in _PATH.finditer(text):
        written = match.group().rstrip(".")
        path = Path(written.partition("?")[0]).expanduser()
        is_written_so = written.startswith(("/", "./", "../", "~")) or bool(_DATA_FILE.search(path.name))
        if "/" not in written and not _DATA_FILE.search(path.name):
            continue
        span = (match.start(), match.start() + len(written))
        if path.exists() and (path.is_dir() or _DATA_FILE.search(path.name)):
            found.append((span, written))
        elif is_written_so and len(written) > 1:
            unknown.append(Part(written, span[0], Kind.ENVIRONMENT, "there is no such folder or file of tasks"))
    return found, unknown


def _without(text: str, spans: list[tuple[int, int]]) -> str:
    for start, end in spans:
        text = text[:start] + " " * (end - start) + text[end:]
    return text
