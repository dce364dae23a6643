"""Programs: an agent, and how it is trained, on any environment. The library drives them."""

from swarm.program.attempts import Model, RecordedSession
from swarm.program.base import Program, answer_in_turn, is_program, load_program
from swarm.program.command import main
from swarm.program.training import TrainingResult, measure, train

__all__ = [
    "Model",
    "Program",
    "RecordedSession",
    "TrainingResult",
    "answer_in_turn",
    "is_program",
    "load_program",
    "main",
    "measure",
    "train",
]
