"""The job of a training run: its settings, the rules between them, and how it is read."""

from swarm.job.checks import check_mixture as check_mixture
from swarm.job.learning_rate import BUNDLED_MODEL as BUNDLED_MODEL
from swarm.job.learning_rate import LR_OF_BUNDLED_MODELS as LR_OF_BUNDLED_MODELS
from swarm.job.learning_rate import MODEL_OF_OWN_TASKS as MODEL_OF_OWN_TASKS
from swarm.job.learning_rate import usual_lr as usual_lr
from swarm.job.settings import AGGREGATION_BY_LOSS as AGGREGATION_BY_LOSS
from swarm.job.settings import GROUP_TIMEOUT_S as GROUP_TIMEOUT_S
from swarm.job.settings import NOT_OF_SAMPLING as NOT_OF_SAMPLING
from swarm.job.settings import STALL_TIMEOUT_S as STALL_TIMEOUT_S
from swarm.job.settings import TRAITS as TRAITS
from swarm.job.settings import GuardMode as GuardMode
from swarm.job.settings import LRScheduler as LRScheduler
from swarm.job.settings import PolicyLoss as PolicyLoss
from swarm.job.settings import ReasoningParser as ReasoningParser
from swarm.job.settings import ToolParser as ToolParser
from swarm.job.train_job import LEFT_OUT as LEFT_OUT
from swarm.job.train_job import TrainJob as TrainJob
from swarm.job.train_job import build_job as build_job
from swarm.job.train_job import first_line as first_line
from swarm.job.train_job import first_location as first_location
from swarm.job.traits import CRITIC as CRITIC
from swarm.job.traits import NEW_RUN as NEW_RUN
from swarm.job.traits import Need as Need
from swarm.job.traits import Purpose as Purpose
from swarm.job.traits import Reader as Reader
from swarm.job.traits import Traits as Traits
