"""The protocol by which a training leaves its server for a tracker, and the records that it carries.

Place in the flow: the recorder (`swarm.recorder`) reads a server's ledger and writes to sinks. Sinks are found by the
entry point group `swarm.sinks`: the experiments database is one, trackers such as Trackio or MLflow are others.
"""

from swarm.sinks.base import (
    CHOSEN_AS,
    ChosenEpisode,
    EvaluatedStep,
    FinishedStep,
    OpenSink,
    Sink,
    SystemReading,
    TrainingDescription,
    TrainingEvent,
    TrainingUpdate,
)
from swarm.sinks.registry import ENTRY_POINTS, check_sinks, list_sinks, open_sink

__all__ = [
    "CHOSEN_AS",
    "ENTRY_POINTS",
    "ChosenEpisode",
    "EvaluatedStep",
    "FinishedStep",
    "OpenSink",
    "Sink",
    "SystemReading",
    "TrainingDescription",
    "TrainingEvent",
    "TrainingUpdate",
    "check_sinks",
    "list_sinks",
    "open_sink",
]
