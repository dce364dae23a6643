"""What is new of a study since somebody looked: every write is seen once, and nothing else is read."""

from threading import Thread

from store_samples import record_score

from experiments_db import Experiment, ExperimentStatus, Run, RunStatus, Study, open_store


def revision_of(store, study: Study) -> int:
    return store.list_changes(study.id).revision


def test_reader_gets_all_first_and_then_what_was_written_since(
    store, study: Study, experiment: Experiment, run: Run
) -> None:
    first = store.list_changes(study.id)
    assert (first.experiments, first.plans, first.runs) == ((experiment,), (), (run,))
    assert first.revision == revision_of(store, study) > 0
    nothing = store.list_changes(study.id, after=first.revision)
    assert (nothing.revision, nothing.experiments, nothing.plans, nothing.runs) == (first.revision, (), (), ())

    other = store.claim_run(experiment.id, 2, "key-2")
    ready = store.revise_experiment(experiment.id, status=ExperimentStatus.READY)
    store.record_plan(study.id, 0, {"arms": []})

    second = store.list_changes(study.id, after=first.revision)
    assert (second.experiments, second.runs) == ((ready,), (other,))
    assert [plan.iteration for plan in second.plans] == [0]
    assert store.list_changes(study.id, after=second.revision).runs == ()


def test_run_is_new_again_with_each_move_step_and_score(store, study: Study, run: Run) -> None:
    seen = revision_of(store, study)

    def changed() -> list[str]:
        nonlocal seen
        changes = store.list_changes(study.id, after=seen)
        seen = changes.revision
        return [item.id for item in changes.runs]

    store.update_run(run.id, status=RunStatus.LAUNCHING)
    assert changed() == [run.id]
    store.record_metrics(run.id, {1: {"loss": 0.5}})
    assert changed() == [run.id]
    record_score(store, run)
    assert changed() == [run.id]
    store.append_event(study.id, "note", "nothing of the run has changed", run_id=run.id)
    assert changed() == []


def test_studies_have_revisions_of_their_own(store, study: Study, run: Run) -> None:
    other = store.create_study("another", planner="rules")
    assert revision_of(store, other) == 0
    assert store.list_changes(other.id).runs == ()
    seen = revision_of(store, study)
    store.create_experiment(other.id, "arm", factors={}, job={})
    assert revision_of(store, other) == 1
    assert revision_of(store, study) == seen


def test_no_write_of_other_processes_and_threads_is_missed(
    store, study: Study, experiment: Experiment, location: str
) -> None:
    writers, runs = 4, 8

    def write(number: int) -> None:
        with open_store(location) as own:
            for index in range(runs):
                claimed = own.claim_run(experiment.id, number * runs + index, f"{number}/{index}")
                own.update_run(claimed.id, status=RunStatus.LAUNCHING)

    threads = [Thread(target=write, args=(number,)) for number in range(writers)]
    for thread in threads:
        thread.start()
    seen, latest = 0, dict[str, Run]()
    while True:
        is_last = not any(thread.is_alive() for thread in threads)
        changes = store.list_changes(study.id, after=seen)
        assert changes.revision >= seen
        seen = changes.revision
        latest.update((run.id, run) for run in changes.runs)
        if is_last:
            break
    assert latest == {run.id: run for run in store.list_runs(study_id=study.id)}
    assert len(latest) == writers * runs
    assert {run.status for run in latest.values()} == {RunStatus.LAUNCHING}
