"""The checks of the record itself: its rows, the charter, plans, decisions, the test split and the budget.

Place in the flow: verify.py calls each of these once. score_checks.py recomputes scores from rewards; nothing here
does.
"""

from __future__ import annotations

from collections.abc import Iterator

from experiments_db import BudgetKind, ExperimentStore, RunStatus, StoredCharter, Study, hash_json
from researcher.phases import FINAL, TEST
from researcher.record.log import charter_from_json, plan_from_json
from researcher.record.runs import cost_of, list_all_trials
from researcher.study.ending import ROWS_CHANGED
from researcher.verification.result import TOLERANCE, RecordCheck, differences


def check_rows(store: ExperimentStore, study: Study) -> Iterator[RecordCheck]:
    """Compare the rows of each table with those at the end of the study, even if it has continued since."""
    if earlier := store.list_events(study.id, kind=ROWS_CHANGED, limit=None):
        yield RecordCheck("rows at an earlier end", len(earlier), tuple(event.message for event in earlier))
    ended = store.find_digest(study.id)
    if ended is None:
        lost = (f"the study is {study.status}, and the digest of its rows is gone",) if study.status.is_end else ()
        yield RecordCheck("rows", len(lost), lost, () if lost else ("they are compared once the study has ended",))
        return
    now = store.compute_digest(study.id)
    differences = ended.compare(now)
    for name, table in now.tables.items():
        if table.rows or name in differences:
            yield RecordCheck(f"rows of {name}", table.rows, (differences[name],) if name in differences else ())


def check_charter(charter: StoredCharter) -> RecordCheck:
    found = hash_json(charter.document)
    wrong = (f"the charter hashes to {found[:12]}, it was frozen as {charter.content_hash[:12]}",)
    return RecordCheck("charter", 1, () if found == charter.content_hash else wrong)


def check_plans(store: ExperimentStore, study_id: str) -> RecordCheck:
    """Check that each arm is the one in the first plan that named it."""
    experiments = {item.name: item for item in store.list_experiments(study_id)}
    mismatches: list[str] = []
    planned: set[str] = set()
    for stored in store.list_plans(study_id):
        for arm in plan_from_json(stored.document).arms:
            found = experiments.get(arm.name)
            if found is None:
                mismatches.append(f"arm {arm.name} of plan {stored.iteration + 1} is not on record")
            elif arm.name not in planned:
                mismatches += differences(dict(found.job), dict(arm.job), f"arm {arm.name}: job")
                mismatches += differences(dict(found.factors), dict(arm.factors), f"arm {arm.name}: factors")
            planned.add(arm.name)
    mismatches += [f"arm {name} is in no plan" for name in experiments if name not in planned]
    return RecordCheck("planned arms", len(planned), tuple(mismatches))


def check_decisions(store: ExperimentStore, study_id: str) -> RecordCheck:
    decisions = store.list_decisions(study_id)
    known = {item.id for item in store.list_findings(study_id=study_id)}
    lost = [
        f"decision {item.iteration + 1} rests on {finding}, which is not on record"
        for item in decisions
        for finding in item.finding_ids
        if finding not in known
    ]
    analysed = {item.iteration for item in store.list_analyses(study_id)}
    blind = [f"decision {item.iteration + 1} has no analysis" for item in decisions if item.iteration not in analysed]
    return RecordCheck("decisions", len(decisions), (*lost, *blind))


def check_test_split(store: ExperimentStore, study_id: str, charter: StoredCharter) -> RecordCheck:
    """Check that the test split was scored only after it was opened, and only for the arms it was opened for."""
    document = charter_from_json(charter.document)
    arms = {item.id: item.name for item in store.list_experiments(study_id)}
    runs = {run.id: run for run in store.list_runs(study_id=study_id)}
    mismatches: list[str] = []
    scores = store.list_evaluations(study_id=study_id, split=document.test_split)
    for item in scores:
        name = arms[runs[item.run_id].experiment_id]
        if item.phase != TEST or charter.test_opened_at is None or item.created_at < charter.test_opened_at:
            mismatches.append(f"{item.run_id} was scored on the {document.test_split} split before it was opened")
        elif name not in (charter.test_opened_for or ""):
            mismatches.append(f"{item.run_id} of {name} was scored, opened was it to {charter.test_opened_for}")
    return RecordCheck("test split", len(scores), tuple(mismatches))


def check_runs(store: ExperimentStore, study_id: str, charter: StoredCharter) -> RecordCheck:
    """Check that finished runs have their scores and that each launched trial was charged once."""
    document = charter_from_json(charter.document)
    runs = store.list_runs(study_id=study_id)
    scored = {item.run_id for item in store.list_evaluations(study_id=study_id, phase=FINAL)}
    mismatches = [
        f"{run.id} is finished and has no score on the {document.search_split} split"
        for run in runs
        if run.status is RunStatus.FINISHED and run.id not in scored
    ]
    trials = list_all_trials(store, study_id)
    begun = [each for each in trials if any(run.status is not RunStatus.PLANNED or run.server_url for run in each.runs)]
    # A trial is charged once it is claimed, just before its launch is on record.
    least, most = (sum(cost_of(each.runs[-1], each.experiment) for each in items) for items in (begun, trials))
    charged = store.sum_budget(study_id)[BudgetKind.RUNS]
    if not least - TOLERANCE <= charged <= most + TOLERANCE:
        mismatches.append(f"{charged:g} runs are charged to the budget, {least:g} were launched")
    return RecordCheck("runs", len(runs), tuple(mismatches))
