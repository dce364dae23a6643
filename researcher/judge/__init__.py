"""The judge: statistics, fixed before the first run, that turn the scores of a study into verdicts."""

from researcher.judge.gatekeeping import adjust_holm as adjust_holm
from researcher.judge.judgement import Family as Family
from researcher.judge.judgement import compare_on_test as compare_on_test
from researcher.judge.judgement import contradicts as contradicts
from researcher.judge.judgement import judge as judge
from researcher.judge.judgement import summarize_arm as summarize_arm
from researcher.judge.samples import evaluation_noise as evaluation_noise
from researcher.judge.worst_case import Runs as Runs
from researcher.judge.worst_case import worst_score as worst_score
