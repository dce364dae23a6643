"""What a person is told whose topic cannot be studied as asked: what is missing, what there is, and the nearest study.

Place in the flow: planners raise what `refuse` makes, from frame, so that it comes before any server and any run. It
knows the tables of settings and environments; it decides nothing.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from experiments_db import number_as_text
from researcher.errors import TopicNotUnderstood
from researcher.planner.factors import ALGORITHMS, FACTORS, Factor
from researcher.planner.topic import ParsedTopic
from researcher.types import FrameRequest
from swarm.tasks import TASK_FAMILIES

_TITLES = {
    "use_kl_loss": "KL",
    "policy_loss": "policy loss",
    "loss_agg_mode": "loss aggregation",
    "model": "the models",
}
_PLAIN_TOPIC = "Which settings train {task} best?"


def refuse(
    parts: Sequence[tuple[str, str]],
    nearest_topic: str,
    request: FrameRequest,
    *,
    comparable: Sequence[str] = (*(spec.name for spec in FACTORS), *(name for name, _ in ALGORITHMS)),
) -> TopicNotUnderstood:
    """The error for `parts` of a topic, each with what to do about it. `nearest_topic` can be studied, `comparable` is
    what the planner can vary."""
    named = list(dict(parts))
    lines = [
        f"the topic asks for what cannot be studied: {', '.join(repr(name) for name in named)}",
        *(f"  {name}: {remedy}" for name, remedy in dict(parts).items()),
        f"what can be compared: {', '.join(comparable)}",
        f"what can be trained on: {', '.join(TASK_FAMILIES)}, and more with --env; programs, models, GPUs and settings "
        "of every arm: --program, --train-model, --n-gpu, --job (docs/topics.md)",
        f"nearest study: {nearest_command(nearest_topic, request)}",
        "to study the topic without these parts, which the report then says first: --assume",
    ]
    return TopicNotUnderstood("\n".join(lines), tuple(named))


def nearest_command(topic: str, request: FrameRequest) -> str:
    words = ["researcher", "start", "--topic", topic]
    environment = request.environment.reference if request.environment else request.task
    return shlex.join([*words, "--env", environment] if environment else words)


def nearest_topic(topic: ParsedTopic, factors: Sequence[Factor], task: str) -> str:
    """A topic of what was understood: it reads back as the same factors and levels, on the same environment."""
    place = topic.environment or task
    if not factors:
        return _PLAIN_TOPIC.format(task=place)
    named = " and ".join(_phrase(factor) for factor in factors)
    counts = [f"{topic.seeds} seeds" if topic.seeds else "", f"{topic.steps} steps" if topic.steps else ""]
    told = " and ".join(count for count in counts if count)
    return f"Compare {named} on {place}{f' with {told}' if told else ''}"


def _phrase(factor: Factor) -> str:
    """A factor with its levels, as topic.py reads them."""
    values = [level.factors[factor.name] for level in factor.levels]
    if factor.name == "use_kl_loss":
        return "KL or no KL"
    if factor.name == "algorithm":
        return _listed([level.name for level in factor.levels])
    if all(isinstance(value, int | float) for value in values):
        return f"{factor.name} {_listed([number_as_text(value) for value in values])}"
    return f"{_TITLES.get(factor.name, factor.name)} {_listed([level.name for level in factor.levels])}"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
