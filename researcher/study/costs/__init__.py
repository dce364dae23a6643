"""The cost of the attempts of each arm, in training and in final evaluation, from the ledgers of the servers.

Place in the flow: the evaluator computes costs (attempts.py) and stores them with the run. The report, the decisions
and the explorer read them by arm (arms.py). No number comes from a program, and this package judges nothing.
"""

from researcher.study.costs.arms import NOT_FROM_MODEL_BELOW as NOT_FROM_MODEL_BELOW
from researcher.study.costs.arms import cost_flags as cost_flags
from researcher.study.costs.arms import gather_costs as gather_costs
from researcher.study.costs.attempts import COST as COST
from researcher.study.costs.attempts import cost_from_json as cost_from_json
from researcher.study.costs.attempts import cost_of_attempts as cost_of_attempts
from researcher.study.costs.attempts import cost_to_json as cost_to_json
from researcher.study.costs.attempts import read_training_cost as read_training_cost
