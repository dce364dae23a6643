"""How a study is begun: its settings, and everything about them that can be checked before a run.

Place in the flow: the CLI asks here first and session.py carries out what was found sound. It loads neither the graph
nor the database, so that a wrong setting is answered at once.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from researcher.errors import TopicInvalid
from researcher.execution.servers import check_servers
from researcher.planner.rules import RulesPlanner
from researcher.types import Budget, FrameRequest
from swarm.config import complete_address
from swarm.sandbox.sandbox import Sandbox, choose_sandbox
from swarm.tasks import TASK_FAMILIES


class StudySettings(BaseModel):
    """How a study was started; stored with it, so that `resume` needs nothing but its id.

    None leaves a choice to the topic and the planner. `servers` empty means `parallel` own servers. `llm_price` is in
    dollars per million tokens, asked and answered.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    brain: Literal["rules", "llm"] = "rules"
    model: str | None = None
    task: str | None = None
    seeds: int | None = Field(default=None, ge=1, le=100)
    steps: int | None = Field(default=None, ge=1, le=1_000_000)
    eval_episodes: int | None = Field(default=None, ge=1, le=100_000)
    servers: tuple[str, ...] = ()
    parallel: int = Field(default=2, ge=1, le=64)
    max_runs: int | None = Field(default=None, ge=1)
    max_hours: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    max_llm_tokens: int | None = Field(default=None, ge=1)
    max_llm_usd: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    llm_price: tuple[float, float] | None = None
    unsafe_no_sandbox: bool = False
    engine: Literal["local", "fake"] = "local"

    @field_validator("servers")
    @classmethod
    def _addresses_in_full(cls, servers: tuple[str, ...]) -> tuple[str, ...]:
        """One spelling of a server, for its lease goes by it."""
        return tuple(complete_address(url) for url in servers)

    def budget(self) -> Budget:
        return Budget(
            max_runs=self.max_runs,
            max_wall_s=None if self.max_hours is None else self.max_hours * 3600,
            max_llm_tokens=self.max_llm_tokens,
            max_llm_usd=self.max_llm_usd,
        )

    def request(self, topic: str) -> FrameRequest:
        return FrameRequest(
            topic=topic,
            task=self.task,
            seeds=self.seeds,
            steps=self.steps,
            eval_episodes=self.eval_episodes,
            budget=self.budget(),
        )


def read_settings(values: Mapping[str, Any]) -> StudySettings:
    """Raises TopicInvalid naming the first setting that cannot be."""
    try:
        return StudySettings.model_validate(dict(values))
    except ValidationError as error:
        first: Any = error.errors(include_url=False)[0]
        name = ".".join(str(part) for part in first["loc"])
        raise TopicInvalid(f"--{name.replace('_', '-')}: {first['msg']} (got {first['input']!r})") from error


def check_study(topic: str, settings: StudySettings) -> None:
    """Everything that can be checked without a run, before anything is stored.

    Raises TopicInvalid, ServerProblem or SandboxUnavailable.
    """
    if not topic.strip():
        raise TopicInvalid("the topic is empty: say what to study, such as 'Does group size matter for word reversal?'")
    if settings.task is not None and settings.task not in TASK_FAMILIES:
        raise TopicInvalid(f"unknown task {settings.task!r}; choose one of: {', '.join(TASK_FAMILIES)}")
    if settings.brain == "rules":
        rules_brain(settings).frame(settings.request(topic))
    else:
        _check_language_model(settings)
    sandbox_of(settings)
    check_servers(settings.servers)


def sandbox_of(settings: StudySettings) -> Sandbox | None:
    """Only code of a language model needs one. Raises SandboxUnavailable."""
    return None if settings.brain == "rules" else choose_sandbox(settings.unsafe_no_sandbox)


def rules_brain(settings: StudySettings) -> RulesPlanner:
    return RulesPlanner(seeds=settings.seeds, steps=settings.steps, engine=settings.engine)


def _check_language_model(settings: StudySettings) -> None:
    if not settings.model:
        raise TopicInvalid("--brain llm needs the name of a model: give --model NAME, or use --brain rules")
    if not os.environ.get("OPENAI_API_KEY"):
        raise TopicInvalid("--brain llm needs OPENAI_API_KEY (any text if the server at OPENAI_BASE_URL asks for none)")
    if settings.max_llm_usd is not None and settings.llm_price is None:
        raise TopicInvalid("--max-llm-usd needs the model's prices: give --llm-price INPUT,OUTPUT in $ per 1M tokens")
