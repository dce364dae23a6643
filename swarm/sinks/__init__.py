"""The protocol by which a training leaves its server for a tracker, the records that it carries, and the sinks."""

from swarm.sinks.base import CHOSEN_AS as CHOSEN_AS
from swarm.sinks.base import ChosenEpisode as ChosenEpisode
from swarm.sinks.base import EvaluatedStep as EvaluatedStep
from swarm.sinks.base import FinishedStep as FinishedStep
from swarm.sinks.base import LedgerProgress as LedgerProgress
from swarm.sinks.base import OpenSink as OpenSink
from swarm.sinks.base import ProgressSink as ProgressSink
from swarm.sinks.base import Sink as Sink
from swarm.sinks.base import SystemReading as SystemReading
from swarm.sinks.base import TrainingDescription as TrainingDescription
from swarm.sinks.base import TrainingEvent as TrainingEvent
from swarm.sinks.base import TrainingUpdate as TrainingUpdate
from swarm.sinks.registry import check_sinks as check_sinks
from swarm.sinks.registry import list_sinks as list_sinks
from swarm.sinks.registry import open_sink as open_sink
