"""The valid answers of a language model as pydantic models, and the parsers that find them in its text."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from experiments_db import Operator
from researcher.charter import Asked, ComparedAt, Design, JudgedBy, PolicyName, StudyKind
from researcher.claims import Claim, ClaimKind, Measured
from researcher.plan import ManipulationCheck, Relation, Speaker
from researcher.planner.texts import describe_invalid
from researcher.program_code import ProgramCode

MAX_ARMS = 12
MAX_HYPOTHESES = 8
MAX_CLAIMS = 24
MAX_FACTORS = 8
MAX_LESSONS = 6
MAX_RUNGS = 6

_ARM_NAME = r"^[A-Za-z0-9][A-Za-z0-9 =.,_+\[\]\-]{0,59}$"
ArmName = Annotated[str, StringConstraints(strip_whitespace=True, pattern=_ARM_NAME)]
ProgramName = Annotated[str, StringConstraints(strip_whitespace=True, pattern=r"^[A-Za-z0-9][A-Za-z0-9 .,_+\-]{0,59}$")]
"""A name without an equals sign, which marks a level of a setting."""
Line = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=600)]
Lessons = Annotated[list[Line], Field(max_length=MAX_LESSONS)]
Passage = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=4_000)]
Count = Annotated[int, Field(ge=1, le=2**31 - 1)]
Share = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
CHECK = "check"
"""The function in the code of a manipulation check."""
FINAL_SCORE = "final"
"""The metric of a hypothesis that the judge decides on: the number by which the charter judges runs."""

_THINKING = re.compile(r"<think>.*?</think>", re.DOTALL)
_PROGRAM = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL)
_FENCED_JSON = re.compile(r"```(?:json)?[ \t]*\n(.*?)```", re.DOTALL)


class Unusable(ValueError):
    """An answer that cannot be used; the model sees the message."""


class Answer(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class InfeasibleAnswer(Answer):
    what: Line
    why: Line


class FrameAnswer(Answer):
    """A framed question, or the parts of the topic that cannot be studied with the nearest topic that can.

    It is both if a person agreed to go on without those parts. The fields `kind` to `baseline` are texts of the flags
    of the same names, and so are those in `scope`. `programs` are the names of the compared programs.

    The fields from `compared_at` to `attempt_tokens` say what arms get and how runs are measured, and those from
    `policy` on are rules of exploration. None leaves each as it is.
    """

    question: Line | None = None
    family: Line | None = None
    kind: StudyKind | None = None
    ask: Asked | None = None
    vary: Annotated[list[Line], Field(max_length=MAX_FACTORS)] = []
    programs: Annotated[list[ProgramName], Field(max_length=MAX_ARMS)] = []
    fix: Annotated[list[Line], Field(max_length=MAX_FACTORS)] = []
    scope: Annotated[list[Line], Field(max_length=MAX_FACTORS)] = []
    design: Design | None = None
    baseline: Annotated[list[Line], Field(max_length=MAX_FACTORS)] = []
    compared_at: ComparedAt | None = None
    amount: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    steps: Count | None = None
    judged_by: JudgedBy | None = None
    judged_level: Annotated[float, Field(allow_inf_nan=False)] | None = None
    eval_every: Count | None = None
    eval_episodes: Annotated[int, Field(ge=20, le=100_000)] | None = None
    attempt_calls: Count | None = None
    attempt_tokens: Count | None = None
    policy: PolicyName | None = None
    rungs: Annotated[list[Share], Field(max_length=MAX_RUNGS)] = []
    assumptions: Annotated[list[Line], Field(max_length=10)] = []
    infeasible: Annotated[list[InfeasibleAnswer], Field(max_length=10)] = []
    nearest: Annotated[str, StringConstraints(strip_whitespace=True, max_length=600)] = ""


class HypothesisAnswer(Answer):
    """A hypothesis of the plan.

    `relation`, `against` and `margin` are those of a Contrast. Without a relation, nothing judges the statement, and
    nothing does so if `metric` is another one than FINAL_SCORE.
    """

    statement: Line
    prediction: Line
    arms: list[ArmName]
    relation: Relation | None = None
    against: list[ArmName] = []
    margin: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    metric: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=80)] = FINAL_SCORE


class ManipulationAnswer(Answer):
    """The fields of a ManipulationCheck, with the same names."""

    statement: Annotated[Line, Field(description="What must be true of the transcripts, in words.")]
    pattern: Annotated[
        str, Field(max_length=500, description="A regular expression; empty counts the messages themselves.")
    ] = ""
    speaker: Annotated[Speaker, Field(description="Whose messages are looked at.")] = Speaker.AGENT
    at_least: Annotated[int, Field(ge=0)] = 1
    at_most: Annotated[int, Field(ge=0)] | None = None
    code: Annotated[str, Field(max_length=4_000, description="Instead of a pattern: def check(transcript) -> bool")] = (
        ""
    )
    share: Annotated[
        float, Field(ge=0, le=1, allow_inf_nan=False, description="The share of attempts that must pass.")
    ] = 0.5

    @model_validator(mode="after")
    def _can_be_evaluated(self) -> ManipulationAnswer:
        if self.pattern and self.code:
            raise ValueError("give a pattern or code, not both")
        if self.at_most is not None and self.at_most < self.at_least:
            raise ValueError("at_most is below at_least")
        try:
            re.compile(self.pattern)
            functions = ProgramCode(self.code).functions
        except (re.error, SyntaxError) as error:
            raise ValueError(str(error)) from error
        if self.code and CHECK not in functions:
            raise ValueError(f"the code has no function {CHECK}(transcript)")
        return self

    def to_check(self) -> ManipulationCheck:
        return ManipulationCheck(**self.model_dump())


class ArmAnswer(Answer):
    """An arm: what it changes of its parent, and why.

    Without a parent it is the baseline's child. `settings` are those that differ from the parent's job. An empty
    `program` is the parent's.
    """

    name: ArmName
    parent: ArmName | None = None
    operator: Operator | None = None
    second_parent: ArmName | None = None
    settings: dict[str, Any] = {}
    program: Annotated[str, StringConstraints(strip_whitespace=True, max_length=300)] = ""
    purpose: Line
    manipulation: ManipulationAnswer | None = None


class PlanAnswer(Answer):
    rationale: Line
    hypotheses: Annotated[list[HypothesisAnswer], Field(max_length=MAX_HYPOTHESES)] = []
    arms: Annotated[list[ArmAnswer], Field(min_length=1, max_length=MAX_ARMS)]
    seeds: int
    lessons: Lessons = []


class PromotionAnswer(Answer):
    arm: ArmName
    share: Share


class ExploreAnswer(Answer):
    """A round of exploration: new arms, arms that are trained on, or the end."""

    rationale: Line
    hypotheses: Annotated[list[HypothesisAnswer], Field(max_length=MAX_HYPOTHESES)] = []
    arms: Annotated[list[ArmAnswer], Field(max_length=MAX_ARMS)] = []
    promote: Annotated[list[PromotionAnswer], Field(max_length=MAX_ARMS)] = []
    done: bool = False
    lessons: Lessons = []


class RespondAnswer(Answer):
    withdraw: bool
    answer: Passage


class DoubtedAnswer(Answer):
    arm: ArmName
    reason: Line


class DecideAnswer(Answer):
    action: Literal["refine", "confirm", "stop"]
    reason: Line
    disqualified: Annotated[list[DoubtedAnswer], Field(max_length=MAX_ARMS)] = []
    suspect: Annotated[list[DoubtedAnswer], Field(max_length=MAX_ARMS)] = []
    confirm: Annotated[list[HypothesisAnswer], Field(max_length=MAX_HYPOTHESES)] = []
    lessons: Lessons = []


class ClaimAnswer(Answer):
    """One claim of prompts/interpret.md, without the fields that its kind does not need."""

    claim: ClaimKind
    arm: ArmName | None = None
    other: ArmName | None = None
    measured: Measured = Measured.AFTER
    number: Annotated[float, Field(allow_inf_nan=False)] | None = None
    significant: bool | None = None
    arms: Annotated[list[ArmName], Field(max_length=MAX_CLAIMS)] = []
    of: int | None = None
    text: Annotated[str, StringConstraints(strip_whitespace=True, max_length=600)] = ""

    def to_claim(self) -> Claim:
        fields = self.model_dump(exclude={"claim", "arms"})
        return Claim(kind=self.claim, arms=tuple(self.arms), **fields)


class InterpretAnswer(Answer):
    claims: Annotated[list[ClaimAnswer], Field(min_length=1, max_length=MAX_CLAIMS)]


A = TypeVar("A", bound=Answer)


def is_arm_name(text: str) -> bool:
    """Return whether an answer may use the text as the name of an arm."""
    return re.fullmatch(_ARM_NAME, text) is not None


def parse_answer(text: str, model: type[A]) -> A:
    """Return the last JSON object of `text` as a `model`.

    Raises Unusable if there is none or it is invalid.
    """
    try:
        return model.model_validate(find_object(text))
    except ValidationError as error:
        raise Unusable(describe_invalid(error, "the object")) from error


def parse_program(text: str) -> str:
    """Return the last fenced Python block of `text`.

    Raises Unusable if there is none.
    """
    blocks = _PROGRAM.findall(_THINKING.sub("", text))
    if not blocks or not blocks[-1].strip():
        raise Unusable("there is no fenced block that starts with ```python and holds the program")
    return blocks[-1].strip() + "\n"


def parse_claims(text: str) -> tuple[Claim, ...]:
    """Return a model's claims about the results.

    Raises Unusable if they are invalid.
    """
    return tuple(claim.to_claim() for claim in parse_answer(text, InterpretAnswer).claims)


def find_object(text: str) -> dict[str, Any]:
    """Return the last JSON object of `text`.

    Raises Unusable if there is none.
    """
    text = _THINKING.sub("", text)
    fenced = _FENCED_JSON.findall(text)
    found = _objects_in(fenced[-1] if fenced else text)
    if not found:
        raise Unusable("there is no JSON object in the answer")
    return found[-1]


def _objects_in(text: str) -> list[dict[str, Any]]:
    """Return every outermost JSON object, in order."""
    decoder = json.JSONDecoder()
    found: list[dict[str, Any]] = []
    position = text.find("{")
    while position >= 0:
        try:
            value, end = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            position = text.find("{", position + 1)
            continue
        found.append(value)
        position = text.find("{", end)
    return found
