"""The judge: statistics, fixed before the first run, that turn the scores of a study into verdicts.

Place in the flow: `analyze` hands in the runs that the evaluator scored and gets an `Analysis`. The `design` node asks
how many runs a plan needs. The package knows nothing of planners, databases or servers.

samples.py estimates. judgement.py compares arms with the baseline and decides. worst_case.py builds the worst case that
a verdict must survive. gatekeeping.py holds secondary arms back until the primary ones are kept. gains.py divides a
difference into the parts of agent and training. notes.py explains a verdict. contrasts.py judges the predictions of
hypotheses. power.py chooses the number of runs.
"""

from researcher.judge.judgement import Family as Family
from researcher.judge.judgement import adjust_holm as adjust_holm
from researcher.judge.judgement import compare_on_test as compare_on_test
from researcher.judge.judgement import contradicts as contradicts
from researcher.judge.judgement import judge as judge
from researcher.judge.judgement import summarize_arm as summarize_arm
from researcher.judge.samples import evaluation_noise as evaluation_noise
from researcher.judge.worst_case import Runs as Runs
from researcher.judge.worst_case import worst_score as worst_score
