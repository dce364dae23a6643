"""The judge: what the scores of a study say, by statistics fixed before the first run.

Place in the flow: `analyze` hands in the runs that the evaluator scored and gets an `Analysis`; the `design` node asks
how many runs a plan needs. samples.py estimates, judgement.py compares arms with the baseline and decides,
worst_case.py says what a verdict is held against, gains.py divides a difference into agent and training, notes.py says
what a verdict is about, contrasts.py judges what hypotheses predict, power.py chooses the number of runs. The package
knows nothing of planners, databases or servers.
"""

from researcher.judge.judgement import Family as Family
from researcher.judge.judgement import adjust_holm as adjust_holm
from researcher.judge.judgement import compare_sealed as compare_sealed
from researcher.judge.judgement import contradicts as contradicts
from researcher.judge.judgement import judge as judge
from researcher.judge.judgement import summarize_arm as summarize_arm
from researcher.judge.samples import evaluation_noise as evaluation_noise
from researcher.judge.worst_case import Runs as Runs
from researcher.judge.worst_case import worst_score as worst_score
