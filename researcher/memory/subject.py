"""The subject of a study: its environment, its model and the parts in which its arms may differ."""

from __future__ import annotations

from dataclasses import dataclass

from researcher.charter import Charter, FrameRequest
from researcher.scope import Scope
from swarm import TrainJob


@dataclass(frozen=True, slots=True)
class StudySubject:
    """The subject of a study, as its findings have it. `scope` has the parts of a `Scope`, with commas between."""

    environment_name: str
    environment_digest: str
    model: str
    scope: str

    @property
    def parts(self) -> frozenset[str]:
        return parts_of(self.scope)


def subject_of(charter: Charter) -> StudySubject:
    """Return the subject of a study."""
    model = charter.job.get("model", TrainJob.model_fields["model"].default)
    return StudySubject(charter.environment_name, charter.environment_digest, str(model), _as_text(charter.asks.scope))


def subject_of_request(request: FrameRequest) -> StudySubject | None:
    """Return the subject of a study before it is framed; None while nobody has named its environment."""
    scope, named = _as_text(request.question.scope), request.environment
    if named is not None:
        return StudySubject(named.name, named.digest, "", scope)
    return None if request.family is None else StudySubject(request.family, "", "", scope)


def parts_of(scope: str) -> frozenset[str]:
    """Return the parts that a text of a scope names."""
    return frozenset(part for part in scope.split(",") if part)


def _as_text(scope: Scope) -> str:
    return ",".join(scope.parts)
