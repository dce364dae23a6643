"""The findings of earlier studies that concern a study, most relevant first, within a bound."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from experiments_db import ExperimentStore, Finding, FindingKind
from researcher.charter import Charter
from researcher.memory.listing import with_standing
from researcher.memory.subject import StudySubject, parts_of, subject_of

MAX_BYTES = 8_000
"""The most bytes of all lines together. A token is at least one byte, so this bounds the tokens of every model."""
MAX_LINE_BYTES = 600
MOST_READ = 200
"""The most findings of a kind that are looked at, those first that the database finds nearest."""
LEFT_OUT = "More findings are left out: the tool `findings` shows them."


def recall(store: ExperimentStore, study_id: str, charter: Charter) -> tuple[str, ...]:
    """Return what other studies found on the environment of a charter, one line each."""
    return recall_about(store, study_id, subject_of(charter))


def recall_about(store: ExperimentStore, study_id: str, subject: StudySubject) -> tuple[str, ...]:
    """Return what other studies found on an environment, one line each.

    Kinds stand together, in their order. Within a kind, findings on the very same environment come first, then those of
    the same scope, those on the same model, and the newest. Every kind has an equal part of the room, and what it does
    not need goes to the others. A last line says if something is left out.
    """
    lines = {kind: _list_lines(store, study_id, subject, kind) for kind in FindingKind}
    chosen = _fit({kind: found for kind, found in lines.items() if found})
    kept = tuple(line for kind in FindingKind for line in lines[kind][: chosen.get(kind, 0)])
    return kept if len(kept) == sum(map(len, lines.values())) else (*kept, LEFT_OUT)


def distance(item: Finding, subject: StudySubject) -> tuple[bool, float, bool, bool]:
    """Return how far a finding is from a subject; what is nearer comes first, and the rest stays in its order."""
    parts = parts_of(item.scope)
    shared = len(parts & subject.parts) / len(parts | subject.parts) if parts | subject.parts else 0.0
    is_open = item.kind is FindingKind.COMPARISON and item.verdict.is_open
    return item.environment_digest != subject.environment_digest, -shared, item.model != subject.model, is_open


def _list_lines(store: ExperimentStore, study_id: str, subject: StudySubject, kind: FindingKind) -> list[str]:
    found = store.list_findings_elsewhere(
        study_id,
        kind,
        environment_name=subject.environment_name,
        environment_digest=subject.environment_digest,
        scope=subject.scope,
        most=MOST_READ,
    )
    if kind is FindingKind.COMPARISON:
        found = list(_drop_replaced(found))
    found.sort(key=lambda item: distance(item, subject))
    return [_cut(item.describe(subject.environment_digest)) for item in with_standing(store, found)]


def _drop_replaced(newest_first: Sequence[Finding]) -> Iterator[Finding]:
    """Yield the comparisons with an effect, without those that a later plan of their study has judged again."""
    seen: set[tuple[str | None, str | None]] = set()
    for item in sorted(newest_first, key=lambda item: (-item.created_at, -item.iteration)):
        arms = (item.experiment_id, item.baseline_id)
        if arms not in seen and item.effect is not None:
            yield item
        seen.add(arms)


def _fit(lines: Mapping[FindingKind, Sequence[str]]) -> dict[FindingKind, int]:
    """Return how many lines of each kind fit into the room; each kind has an equal part of it first."""
    chosen = dict.fromkeys(lines, 0)
    room = MAX_BYTES - _size(LEFT_OUT)
    for part in (room // max(len(lines), 1), room):
        for kind, found in lines.items():
            used = sum(map(_size, found[: chosen[kind]]))
            for line in found[chosen[kind] :]:
                if used + _size(line) > part or _size(line) > room:
                    break
                used, room, chosen[kind] = used + _size(line), room - _size(line), chosen[kind] + 1
    return chosen


def _size(line: str) -> int:
    return len(line.encode()) + 1


def _cut(line: str) -> str:
    """Return a line that is too long with its end cut off."""
    encoded = line.encode()
    return line if len(encoded) <= MAX_LINE_BYTES else f"{encoded[:MAX_LINE_BYTES].decode(errors='ignore')} [...]"
