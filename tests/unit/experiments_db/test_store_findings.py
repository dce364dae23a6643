import math

import pytest

from experiments_db import Experiment, ExperimentStore, Finding, InvalidRecord, RecordNotFound, Study, Verdict


def find(store: ExperimentStore, study: Study, experiment: Experiment, **changes: object) -> Finding:
    values: dict[str, object] = {
        "iteration": 1,
        "experiment_id": experiment.id,
        "baseline_id": None,
        "metric": "accuracy",
        "split": "validation",
        "effect": 0.2,
        "ci_low": 0.1,
        "ci_high": 0.3,
        "confidence": 0.95,
        "p_value": 0.01,
        "p_adjusted": 0.02,
        "verdict": Verdict.KEEP,
        "method": "paired t over seeds",
        "run_ids": ["run-1", "run-2"],
        "summary": "better",
    }
    return store.record_finding(study.id, **(values | changes))  # type: ignore[arg-type]


def test_finding_is_read_back_as_it_was_written(store: ExperimentStore, study: Study, experiment: Experiment) -> None:
    finding = find(store, study, experiment, details={"pairs": [0.1, 0.3]})
    assert finding.run_ids == ("run-1", "run-2")
    assert (finding.effect, finding.ci_low, finding.p_adjusted, finding.verdict) == (0.2, 0.1, 0.02, Verdict.KEEP)
    assert store.list_findings(study_id=study.id) == [finding]


def test_same_comparison_is_corrected_in_place(store: ExperimentStore, study: Study, experiment: Experiment) -> None:
    first = find(store, study, experiment)
    corrected = find(store, study, experiment, p_adjusted=0.2, verdict=Verdict.INCONCLUSIVE)
    assert corrected.id == first.id
    assert (corrected.p_adjusted, corrected.verdict) == (0.2, Verdict.INCONCLUSIVE)
    find(store, study, experiment, iteration=2)
    find(store, study, experiment, split="test")
    find(store, study, experiment, baseline_id=experiment.id)
    assert len(store.list_findings(study_id=study.id)) == 4


def test_finding_without_pairs_has_no_numbers(store: ExperimentStore, study: Study, experiment: Experiment) -> None:
    empty = {"effect": None, "ci_low": None, "ci_high": None, "p_value": None, "p_adjusted": None, "run_ids": []}
    finding = find(store, study, experiment, verdict=Verdict.INCONCLUSIVE, **empty)
    assert finding.effect is None and finding.run_ids == ()


@pytest.mark.parametrize("changes", [{"effect": math.nan}, {"ci_high": math.inf}, {"confidence": 95}, {"metric": " "}])
def test_impossible_finding_is_refused(
    store: ExperimentStore, study: Study, experiment: Experiment, changes: dict[str, object]
) -> None:
    with pytest.raises(InvalidRecord):
        find(store, study, experiment, **changes)
    assert store.list_findings() == []


def test_finding_on_an_unknown_record_is_refused(store: ExperimentStore, study: Study, experiment: Experiment) -> None:
    with pytest.raises(RecordNotFound):
        find(store, study, experiment, experiment_id="ex-nowhere")
    with pytest.raises(RecordNotFound):
        find(store, study, experiment, baseline_id="ex-nowhere")


def test_negative_findings_of_all_studies_can_be_asked_for(
    store: ExperimentStore, study: Study, experiment: Experiment
) -> None:
    elsewhere = store.create_study("elsewhere", planner="rules")
    arm = store.create_experiment(elsewhere.id, "arm", factors={}, job={})
    hypothesis = store.create_hypothesis(elsewhere.id, "h", "s")
    find(store, study, experiment)
    one = find(store, study, experiment, verdict=Verdict.WORSE, iteration=2)
    two = find(store, elsewhere, arm, verdict=Verdict.WORSE, hypothesis_id=hypothesis.id)
    assert store.list_findings(verdict=Verdict.WORSE) == [one, two]
    assert store.list_findings(study_id=study.id, iteration=2) == [one]


def test_first_decision_of_an_iteration_stands(store: ExperimentStore, study: Study) -> None:
    second = store.record_decision(study.id, 2, action="stop", reason="budget")
    first = store.record_decision(study.id, 1, action="refine", reason="promising", finding_ids=["fi-1"])
    assert store.record_decision(study.id, 1, action="stop", reason="another mind after a crash") == first
    assert first.finding_ids == ("fi-1",)
    assert store.list_decisions(study.id) == [first, second]


def test_decision_gives_way_to_one_that_is_to_replace_it(store: ExperimentStore, study: Study) -> None:
    store.record_decision(study.id, 1, action="stop", reason="budget", details={"budget_used_up": True})
    second = store.record_decision(study.id, 1, action="refine", reason="more of it", replace=True)
    assert store.list_decisions(study.id) == [second]
    assert (second.action, second.details) == ("refine", {})
