from experiments_db import (
    BudgetKind,
    LLMCall,
    LLMUsage,
    Run,
    Severity,
    Study,
)


def call(store, study: Study, **changes: object) -> LLMCall:
    values: dict[str, object] = {
        "node": "plan",
        "model": "some-model",
        "prompt": "Plan it.",
        "response": "Done.",
        "input_tokens": 10,
        "output_tokens": 5,
        "cost_usd": 0.25,
        "latency_s": 1.5,
    }
    return store.record_llm_call(study.id, **(values | changes))  # type: ignore[arg-type]


def test_llm_calls_are_kept_with_failures_and_summed(store, study: Study) -> None:
    assert store.sum_llm_usage(study.id) == LLMUsage(0, 0, 0, 0, 0.0, 0.0)
    failed = call(store, study, response=None, error="timeout", output_tokens=0)
    answered = call(store, study, attempt=2)
    check = call(store, study, node="check", prompt="x" * 1_000_000)
    assert store.list_llm_calls(study.id) == [failed, answered, check]
    assert store.list_llm_calls(study.id, limit=1, offset=2) == [check]
    assert store.sum_llm_usage(study.id) == LLMUsage(3, 1, 30, 10, 0.75, 4.5)


def test_events_can_be_followed_from_the_last_one_seen(store, study: Study, run: Run) -> None:
    first = store.append_event(study.id, "study.framed", "Größe & <script>", payload={"n": [1, 2]})
    assert store.list_events(study.id, after_id=first.id) == []
    second = store.append_event(study.id, "run.failed", "died", severity=Severity.ERROR, run_id=run.id)
    third = store.append_event(study.id, "run.slow", "slow", severity=Severity.WARNING, run_id=run.id)
    assert store.list_events(study.id) == [first, second, third]
    assert store.list_events(study.id, after_id=first.id, limit=1) == [second]
    assert store.list_events(study.id, newest_first=True, limit=1) == [third]
    assert store.list_events(study.id, min_severity=Severity.WARNING) == [second, third]
    assert store.list_events(study.id, min_severity=Severity.ERROR) == [second]
    assert store.list_events(study.id, run_id=run.id) == [second, third]


def test_repeated_charge_counts_once(store, study: Study, run: Run) -> None:
    store.charge_budget(study.id, BudgetKind.WORKING_S, 10.0, run.id, run_id=run.id)
    store.charge_budget(study.id, BudgetKind.WORKING_S, 25.0, run.id, run_id=run.id)
    store.charge_budget(study.id, BudgetKind.WORKING_S, 5.0, "planning")
    store.charge_budget(study.id, BudgetKind.RUNS, 1, run.id)
    spent = store.sum_budget(study.id)
    assert spent[BudgetKind.WORKING_S] == 30.0
    assert spent[BudgetKind.RUNS] == 1.0
    assert spent[BudgetKind.COST_USD] == 0.0


def test_artifact_is_known_by_its_path(store, study: Study, run: Run) -> None:
    first = store.record_artifact(study.id, "report", "report.md", sha256="0" * 64, size_bytes=10)
    again = store.record_artifact(study.id, "report", "report.md", sha256="1" * 64, size_bytes=3_000_000_000)
    log = store.record_artifact(study.id, "log", "a.log", sha256="2" * 64, size_bytes=1, run_id=run.id)
    assert again.id == first.id
    assert (again.sha256, again.size_bytes) == ("1" * 64, 3_000_000_000)
    assert store.list_artifacts(study.id) == [log, again]
    assert store.list_artifacts(study.id, kind="report") == [again]
    assert store.list_artifacts(study.id, run_id=run.id) == [log]


def test_nul_in_a_text_is_stored_as_the_symbol_for_it(store, study: Study) -> None:
    stored = store.append_event(study.id, "note", "a program wrote \x00 bytes", payload={"line": "\x00"})
    assert stored.message == "a program wrote \u2400 bytes"
    assert store.list_events(study.id) == [stored]
    assert stored.payload == {"line": "\x00"}
