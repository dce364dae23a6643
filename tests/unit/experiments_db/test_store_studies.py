import pytest

from experiments_db import (
    Experiment,
    ExperimentStatus,
    FrozenCharter,
    Outcome,
    RecordNotFound,
    StoreConflict,
    Study,
    StudyStatus,
    TestSplitOpened,
    hash_json,
)

CHARTER = {"question": "Which rate is best?", "metric": "accuracy", "splits": {"search": "train"}}


def test_new_study_is_running_and_read_back_as_it_was_written(store) -> None:
    study = store.create_study("Größe 字 🧪", planner="rules", settings={"servers": ["http://a"], "runs": 9})
    assert study.status is StudyStatus.RUNNING
    assert study.settings == {"servers": ["http://a"], "runs": 9}
    assert store.get_study(study.id) == study


def test_studies_are_listed_newest_first_and_their_ids_sort_by_age(store) -> None:
    ids = [store.create_study("t", planner="rules").id for _ in range(20)]
    assert ids == sorted(set(ids))
    assert all(study_id.startswith("st-") and len(study_id) == 16 for study_id in ids)
    assert [study.id for study in store.list_studies(limit=3)] == ids[:-4:-1]


def test_study_that_ends_has_an_end_time_until_it_is_resumed(store, study: Study) -> None:
    stopped = store.set_study_status(study.id, StudyStatus.STOPPED, "asked to")
    assert stopped.status_reason == "asked to"
    assert stopped.finished_at == stopped.updated_at
    resumed = store.set_study_status(study.id, StudyStatus.RUNNING)
    assert (resumed.finished_at, resumed.status_reason) == (None, None)


def test_charter_is_frozen_and_its_hash_ignores_key_order(store, study: Study) -> None:
    assert store.find_charter(study.id) is None
    charter = store.freeze_charter(study.id, CHARTER)
    assert charter.content_hash == hash_json(dict(reversed(CHARTER.items())))
    assert store.freeze_charter(study.id, dict(reversed(CHARTER.items()))) == charter
    with pytest.raises(FrozenCharter):
        store.freeze_charter(study.id, CHARTER | {"metric": "length"})
    assert store.find_charter(study.id) == charter


def test_test_split_opens_once_per_study(store, study: Study) -> None:
    with pytest.raises(RecordNotFound):
        store.open_test_split(study.id, "confirm")
    store.freeze_charter(study.id, CHARTER)
    opened = store.open_test_split(study.id, "confirm")
    assert opened.test_opened_at is not None
    assert store.open_test_split(study.id, "confirm") == opened
    with pytest.raises(TestSplitOpened, match="only once"):
        store.open_test_split(study.id, "another look")


def test_repeated_hypothesis_returns_the_first(store, study: Study) -> None:
    first = store.create_hypothesis(study.id, "h1", "higher is better", rationale="because", iteration=1)
    again = store.create_hypothesis(study.id, "h1", "rephrased after a crash")
    child = store.create_hypothesis(study.id, "h2", "but not too high", parent_id=first.id, iteration=2)
    assert again == first
    assert store.list_hypotheses(study.id) == [first, child]


def test_verdict_on_a_hypothesis_can_be_replaced(store, study: Study) -> None:
    hypothesis = store.create_hypothesis(study.id, "h1", "s")
    assert hypothesis.verdict is None
    store.judge_hypothesis(hypothesis.id, Outcome.UNDECIDED, "too few seeds")
    judged = store.judge_hypothesis(hypothesis.id, Outcome.SUPPORTED, "more seeds")
    assert (judged.verdict, judged.verdict_reason) == (Outcome.SUPPORTED, "more seeds")
    assert store.list_hypotheses(study.id) == [judged]


def test_repeated_experiment_returns_the_first(store, study: Study, experiment: Experiment) -> None:
    assert experiment.status is ExperimentStatus.DRAFT
    assert store.create_experiment(study.id, experiment.name, factors={}, job={}) == experiment
    assert store.find_experiment(study.id, experiment.name) == experiment
    assert store.find_experiment(study.id, "none") is None


def test_large_and_odd_program_code_is_kept_exactly(store, study: Study) -> None:
    code = "# ünïcode 🤖 \r\n\t'quotes\" -- ; DROP TABLE runs;\n" * 40_000
    made = store.create_experiment(study.id, "big", factors={}, job={}, program_code=code)
    found = store.find_experiment(study.id, made.name)
    assert found is not None and found.program_code == code


def test_experiment_is_revised_until_it_has_a_run(store, experiment: Experiment) -> None:
    fixed = store.revise_experiment(
        experiment.id, program_code="x = 1\n", status=ExperimentStatus.READY, note="repaired"
    )
    assert (fixed.program_code, fixed.status, fixed.note) == ("x = 1\n", ExperimentStatus.READY, "repaired")
    assert fixed.job == experiment.job
    store.claim_run(experiment.id, 1, "key")
    with pytest.raises(StoreConflict, match="has runs"):
        store.revise_experiment(experiment.id, program_code="x = 2\n")
    assert store.revise_experiment(experiment.id, note="seen", program_code="x = 1\n").note == "seen"


def test_experiments_are_listed_in_the_order_of_creation(store, study: Study) -> None:
    base = store.create_experiment(study.id, "base", factors={}, job={}, is_baseline=True)
    arm = store.create_experiment(study.id, "arm", factors={}, job={}, parent_id=base.id, iteration=1)
    assert store.list_experiments(study.id) == [base, arm]


def test_settings_of_a_study_are_replaced_as_a_whole(store, study: Study) -> None:
    revised = store.revise_settings(study.id, {"max_runs": 4})
    assert revised.settings == {"max_runs": 4} == store.get_study(study.id).settings
