"""What a person said by flags, held against a topic: what a flag stands for, and wishes that contradict each other.

Place in the flow: rules.py asks in frame, once the topic is read. This module decides nothing about arms.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from researcher.errors import TopicInvalid
from researcher.planner.reading.account import asks_of_something
from researcher.planner.reading.foreign import Kind, Part
from researcher.planner.reading.goals import ComparedAt
from researcher.planner.topic import ParsedTopic
from researcher.types import FrameRequest

RESPONSE_LENGTH = "max_response_length"
"""Name of the factor whose levels are limits on a reply, which a program asks the model for."""
TOTAL_STEPS = "total_steps"
_IN_PLACE = re.compile(r"\b(?:on|in|for|with|of|from)(?:\s+(?:the|our|my|a|an))?\s+$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Flags:
    """`job` are settings of every arm, `steps` those of --steps. `programs` and `train_envs` are how many are named;
    `gpus` is how many there are, None where that cannot be told here."""

    job: Mapping[str, Any]
    steps: int | None
    programs: int
    train_envs: int
    gpus: int | None

    def refuse_contradictions(self, topic: ParsedTopic, request: FrameRequest) -> None:
        """Raises TopicInvalid where a flag fixes what the topic wants to vary."""
        fixed = {TOTAL_STEPS: ("--steps", self.steps), "model": ("--train-model", self.job.get("model"))}
        if request.eval_every is not None and topic.compared_at in (ComparedAt.TOKENS, ComparedAt.TIME):
            raise TopicInvalid(
                f"--eval-every needs runs of known steps, and equal {topic.compared_at} end them: leave one of both out"
            )
        for factor in topic.factors:
            flag, value = fixed.get(factor.name, ("", None))
            if value is not None:
                raise TopicInvalid(f"{flag} {value} fixes {factor.name}, which the topic varies: leave {flag} out")

    def find_missing(self, topic: ParsedTopic, request: FrameRequest) -> tuple[Part, ...]:
        """The parts of the topic that neither it nor a flag says how to study, in order."""
        missing = [part for part in topic.not_understood if not self._stands_for(part, topic, request)]
        missing += self._find_impossible(topic)
        if not topic.factors and not missing and asks_of_something(topic.text):
            missing.append(Part(topic.text, 0, Kind.UNKNOWN, "it names nothing that can be compared"))
        return tuple(sorted(missing, key=lambda part: part.start))

    def _find_impossible(self, topic: ParsedTopic) -> Iterator[Part]:
        """What is understood and cannot be had here, or not together."""
        factors = {factor.name for factor in topic.factors}
        if topic.n_gpu is not None and self.gpus is not None and topic.n_gpu > self.gpus and "n_gpu" not in self.job:
            said = next(item for item in topic.quantities if item.name == "n_gpu")
            remedy = f"there are {self.gpus} GPUs here: leave the number out, or name servers that have them: --servers"
            yield Part(said.text.strip(), said.start, Kind.MACHINE, remedy)
        if topic.compared_at not in (None, ComparedAt.STEPS) and TOTAL_STEPS in factors:
            remedy = "where the number of steps is compared, nothing else ends a run: leave one of both out"
            yield Part(f"equal {topic.compared_at}", 0, Kind.COMPARISON, remedy)
        if self.programs and RESPONSE_LENGTH in factors:
            remedy = "programs of your own say how long a reply may be: compare two of them with --program"
            yield Part(RESPONSE_LENGTH, 0, Kind.PROGRAM, remedy)

    def _stands_for(self, part: Part, topic: ParsedTopic, request: FrameRequest) -> bool:
        """Whether something that a person named by a flag is what a part of the topic speaks of."""
        is_compared = self.programs > 1 or self.train_envs > 1
        has_environment = request.environment is not None or request.task is not None
        match part.kind:
            case Kind.ENVIRONMENT:
                return has_environment or self.train_envs > 0
            case Kind.PROGRAM:
                return self.programs > 0
            case Kind.MODEL:
                return "model" in self.job
            case Kind.UNKNOWN | Kind.NUMBER if is_compared:
                return True
            case Kind.UNKNOWN:
                return has_environment and bool(_IN_PLACE.search(topic.text[: part.start]))
            case _:
                return False
