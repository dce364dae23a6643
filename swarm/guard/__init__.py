"""The rules that tell from the metrics of a training's steps that it is not worth going on."""

from swarm.guard.limits import MetricLimits as MetricLimits
from swarm.guard.metrics import AGREEMENT as AGREEMENT
from swarm.guard.metrics import ENTROPY as ENTROPY
from swarm.guard.metrics import GRADED_GROUPS as GRADED_GROUPS
from swarm.guard.metrics import GROUPS as GROUPS
from swarm.guard.metrics import KL as KL
from swarm.guard.metrics import REWARD as REWARD
from swarm.guard.metrics import SILENT_GROUPS as SILENT_GROUPS
from swarm.guard.metrics import SPREAD as SPREAD
from swarm.guard.metrics import SUCCESS as SUCCESS
from swarm.guard.metrics import WATCHED as WATCHED
from swarm.guard.metrics import StepMetrics as StepMetrics
from swarm.guard.metrics import StepRow as StepRow
from swarm.guard.rules import NOT_FINITE as NOT_FINITE
from swarm.guard.rules import TrainingFault as TrainingFault
from swarm.guard.rules import find_fault as find_fault
