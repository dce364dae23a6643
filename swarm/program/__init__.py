"""Programs: an agent for any environment, with its training reward and its curriculum; the library runs them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from swarm.program.attempts import Model, RecordedSession
    from swarm.program.base import PLAIN, Program, answer_in_turn, is_program, load_program, rewards_of
    from swarm.program.command_line import ENVIRONMENT_FAILED, NO_SANDBOX, PROGRAM_FAILED, main
    from swarm.program.hosted.process import MAX_HUNG, ProgramProcess, place_program
    from swarm.program.order import RUN_MARK
    from swarm.program.training import EVAL_TEMPERATURE, EndedAttempt, TrainingResult, measure, train

__all__ = [
    "ENVIRONMENT_FAILED",
    "EVAL_TEMPERATURE",
    "MAX_HUNG",
    "NO_SANDBOX",
    "PLAIN",
    "PROGRAM_FAILED",
    "RUN_MARK",
    "EndedAttempt",
    "Model",
    "Program",
    "ProgramProcess",
    "RecordedSession",
    "TrainingResult",
    "answer_in_turn",
    "is_program",
    "load_program",
    "main",
    "measure",
    "place_program",
    "rewards_of",
    "train",
]

_MODULE_BY_NAME = {
    **dict.fromkeys(("Model", "RecordedSession"), "swarm.program.attempts"),
    **dict.fromkeys(
        ("PLAIN", "Program", "answer_in_turn", "is_program", "load_program", "rewards_of"), "swarm.program.base"
    ),
    **dict.fromkeys(("ENVIRONMENT_FAILED", "NO_SANDBOX", "PROGRAM_FAILED", "main"), "swarm.program.command_line"),
    **dict.fromkeys(("MAX_HUNG", "ProgramProcess", "place_program"), "swarm.program.hosted.process"),
    "RUN_MARK": "swarm.program.order",
    **dict.fromkeys(
        ("EVAL_TEMPERATURE", "EndedAttempt", "TrainingResult", "measure", "train"), "swarm.program.training"
    ),
}


def __getattr__(name: str) -> object:
    if name not in _MODULE_BY_NAME:
        raise AttributeError(f"module 'swarm.program' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE_BY_NAME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
