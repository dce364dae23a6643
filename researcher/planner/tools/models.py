"""The tool `model`: what the studied model is, and what it can do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import Field

from researcher.phases import BASE
from researcher.planner.texts import number
from researcher.planner.tools.base import ToolArguments
from researcher.planner.tools.sources import ToolSources, study_tool
from swarm.errors import SwarmError
from swarm.job import LR_OF_BUNDLED_MODELS, build_job, usual_lr
from swarm.model_path import resolve_model, stored_parameters

BUNDLED: Mapping[str, str] = MappingProxyType(
    {
        "nano": "trained on: the eight bundled tasks, in one wording each\n"
        "It knows no facts and follows no other wording than that of the bundled tasks: a prompt of another form leads "
        "to noise. It answers in one short line and does not reason.",
        "micro": "trained on: 106 kinds of task in 422 patterns of wording\n"
        "It knows no facts. It follows questions about copying, reversing, letters, counting, sorting, replacing, "
        "sums, sequences, comparisons, yes or no, short stories, given options, tools, and conversations of several "
        "turns. It reads text character by character. Wordings that it was not trained on are right less often.",
    }
)
"""The training and the abilities of the models that come with the package, in the words of docs/models.md."""


class ModelArguments(ToolArguments):
    arm: str | None = Field(default=None, description="The arm whose model is meant (default: that of all arms).")


@study_tool(
    "model",
    "Look at the model that is trained: its size, its context length, what it can do, and its scores before training.",
)
def model_tool(sources: ToolSources, arguments: ModelArguments) -> str:
    job = sources.job() if arguments.arm is None else sources.arm(arguments.arm).job
    name = build_job(dict(job)).model
    return "\n".join([f"model: {name}", *describe_model(name), *_base_scores(sources)])


def describe_model(name: str) -> list[str]:
    """Return the facts about a model, one a line."""
    known = [BUNDLED[name]] if name in BUNDLED else []
    try:
        directory = resolve_model(name)
    except SwarmError as error:
        return [*known, f"its files cannot be read here: {error.message}"]
    lr = LR_OF_BUNDLED_MODELS.get(name)
    return [*_from_files(directory, lr), *known]


def _from_files(directory: Path, lr: float | None) -> list[str]:
    config = _json(directory / "config.json")
    shape = [f"{key} {config[key]}" for key in ("model_type", "num_hidden_layers", "hidden_size", "vocab_size",
             "max_position_embeddings") if key in config]  # fmt: skip
    try:
        count = stored_parameters(directory)
    except SwarmError as error:
        return [f"parameters: unknown: {error.message}", f"config: {', '.join(shape)}"]
    lr = lr or (usual_lr(count, has_adapter=False) if count else None)
    size = f"{count / 1e6:.4g} million; usual lr: {lr:g}" if count else "unknown"
    return [f"parameters: {size}", f"config: {', '.join(shape)}"]


def _base_scores(sources: ToolSources) -> list[str]:
    """Return the held-out scores of the base weights, per arm: arms may have agents of their own."""
    names = {arm.id: arm.name for arm in sources.store.list_experiments(sources.study_id)}
    arms = {run.id: names[run.experiment_id] for run in sources.store.list_runs(study_id=sources.study_id)}
    evaluations = sources.store.list_evaluation_summaries(study_id=sources.study_id, phase=BASE)
    splits = sources.open_splits() if evaluations else frozenset[str]()
    scores = {
        arms[score.run_id]: f"{arms[score.run_id]} {number(score.mean)} (± {number(score.stderr)})"
        for score in evaluations
        if score.split in splits
    }
    return [f"held-out score before training: {', '.join(scores.values()) or 'not measured yet'}"]


def _json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
