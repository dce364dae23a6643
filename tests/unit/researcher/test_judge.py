"""The judge's numbers equal scipy's, and the charter's rule decides on every edge."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from researcher.judge import adjust_holm, judge, summarize_arm
from researcher.types import Budget, Charter, DecisionRule, Verdict

SEEDS = (0, 1, 2, 3)
BASELINE = dict(zip(SEEDS, (0.30, 0.34, 0.36, 0.31), strict=True))
BETTER = dict(zip(SEEDS, (0.90, 0.95, 0.93, 0.94), strict=True))
SAME = dict(zip(SEEDS, (0.31, 0.33, 0.37, 0.30), strict=True))


@pytest.fixture
def charter() -> Charter:
    return Charter(
        topic="Which learning rate is best?",
        question="Does the learning rate change accuracy?",
        task="reverse",
        metric="mean_reward",
        direction="maximize",
        baseline="base",
        search_split="validation",
        sealed_split="test",
        eval_episodes=64,
        rule=DecisionRule(),
        budget=Budget(),
        brain="rules",
    )


def judged(charter: Charter, **arms):
    run_ids = {arm: {seed: f"{arm}-{seed}" for seed in scores} for arm, scores in arms.items()}
    base = {arm: dict.fromkeys(scores, 0.3) for arm, scores in arms.items()}
    return judge(charter, arms, base, run_ids, {})


def shifted(scores: dict[int, float], *by: float) -> dict[int, float]:
    return {seed: scores[seed] + delta for seed, delta in zip(SEEDS, by, strict=True)}


def verdict_of(charter: Charter, **arms) -> Verdict:
    return judged(charter, **arms).comparisons[0].verdict


def test_arm_interval_equals_scipys_t_interval():
    summary = summarize_arm("a", BETTER, {}, {seed: f"r{seed}" for seed in SEEDS}, alpha=0.1)
    values = list(BETTER.values())
    low, high = stats.t.interval(0.9, df=3, loc=sum(values) / 4, scale=stats.sem(values))
    assert (summary.ci_low, summary.ci_high) == pytest.approx((low, high), abs=1e-12)
    assert summary.mean == pytest.approx(0.93)
    assert summary.run_ids == ("r0", "r1", "r2", "r3")


def test_comparison_equals_scipys_paired_t_test(charter):
    comparison = judged(charter, base=BASELINE, better=BETTER).comparisons[0]
    expected = stats.ttest_rel(list(BETTER.values()), list(BASELINE.values()))
    interval = expected.confidence_interval(0.95)
    assert comparison.p == pytest.approx(expected.pvalue, rel=1e-9)
    assert (comparison.ci_low, comparison.ci_high) == pytest.approx((interval.low, interval.high), abs=1e-12)
    assert comparison.difference == pytest.approx(0.6025)
    assert comparison.verdict is Verdict.KEEP


def test_comparison_uses_only_seeds_both_arms_have(charter):
    comparison = judged(charter, base=BASELINE, better={**BETTER, 9: 0.1}).comparisons[0]
    assert comparison.seeds == SEEDS
    assert comparison.run_ids == (*(f"better-{s}" for s in SEEDS), *(f"base-{s}" for s in SEEDS))


def test_holm_adjusts_over_all_comparisons_of_the_study(charter):
    slightly = shifted(BASELINE, 0.1, 0.02, 0.07, 0.05)
    alone = judged(charter, base=BASELINE, slightly=slightly).comparisons[0]
    among = judged(charter, base=BASELINE, slightly=slightly, same=SAME, other=SAME).comparisons[0]
    assert alone.p_adjusted == alone.p
    assert among.p == alone.p
    assert among.p_adjusted == pytest.approx(3 * alone.p)
    assert (alone.verdict, among.verdict) == (Verdict.KEEP, Verdict.INCONCLUSIVE)


def test_holm_matches_the_published_step_down():
    assert adjust_holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_holm_leaves_untested_comparisons_out():
    assert adjust_holm([0.01, math.nan]) == pytest.approx([0.01, math.nan], nan_ok=True)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_never_shrinks_a_p_value_and_keeps_their_order(p_values):
    adjusted = adjust_holm(p_values)
    assert all(p <= q <= 1 for p, q in zip(p_values, adjusted, strict=True))
    by_p = [q for _, q in sorted(zip(p_values, adjusted, strict=True))]
    assert by_p == sorted(by_p)


def test_worse_arm_is_rejected(charter):
    assert verdict_of(charter, base=BETTER, worse=BASELINE) is Verdict.REJECT


def test_arm_that_cannot_reach_the_minimal_effect_is_rejected(charter):
    assert verdict_of(charter, base=BASELINE, same=SAME) is Verdict.REJECT


def test_noisy_arm_is_inconclusive(charter):
    noisy = dict(zip(SEEDS, (0.1, 0.9, 0.2, 0.8), strict=True))
    assert verdict_of(charter, base=BASELINE, noisy=noisy) is Verdict.INCONCLUSIVE


def test_significant_but_small_gain_is_not_kept(charter):
    small = shifted(BASELINE, 0.010, 0.011, 0.012, 0.011)
    comparison = judged(charter, base=BASELINE, small=small).comparisons[0]
    assert comparison.p_adjusted < 0.05
    assert comparison.verdict is Verdict.REJECT


def test_gain_of_exactly_the_minimal_effect_is_kept(charter):
    exact = shifted(BASELINE, 0.019, 0.021, 0.020, 0.020)
    assert verdict_of(charter, base=BASELINE, exact=exact) is Verdict.KEEP


def test_minimize_turns_verdicts_and_ranking_around(charter):
    minimize = replace(charter, direction="minimize")
    analysis = judged(minimize, base=BETTER, lower=BASELINE)
    assert analysis.comparisons[0].verdict is Verdict.KEEP
    assert analysis.comparisons[0].difference < 0
    assert analysis.ranking == ("lower", "base")
    assert verdict_of(minimize, base=BASELINE, higher=BETTER) is Verdict.REJECT


def test_fewer_seeds_than_the_rule_asks_are_inconclusive(charter):
    two = {seed: BETTER[seed] for seed in (0, 1)}
    assert verdict_of(charter, base=BASELINE, better=two) is Verdict.INCONCLUSIVE


def test_one_seed_has_a_mean_but_no_interval(charter):
    analysis = judged(charter, base=BASELINE, once={0: 0.9})
    comparison = analysis.comparisons[0]
    assert comparison.difference == pytest.approx(0.6)
    assert all(math.isnan(x) for x in (comparison.ci_low, comparison.ci_high, comparison.p, comparison.p_adjusted))
    assert math.isnan(analysis.arms[1].ci_low)
    assert comparison.verdict is Verdict.INCONCLUSIVE


def test_arm_without_scores_is_reported_and_not_ranked(charter):
    analysis = judge(charter, {"base": BASELINE, "lost": {}}, {}, {}, {"lost": ("NaN loss",)})
    assert math.isnan(analysis.arms[1].mean)
    assert analysis.ranking == ("base",)
    assert analysis.failed == {"lost": ("NaN loss",)}
    assert analysis.comparisons[0].verdict is Verdict.INCONCLUSIVE


def test_study_whose_baseline_failed_is_inconclusive(charter):
    assert verdict_of(charter, better=BETTER) is Verdict.INCONCLUSIVE


def test_equal_gain_in_every_seed_is_as_certain_as_the_metric_is_fine(charter):
    constant = dict.fromkeys(SEEDS, 1.0)
    comparison = judged(charter, base=dict.fromkeys(SEEDS, 0.34375), constant=constant).comparisons[0]
    t = 0.65625 / (1 / 64 / math.sqrt(4))
    assert comparison.p == pytest.approx(2 * stats.t.sf(t, df=3))
    assert comparison.verdict is Verdict.KEEP


def test_one_episode_more_in_every_seed_is_not_kept(charter):
    lucky = dict.fromkeys(SEEDS, 0.5 + 1 / 64)
    comparison = judged(charter, base=dict.fromkeys(SEEDS, 0.5), lucky=lucky).comparisons[0]
    assert comparison.p > 0.05
    assert comparison.verdict is Verdict.INCONCLUSIVE


def test_exact_ties_have_p_one_and_are_rejected_only_by_a_fine_metric(charter):
    coarse = judged(charter, base=BASELINE, tied=BASELINE).comparisons[0]
    fine = judged(replace(charter, eval_episodes=512), base=BASELINE, tied=BASELINE).comparisons[0]
    assert (coarse.difference, coarse.p, coarse.p_adjusted) == (0.0, 1.0, 1.0)
    assert (coarse.verdict, fine.verdict) == (Verdict.INCONCLUSIVE, Verdict.REJECT)


def test_equal_arms_rank_in_the_order_of_the_plan(charter):
    assert judged(charter, base=BASELINE, b=BETTER, a=BETTER).ranking == ("b", "a", "base")


@given(st.permutations(SEEDS))
def test_order_of_seeds_does_not_matter(order):
    shuffled = summarize_arm("a", {s: BETTER[s] for s in order}, {}, {s: str(s) for s in order}, 0.05)
    assert shuffled == summarize_arm("a", BETTER, {}, {s: str(s) for s in SEEDS}, 0.05)


@pytest.mark.parametrize("score", [math.nan, math.inf])
def test_score_that_is_not_finite_is_refused(charter, score):
    with pytest.raises(ValueError, match="seed 0"):
        judged(charter, base={0: score})


@pytest.mark.parametrize("change", [{"direction": "up"}, {"rule": DecisionRule(correction="bonferroni")}])
def test_unknown_rule_is_refused(charter, change):
    with pytest.raises(ValueError, match="must be"):
        judged(replace(charter, **change), base=BASELINE)
