from store_samples import record_finding

from experiments_db import Experiment, Study, Verdict


def test_finding_is_read_back_as_it_was_written(store, study: Study, experiment: Experiment) -> None:
    finding = record_finding(store, study, experiment, details={"pairs": [0.1, 0.3]})
    assert finding.run_ids == ("run-1", "run-2")
    assert (finding.effect, finding.ci_low, finding.p_adjusted, finding.verdict) == (0.2, 0.1, 0.02, Verdict.KEEP)
    assert store.list_findings(study_id=study.id) == [finding]


def test_same_comparison_is_corrected_in_place(store, study: Study, experiment: Experiment) -> None:
    first = record_finding(store, study, experiment)
    corrected = record_finding(store, study, experiment, p_adjusted=0.2, verdict=Verdict.INCONCLUSIVE)
    assert corrected.id == first.id
    assert (corrected.p_adjusted, corrected.verdict) == (0.2, Verdict.INCONCLUSIVE)
    record_finding(store, study, experiment, iteration=2)
    record_finding(store, study, experiment, split="test")
    record_finding(store, study, experiment, baseline_id=experiment.id)
    assert len(store.list_findings(study_id=study.id)) == 4


def test_finding_without_pairs_has_no_numbers(store, study: Study, experiment: Experiment) -> None:
    empty = {"effect": None, "ci_low": None, "ci_high": None, "p_value": None, "p_adjusted": None, "run_ids": []}
    finding = record_finding(store, study, experiment, verdict=Verdict.INCONCLUSIVE, **empty)
    assert finding.effect is None and finding.run_ids == ()


def test_negative_findings_of_all_studies_can_be_asked_for(store, study: Study, experiment: Experiment) -> None:
    elsewhere = store.create_study("elsewhere", planner="rules")
    arm = store.create_experiment(elsewhere.id, "arm", factors={}, job={})
    hypothesis = store.create_hypothesis(elsewhere.id, "h", "s")
    record_finding(store, study, experiment)
    one = record_finding(store, study, experiment, verdict=Verdict.WORSE, iteration=2)
    two = record_finding(store, elsewhere, arm, verdict=Verdict.WORSE, hypothesis_id=hypothesis.id)
    assert store.list_findings(verdict=Verdict.WORSE) == [one, two]
    assert store.list_findings(study_id=study.id, iteration=2) == [one]


def test_first_decision_of_an_iteration_stands(store, study: Study) -> None:
    second = store.record_decision(study.id, 2, action="stop", reason="budget")
    first = store.record_decision(study.id, 1, action="refine", reason="promising", finding_ids=["fi-1"])
    assert store.record_decision(study.id, 1, action="stop", reason="another mind after a crash") == first
    assert first.finding_ids == ("fi-1",)
    assert store.list_decisions(study.id) == [first, second]


def test_decision_gives_way_to_one_that_is_to_replace_it(store, study: Study) -> None:
    store.record_decision(study.id, 1, action="stop", reason="budget", details={"budget_used_up": True})
    second = store.record_decision(study.id, 1, action="refine", reason="more of it", replace=True)
    assert store.list_decisions(study.id) == [second]
    assert (second.action, second.details) == ("refine", {})
