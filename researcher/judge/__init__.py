"""The judge: what the scores of a study say, by statistics fixed before the first run.

Place in the flow: `analyze` hands in the runs that the evaluator scored and gets an `Analysis`; the `design` node asks
how many runs a plan needs. samples.py estimates, judgement.py compares arms with the baseline, contrasts.py judges what
hypotheses predict, power.py chooses the number of runs. The package knows nothing of planners, databases or servers.
"""

from researcher.judge.judgement import (
    Family,
    Runs,
    adjust_holm,
    compare_sealed,
    contradicts,
    judge,
    share_of_alpha,
    summarize_arm,
)
from researcher.judge.samples import evaluation_noise

__all__ = [
    "Family",
    "Runs",
    "adjust_holm",
    "compare_sealed",
    "contradicts",
    "evaluation_noise",
    "judge",
    "share_of_alpha",
    "summarize_arm",
]
