"""The judge's numbers equal scipy's, and the charter's rule decides on every edge."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from experiments_db import Outcome, Verdict
from researcher.charter import Budget, Charter, DecisionRule
from researcher.judge import Family, adjust_holm, compare_on_test, contradicts, evaluation_noise, judge, summarize_arm
from researcher.judge.samples import Pairs, ScoredRun
from researcher.plan import Contrast, Relation

SEEDS = (0, 1, 2, 3)
BASELINE = dict(zip(SEEDS, (0.30, 0.34, 0.36, 0.31), strict=True))
BETTER = dict(zip(SEEDS, (0.90, 0.95, 0.93, 0.94), strict=True))
SAME = dict(zip(SEEDS, (0.31, 0.33, 0.37, 0.30), strict=True))


@pytest.fixture
def charter() -> Charter:
    return Charter(
        topic="Which learning rate is best?",
        question="Does the learning rate change accuracy?",
        environment_name="reverse",
        metric="mean_reward",
        direction="maximize",
        baseline="base",
        search_split="validation",
        test_split="test",
        eval_episodes=64,
        rule=DecisionRule(shares=()),
        budget=Budget(),
        planner="rules",
        metric_range=(0.0, 1.0),
    )


def runs_of(arm: str, scores: dict[int, float], *, failed: tuple[int, ...] = (), noise: float = 1e-6):
    return {
        seed: ScoredRun(f"{arm}-{seed}", score, noise, 0.3, "not_finite" if seed in failed else "")
        for seed, score in scores.items()
    }


def judged(charter: Charter, *, claim=0, size=0, earlier=(), failed=None, noise=1e-6, **arms):
    runs = {arm: runs_of(arm, scores, failed=(failed or {}).get(arm, ()), noise=noise) for arm, scores in arms.items()}
    return judge(charter, runs, Family(claim, runs, size=size, claim=claim), earlier)


def shifted(scores: dict[int, float], *by: float) -> dict[int, float]:
    return {seed: scores[seed] + delta for seed, delta in zip(SEEDS, by, strict=True)}


def verdict_of(charter: Charter, **arms) -> Verdict:
    return judged(charter, **arms).comparisons[0].verdict


def test_arm_interval_equals_scipys_t_interval(charter):
    summary = summarize_arm("a", runs_of("r", BETTER), replace(charter, rule=DecisionRule(alpha=0.1)))
    values = list(BETTER.values())
    low, high = stats.t.interval(0.9, df=3, loc=sum(values) / 4, scale=stats.sem(values))
    assert (summary.ci_low, summary.ci_high) == pytest.approx((low, high), abs=1e-12)
    assert summary.mean == pytest.approx(0.93)
    assert summary.run_ids == ("r-0", "r-1", "r-2", "r-3")


def test_intervals_stay_inside_the_range_of_the_metric(charter):
    wide = {0: 0.0, 1: 1.0, 2: 1.0}
    analysis = judged(charter, base={0: 0.0, 1: 0.9, 2: 0.0}, wide=wide)
    assert all(0.0 <= end <= 1.0 for arm in analysis.arms for end in (arm.ci_low, arm.ci_high))
    assert analysis.comparisons[0].ci_low >= -1.0 and analysis.comparisons[0].ci_high == 1.0
    unbounded = judged(replace(charter, metric_range=None), base={0: 0.0, 1: 0.9, 2: 0.0}, wide=wide)
    assert unbounded.comparisons[0].ci_high > 1.0


def test_comparison_equals_scipys_welch_test_whatever_the_seeds(charter):
    more = {9: 0.97, 10: 0.80, **BETTER}
    comparison = judged(replace(charter, metric_range=None), base=BASELINE, better=more).comparisons[0]
    expected = stats.ttest_ind(list(more.values()), list(BASELINE.values()), equal_var=False)
    interval = expected.confidence_interval(0.95)
    assert comparison.p == pytest.approx(expected.pvalue, rel=1e-9)
    assert (comparison.ci_low, comparison.ci_high) == pytest.approx((interval.low, interval.high), abs=1e-12)
    assert comparison.seeds == (0, 1, 2, 3, 9, 10)
    assert comparison.verdict is Verdict.KEEP


def test_variance_is_never_below_that_of_evaluation_alone(charter):
    alike, better = dict.fromkeys(SEEDS, 0.5), dict.fromkeys(SEEDS, 0.6)
    noise = 0.25 / 64
    unbounded = replace(charter, metric_range=None)
    comparison = judged(unbounded, base=alike, better=better, noise=noise).comparisons[0]
    assert comparison.p == pytest.approx(2 * stats.t.sf(0.1 / math.sqrt(2 * noise / 4), df=6))


def test_noise_of_a_score_at_the_end_of_the_range_is_not_zero():
    assert evaluation_noise(1.0, 0.0, 200, (0.0, 1.0)) == pytest.approx(201 / 202 * (1 / 202) / 200)
    assert evaluation_noise(3.0, 0.0, 200, None) == pytest.approx(1 / 200**2)
    assert evaluation_noise(0.5, 0.03, 200, (0.0, 1.0)) == pytest.approx(0.03**2)


def test_arm_that_looks_steady_because_it_is_near_the_end_of_the_range_is_less_certain(charter):
    base = dict(enumerate((0.90, 0.92, 0.89, 0.91, 0.88, 0.90)))
    steady = {seed: score + 0.07 for seed, score in base.items()}
    near_end = judged(charter, base=base, arm=steady).comparisons[0]
    in_the_middle = judged(
        charter, base={seed: score - 0.43 for seed, score in base.items()}, arm={s: v - 0.43 for s, v in steady.items()}
    ).comparisons[0]
    assert near_end.difference == pytest.approx(in_the_middle.difference)
    assert near_end.p > 20 * in_the_middle.p
    low = judged(
        replace(charter, direction="minimize"),
        base={seed: 1 - score for seed, score in base.items()},
        arm={seed: 1 - score for seed, score in steady.items()},
    ).comparisons[0]
    assert low.p == pytest.approx(near_end.p)


def test_runs_of_one_seed_that_go_against_each_other_are_compared_within_seeds(charter):
    base = dict(enumerate((0.50, 0.60, 0.40, 0.55, 0.45, 0.62)))
    mirror = {seed: 1.15 - score for seed, score in base.items()}
    comparison = judged(charter, base=base, mirror=mirror).comparisons[0]
    expected = stats.ttest_rel(list(mirror.values()), list(base.values()))
    unpaired = stats.ttest_ind(list(mirror.values()), list(base.values()), equal_var=False)
    assert comparison.correlation == pytest.approx(-1.0)
    assert comparison.p == pytest.approx(expected.pvalue, rel=1e-6)
    assert comparison.p > unpaired.pvalue


def test_holm_adjusts_over_the_comparisons_of_the_plan(charter):
    slightly = {0: 0.42, 1: 0.37, 2: 0.42, 3: 0.36}
    alone = judged(charter, base=BASELINE, slightly=slightly).comparisons[0]
    among = judged(charter, base=BASELINE, slightly=slightly, same=SAME, other=SAME).comparisons[0]
    assert alone.p_adjusted == alone.p
    assert among.p == alone.p
    assert among.p_adjusted == pytest.approx(3 * alone.p)
    assert (alone.verdict, among.verdict) == (Verdict.KEEP, Verdict.INCONCLUSIVE)


def test_finished_comparison_does_not_change_as_arms_are_added(charter):
    first = judged(charter, base=BASELINE, better=BETTER)
    more = {f"arm{number}": SAME for number in range(6)}
    runs = {arm: runs_of(arm, scores) for arm, scores in {"base": BASELINE, "better": BETTER, **more}.items()}
    own = {arm: by_seed for arm, by_seed in runs.items() if arm != "better"}
    later = judge(charter, runs, Family(1, own, size=6), first.comparisons)
    assert repr(later.comparisons[0]) == repr(first.comparisons[0])
    assert [item.iteration for item in later.comparisons] == [0] + 6 * [1]


def test_repeated_arms_are_corrected_for_those_that_are_not_repeated(charter):
    slightly = {0: 0.42, 1: 0.37, 2: 0.42, 3: 0.36}
    comparison = judged(charter, size=4, base=BASELINE, slightly=slightly).comparisons[0]
    assert comparison.p_adjusted == pytest.approx(4 * comparison.p)


def test_each_plan_has_its_share_of_alpha_and_none_is_left_after_the_last(charter):
    shared = replace(charter, rule=DecisionRule(shares=(0.5, 0.25)))
    found = [judged(shared, claim=plan, base=BASELINE, better=BETTER).comparisons[0] for plan in range(3)]
    assert [item.p_adjusted / item.p for item in found[:2]] == pytest.approx([2.0, 4.0])
    assert (found[2].p_adjusted, found[2].verdict) == (1.0, Verdict.INCONCLUSIVE)
    assert "spent all of alpha" in found[2].note
    with pytest.raises(ValueError, match="add up to 1"):
        judged(replace(charter, rule=DecisionRule(shares=(0.7, 0.7))), base=BASELINE)


def test_holm_matches_the_published_step_down():
    assert adjust_holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_comparison_without_a_test_still_counts_in_the_family():
    assert adjust_holm([0.01, math.nan]) == pytest.approx([0.02, math.nan], nan_ok=True)
    assert adjust_holm([0.01, 0.02], size=4) == pytest.approx([0.04, 0.06])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_never_shrinks_a_p_value_and_keeps_their_order(p_values):
    adjusted = adjust_holm(p_values)
    assert all(p <= q <= 1 for p, q in zip(p_values, adjusted, strict=True))
    by_p = [q for _, q in sorted(zip(p_values, adjusted, strict=True))]
    assert by_p == sorted(by_p)


def test_worse_arm_is_called_worse(charter):
    assert verdict_of(charter, base=BETTER, worse=BASELINE) is Verdict.WORSE


def test_arm_that_cannot_reach_the_minimal_effect_is_no_better(charter):
    calm = dict(zip(SEEDS, (0.330, 0.331, 0.329, 0.330), strict=True))
    assert verdict_of(charter, base=calm, same=shifted(calm, 0.001, -0.001, 0.0, 0.0)) is Verdict.NO_BETTER
    assert verdict_of(charter, base=BASELINE, same=SAME) is Verdict.INCONCLUSIVE


def test_noisy_arm_is_inconclusive(charter):
    noisy = dict(zip(SEEDS, (0.1, 0.9, 0.2, 0.8), strict=True))
    assert verdict_of(charter, base=BASELINE, noisy=noisy) is Verdict.INCONCLUSIVE


def test_significant_but_small_gain_is_not_kept(charter):
    calm = dict(zip(SEEDS, (0.330, 0.331, 0.329, 0.330), strict=True))
    comparison = judged(charter, base=calm, small=shifted(calm, 0.010, 0.011, 0.012, 0.011)).comparisons[0]
    assert comparison.p_adjusted < 0.05
    assert comparison.verdict is Verdict.NO_BETTER


def test_gain_of_exactly_the_minimal_effect_is_kept(charter):
    calm = dict(zip(SEEDS, (0.330, 0.331, 0.329, 0.330), strict=True))
    exact = shifted(calm, 0.019, 0.021, 0.020, 0.020)
    assert verdict_of(charter, base=calm, exact=exact) is Verdict.KEEP


def test_minimize_turns_verdicts_and_ranking_around(charter):
    minimize = replace(charter, direction="minimize")
    analysis = judged(minimize, base=BETTER, lower=BASELINE)
    assert analysis.comparisons[0].verdict is Verdict.KEEP
    assert analysis.comparisons[0].difference < 0
    assert analysis.ranking == ("lower", "base")
    assert verdict_of(minimize, base=BASELINE, higher=BETTER) is Verdict.WORSE


def test_fewer_seeds_than_the_rule_asks_are_inconclusive(charter):
    two = {seed: BETTER[seed] for seed in (0, 1)}
    assert verdict_of(charter, base=BASELINE, better=two) is Verdict.INCONCLUSIVE


def test_one_run_per_arm_is_judged_by_evaluation_noise_alone_and_never_kept(charter):
    analysis = judged(charter, noise=0.01, base={0: 0.3}, once={0: 0.9})
    comparison = analysis.comparisons[0]
    half = stats.norm.ppf(0.975) * math.sqrt(0.02)
    assert (comparison.ci_low, comparison.ci_high) == pytest.approx((0.6 - half, 0.6 + half))
    assert math.isnan(comparison.p) and math.isnan(comparison.p_adjusted)
    assert (comparison.verdict, comparison.basis) == (Verdict.INCONCLUSIVE, "evaluation")
    assert "evaluation noise alone" in comparison.note
    assert math.isnan(analysis.arms[1].ci_low)


def test_arm_without_scores_is_reported_and_not_ranked(charter):
    runs = {"base": runs_of("base", BASELINE), "lost": {}}
    analysis = judge(charter, runs, Family(0, runs, size=1), failed={"lost": ("no server",)})
    assert math.isnan(analysis.arms[1].mean)
    assert analysis.ranking == ("base",)
    assert analysis.failed == {"lost": ("no server",)}
    assert (analysis.comparisons[0].verdict, analysis.comparisons[0].basis) == (Verdict.INCONCLUSIVE, "none")


def test_study_whose_baseline_failed_is_inconclusive(charter):
    assert verdict_of(charter, better=BETTER) is Verdict.INCONCLUSIVE


def test_arm_whose_runs_failed_is_not_plainly_better_than_one_whose_did_not(charter):
    many = dict(enumerate((0.90, 0.91, 0.92, 0.60, 0.90, 0.91)))
    base = dict(enumerate((0.30, 0.34, 0.36, 0.31, 0.33, 0.35)))
    comparison = judged(charter, failed={"wild": (3,)}, base=base, wild=many).comparisons[0]
    assert comparison.p_adjusted < 0.05
    assert (comparison.verdict, comparison.failures, comparison.baseline_failures) == (Verdict.INCONCLUSIVE, 1, 0)
    assert "1 of 6 runs failed (not_finite), 0 of 6 of base; better where it trained (+0.576)" in comparison.note
    both = judged(charter, failed={"wild": (3,), "base": (0,)}, base=base, wild=many).comparisons[0]
    assert both.verdict is Verdict.KEEP


def test_low_run_speaks_against_an_arm_only_if_it_reaches_the_baselines_runs(charter):
    base = dict(enumerate((0.30, 0.34, 0.36, 0.31, 0.33, 0.35)))
    for low, verdict in ((0.60, Verdict.KEEP), (0.37, Verdict.KEEP), (0.36, Verdict.INCONCLUSIVE)):
        arm = dict(enumerate((0.90, 0.91, 0.92, low, 0.90, 0.91)))
        assert verdict_of(charter, base=base, wild=arm) is verdict, low
        assert verdict_of(charter, base=arm, wild=base) is (
            Verdict.WORSE if verdict is Verdict.KEEP else Verdict.INCONCLUSIVE
        )


NINE = dict(enumerate((0.30, 0.34, 0.36, 0.31, 0.33, 0.35, 0.32, 0.34, 0.33)))
MUCH_BETTER = {seed: score + 0.5 for seed, score in NINE.items()}
BY_A_TENTH = {seed: score + 0.1 for seed, score in NINE.items()}


def judged_with(charter: Charter, base, arm, *, missing=None, disqualified=None, contrasts=None):
    runs = {"base": base, "arm": arm}
    family = Family(0, runs, size=1, contrasts=contrasts or {}, missing={"arm": missing or {}})
    return judge(charter, runs, family, disqualified=disqualified)


@pytest.mark.parametrize(
    ("gain", "kept"), [(BY_A_TENTH, Verdict.INCONCLUSIVE), ({s: v + 0.6 for s, v in NINE.items()}, Verdict.KEEP)]
)
def test_arm_without_one_seed_is_kept_only_if_it_would_be_with_the_worst_score_there(charter, gain, kept):
    seen = {seed: score for seed, score in gain.items() if seed != 4}
    whole = judged_with(charter, runs_of("base", NINE), runs_of("arm", seen))
    holed = judged_with(charter, runs_of("base", NINE), runs_of("arm", seen), missing={4: "the server was lost"})
    assert whole.comparisons[0].verdict is Verdict.KEEP
    assert holed.comparisons[0].verdict is kept
    assert holed.comparisons[0].missing == {4: "the server was lost"}
    assert "1 of 9 seeds have no score (seed 4: the server was lost)" in holed.comparisons[0].note
    assert holed.comparisons[0].difference == whole.comparisons[0].difference


def test_worst_score_of_a_metric_without_a_range_is_the_worst_of_the_study(charter):
    unbounded = replace(charter, metric_range=None)
    base, arm = runs_of("base", NINE), runs_of("arm", {s: v for s, v in MUCH_BETTER.items() if s})
    assert judged_with(unbounded, base, arm, missing={0: "lost"}).comparisons[0].verdict is Verdict.KEEP
    slightly = runs_of("arm", {s: v for s, v in BY_A_TENTH.items() if s})
    costs = judged_with(unbounded, base, slightly, missing=dict.fromkeys((0, *range(9, 20)), "lost"))
    assert costs.comparisons[0].verdict is Verdict.INCONCLUSIVE


def test_seeds_that_the_baseline_lacks_are_named_and_change_no_verdict(charter):
    runs = {"base": runs_of("base", {s: v for s, v in NINE.items() if s}), "arm": runs_of("arm", BY_A_TENTH)}
    (comparison,) = judge(charter, runs, Family(0, runs, size=1, missing={"base": {0: "lost"}})).comparisons
    assert (comparison.verdict, comparison.baseline_missing) == (Verdict.KEEP, {0: "lost"})


def test_run_that_was_trained_again_counts_as_failed_where_that_decides(charter):
    def again(scores: dict[int, float], *seeds: int):
        runs = with_base(runs_of("arm", scores), 0.1, 4e-4)
        return {s: replace(run, retries=("broke",)) if s in seeds else run for s, run in runs.items()}

    base = runs_of("base", NINE)
    few, once, often = (
        judged_with(charter, base, runs).comparisons[0]
        for runs in (again(BY_A_TENTH, 2), again(MUCH_BETTER, 2), again(MUCH_BETTER, 2, 3, 4, 5, 6))
    )
    assert [item.verdict for item in (few, once, often)] == [Verdict.INCONCLUSIVE, Verdict.KEEP, Verdict.INCONCLUSIVE]
    assert few.retries == {2: "broke"}
    assert "1 of 9 runs were trained again (seed 2: broke); not kept with as many" in few.note


def test_run_far_below_the_others_leaves_a_gain_undecided_and_one_far_above_a_loss(charter):
    low = {**MUCH_BETTER, 3: 0.31}
    comparison = judged(charter, base=NINE, arm=low).comparisons[0]
    assert (comparison.verdict, comparison.p_adjusted < 0.05) == (Verdict.INCONCLUSIVE, True)
    assert "seed 3 (0.310) lies far from its others" in comparison.note
    lucky_baseline = {**{seed: 0.7 - score for seed, score in NINE.items()}, 3: 0.95}
    assert verdict_of(charter, base=lucky_baseline, arm={s: v + 0.35 for s, v in NINE.items()}) is Verdict.INCONCLUSIVE
    assert verdict_of(charter, base=MUCH_BETTER, arm={**NINE, 3: 0.85}) is Verdict.INCONCLUSIVE
    assert verdict_of(charter, base=NINE, arm={**MUCH_BETTER, 3: 0.99}) is Verdict.KEEP


def test_kept_arm_says_what_share_of_its_runs_may_fail_unseen(charter):
    comparison = judged(charter, base=NINE, arm=MUCH_BETTER).comparisons[0]
    assert comparison.unseen_failures == pytest.approx(1 - 0.05 ** (1 / 9))
    assert (
        "in the median pair of runs: none of 9 runs failed or collapsed" in comparison.note
        and "28 %" in comparison.note
    )
    both = judged(charter, failed={"arm": (3,), "base": (0,)}, base=NINE, arm=MUCH_BETTER).comparisons[0]
    assert both.unseen_failures == pytest.approx(stats.beta.ppf(0.95, 2, 8))


def test_disqualified_arm_is_neither_ranked_nor_tested_nor_kept_and_still_counts_in_the_family(charter):
    slightly = {0: 0.42, 1: 0.37, 2: 0.42, 3: 0.36}
    runs = {name: runs_of(name, scores) for name, scores in
            {"base": BASELINE, "cheat": BETTER, "arm": slightly}.items()}  # fmt: skip
    contrasts = {"h0.0": Contrast(Relation.BETTER, ("cheat",), ("base",))}
    out = {"cheat": "its replies are Python's"}
    analysis = judge(charter, runs, Family(0, runs, size=2, contrasts=contrasts), disqualified=out)
    cheat, arm = analysis.comparisons
    assert analysis.ranking == ("arm", "base")
    assert (cheat.verdict, cheat.note) == (Verdict.INCONCLUSIVE, "disqualified: its replies are Python's")
    assert math.isnan(cheat.p) and math.isnan(cheat.p_adjusted)
    assert arm.p_adjusted == pytest.approx(2 * arm.p)
    assert analysis.contrasts[0].outcome is Outcome.UNDECIDED
    kept = judged(charter, base=BASELINE, cheat=BETTER).comparisons
    later = judge(charter, runs, Family(1, {name: runs[name] for name in ("base", "arm")}, size=1), kept, {}, out)
    assert [item.verdict for item in later.comparisons if item.arm == "cheat"] == [Verdict.INCONCLUSIVE]


def with_base(runs, base: float, noise: float):
    return {seed: replace(run, base=base, base_noise=noise) for seed, run in runs.items()}


def test_gain_is_divided_into_agent_and_training(charter):
    base = with_base(runs_of("base", NINE), 0.3, 4e-4)
    trained = judged_with(charter, base, with_base(runs_of("arm", MUCH_BETTER), 0.3, 4e-4)).comparisons[0]
    assert (trained.agent_gain.value, trained.agent_gain.p) == (0.0, 1.0)
    assert trained.training_gain.value == pytest.approx(0.5)
    assert trained.training_gain.ci_low == pytest.approx(trained.ci_low)
    agent = judged_with(charter, base, with_base(runs_of("arm", MUCH_BETTER), 0.8, 4e-4)).comparisons[0]
    assert agent.verdict is Verdict.KEEP
    assert (agent.agent_gain.value, agent.training_gain.value) == pytest.approx((0.5, 0.0))
    assert agent.agent_gain.p < 0.001 and agent.training_gain.p > 0.5
    assert "better trained is not shown" in agent.note and "better trained" not in trained.note


def test_weights_of_another_agent_are_compared_with_the_agent_of_the_baseline(charter):
    base = with_base(runs_of("base", NINE), 0.3, 4e-4)
    arm = with_base(runs_of("arm", MUCH_BETTER), 0.3, 4e-4)
    plain = {seed: replace(run, with_plain=replace(base[seed], run_id=run.run_id)) for seed, run in arm.items()}
    found = judged_with(charter, base, plain).comparisons[0]
    assert found.verdict is Verdict.KEEP and found.weights_gain.value == pytest.approx(0.0)
    assert found.weights_gain.p > 0.5 and "with the agent of base its weights gain" in found.note
    assert math.isnan(judged_with(charter, base, arm).comparisons[0].weights_gain.value)
    failed = {**plain, 0: replace(arm[0], score=0.3, failure="diverged")}
    lower = judged_with(charter, base, failed).comparisons[0].weights_gain
    assert lower.value == pytest.approx((0.3 - NINE[0]) / len(NINE))


def test_copies_of_one_base_score_are_one_measurement(charter):
    noise = 4e-4
    base, arm = with_base(runs_of("base", NINE), 0.30, noise), with_base(runs_of("arm", MUCH_BETTER), 0.34, noise)
    part = judged_with(charter, base, arm).comparisons[0].agent_gain
    assert part.p == pytest.approx(2 * stats.norm.sf(0.04 / math.sqrt(2 * noise)))
    assert part.ci_high - part.ci_low == pytest.approx(2 * stats.norm.ppf(0.975) * math.sqrt(2 * noise))
    unknown = judged_with(charter, {s: replace(run, base=None) for s, run in base.items()}, arm).comparisons[0]
    assert math.isnan(unknown.agent_gain.value) and math.isnan(unknown.training_gain.value)


def test_half_width_of_a_mean_is_taken_before_the_interval_is_cut(charter):
    summary = summarize_arm("a", runs_of("r", {0: 0.8, 1: 1.0, 2: 0.95}), charter)
    low, high = stats.t.interval(0.95, df=2, loc=summary.mean, scale=stats.sem([0.8, 1.0, 0.95]))
    assert summary.half_width == pytest.approx((high - low) / 2)
    assert summary.ci_high == 1.0 < high


def test_the_test_split_is_judged_by_its_own_interval(charter):
    kept = {"base": runs_of("base", BASELINE), "better": runs_of("better", BETTER)}
    tested = compare_on_test(charter, "better", kept)
    assert tested.verdict is Verdict.KEEP and not contradicts(charter, tested)
    assert contradicts(charter, compare_on_test(charter, "better", {**kept, "better": runs_of("better", SAME)}))
    assert contradicts(replace(charter, direction="minimize"), tested)
    assert not contradicts(charter, compare_on_test(charter, "better", {"better": kept["better"]}))


def test_equal_arms_rank_in_the_order_of_the_plan(charter):
    assert judged(charter, base=BASELINE, b=BETTER, a=BETTER).ranking == ("b", "a", "base")


@given(st.permutations(SEEDS))
def test_order_of_seeds_does_not_matter(order):
    by_order = {seed: BETTER[seed] for seed in order}
    rule = Charter("t", "q", "reverse", "m", "maximize", "b", "v", "t", 64, DecisionRule(), Budget(), "rules")
    assert summarize_arm("a", runs_of("a", by_order), rule) == summarize_arm("a", runs_of("a", BETTER), rule)


@pytest.mark.parametrize("score", [math.nan, math.inf])
def test_score_that_is_not_finite_is_refused(charter, score):
    with pytest.raises(ValueError, match="seed 0"):
        judged(charter, base={0: score})


@pytest.mark.parametrize(
    "change",
    [{"direction": "up"}, {"rule": DecisionRule(correction="bonferroni")}],
)
def test_unknown_rule_is_refused(charter, change):
    with pytest.raises(ValueError, match="must be"):
        judged(replace(charter, **change), base=BASELINE)


def test_arm_whose_runs_win_no_more_than_half_of_the_pairs_is_not_kept_though_its_mean_is_higher(charter):
    base = dict(enumerate((0.496, 0.498, 0.500, 0.502, 0.504, 0.497, 0.499, 0.501, 0.503, 0.505, 0.495, 0.500)))
    lucky = {seed: score + (0.12 if seed > 7 else 0.0005) for seed, score in base.items()}
    comparison = judged(charter, base=base, arm=lucky).comparisons[0]
    assert stats.ttest_ind(list(lucky.values()), list(base.values()), equal_var=False).pvalue < 0.05
    assert comparison.p == pytest.approx(
        stats.brunnermunzel(list(lucky.values()), list(base.values()), distribution="t").pvalue
    )
    assert comparison.verdict is Verdict.INCONCLUSIVE and "in the median pair of runs" in comparison.note
    unlucky = {seed: 1 - score for seed, score in lucky.items()}
    mirrored = judged(charter, base={seed: 1 - score for seed, score in base.items()}, arm=unlucky).comparisons[0]
    assert mirrored.p == pytest.approx(comparison.p) and mirrored.verdict is not Verdict.WORSE


def test_p_value_of_pairs_counts_ties_half_and_moves_with_the_bound():
    pairs = Pairs((0.5, 0.6, 0.7, 0.6), (0.5, 0.5, 0.6, 0.4))
    assert 2 * pairs.p_above() == pytest.approx(stats.brunnermunzel(pairs.first, pairs.second).pvalue)
    assert pairs.p_above(0.3) > 0.5 and pairs.p_above(-1.0) == 0.0 and pairs.p_above(1.0) == 1.0
