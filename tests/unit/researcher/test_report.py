"""A report says what the database says: every number is recomputed here by plain SQL, every link leads somewhere."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from report_contradictions import Page

from experiments_db import (
    BudgetKind,
    ExperimentStatus,
    ExperimentStore,
    Outcome,
    RunStatus,
    Severity,
    Verdict,
    open_store,
)
from researcher.charter import Budget, Charter, DecisionRule, JudgedBy
from researcher.claims import Claim, ClaimKind
from researcher.errors import StudyNotFound
from researcher.judge import Family, judge
from researcher.judge.samples import ScoredRun
from researcher.record.log import StudyLog, to_json
from researcher.report.numbers.gather import gather
from researcher.report.render import without_paths
from researcher.report.write import ReportPaths, build_report

SCORES = {
    "lr=0.001": {0: 0.52, 1: 0.575, 2: 0.535},
    "lr=0.003": {0: 0.905, 1: 0.93, 2: 0.945},
    "lr=0.0003": {0: 0.41, 1: 0.44, 2: 0.425},
}
BASELINE = "lr=0.001"
HOSTILE = "<script>alert('x')</script> <!-- / --> <a id='x'></a> | **bold** [link](http://evil.example) $x$ `code`"
PROGRAM = "def reward(task, transcript, grade):\n    return grade.score\n"
PROGRAMS = {BASELINE: PROGRAM, "lr=0.003": PROGRAM.replace("grade.score", f"2 * grade.score  # {HOSTILE}")}
OPINION = f"It never fails, and would reach 0.99 with more steps. {HOSTILE}"
CLAIMS = (
    Claim(ClaimKind.MEAN, arm="lr=0.003", number=0.927),
    Claim(ClaimKind.BETTER, arm="lr=0.0003", other=BASELINE, number=0.383),
    Claim(ClaimKind.OPINION, text=OPINION),
)
REASON = f"All arms are compared. The last one won with 0.876543. {HOSTILE}"

CHARTER = Charter(
    topic=f"Which learning rate is best? {HOSTILE}",
    question="How does lr change what is learned on reverse?",
    environment_name="reverse",
    metric="mean reward of held-out episodes",
    direction="maximize",
    baseline=BASELINE,
    search_split="validation",
    test_split="test",
    eval_episodes=200,
    rule=DecisionRule(),
    budget=Budget(max_runs=20),
    planner="llm:some-model",
    assumptions=("lr: the topic gives no values",),
)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("report") / "research.db"


@pytest.fixture(scope="module")
def store(database: Path) -> Iterator[ExperimentStore]:
    with open_store(database) as opened:
        yield opened


@pytest.fixture(scope="module")
def study_id(store: ExperimentStore) -> str:
    """A study with three arms of three seeds, a failed run, a rejected arm and a test score."""
    study = store.create_study(CHARTER.topic, planner=CHARTER.planner).id
    store.freeze_charter(study, json.loads(json.dumps(asdict(CHARTER))))
    hypothesis = store.create_hypothesis(study, "h0", f"lr matters {HOSTILE}", rationale="0.003 wins")
    run_ids: dict[str, dict[int, str]] = {}
    for arm, scores in SCORES.items():
        job = {"project_name": "research", "lr": float(arm.partition("=")[2]), "total_steps": 30, "batch_size": 16}
        experiment = store.create_experiment(
            study, arm, factors={"lr": job["lr"]}, job=job, program_code=PROGRAMS.get(arm, PROGRAMS[BASELINE]),
            hypothesis_id=hypothesis.id, is_baseline=arm == BASELINE,
        )  # fmt: skip
        store.revise_experiment(experiment.id, status=ExperimentStatus.READY)
        if arm == "lr=0.003":
            fail_run(store, experiment.id)
        run_ids[arm] = {seed: finish_run(store, experiment.id, seed, score) for seed, score in scores.items()}
    rejected = store.create_experiment(study, "rejected", factors={"lr": 1}, job={"lr": 1.0}, note="placeholder")
    store.revise_experiment(rejected.id, status=ExperimentStatus.INVALID, note=f"rejected by check: {HOSTILE}")
    record_findings(store, study, run_ids)
    store.judge_hypothesis(hypothesis.id, Outcome.SUPPORTED, "lr=0.003: keep")
    store.record_decision(
        study, 0, action="stop", reason=REASON, details={"claims": [to_json(claim) for claim in CLAIMS]}
    )
    store.open_test_split(study, "score lr=0.003 and lr=0.001")
    for arm, lift in (("lr=0.003", -0.01), (BASELINE, 0.02)):
        for seed, run_id in run_ids[arm].items():
            evaluate(store, run_id, "test", "test", SCORES[arm][seed] + lift)
    store.charge_budget(study, BudgetKind.RUNS, 10, "runs")
    store.append_event(study, "run.diagnosed", f"collapsed {HOSTILE}", severity=Severity.WARNING)
    store.record_llm_call(
        study, node="plan", model="m", prompt="p", response="r", input_tokens=7, output_tokens=5, cost_usd=0.0,
        latency_s=0.1,
    )  # fmt: skip
    return study


def evaluate(store: ExperimentStore, run_id: str, phase: str, split: str, mean: float) -> None:
    store.record_evaluation(
        run_id, phase=phase, split=split, metric=CHARTER.metric, weight_version=30, episodes=200,
        successes=round(200 * mean), mean=mean, stderr=0.01, evaluator_hash="e" * 64,
    )  # fmt: skip


def finish_run(store: ExperimentStore, experiment_id: str, seed: int, score: float) -> str:
    attempt = 1 + len(store.list_runs(experiment_id=experiment_id)) if seed == 0 else 1
    run = store.claim_run(experiment_id, seed, f"{experiment_id}/{seed}/{attempt}", attempt=attempt, job={"seed": seed})
    store.update_run(run.id, status=RunStatus.LAUNCHING, server_url="http://127.0.0.1:10086")
    store.update_run(run.id, status=RunStatus.RUNNING, base_weight_version=0, log_path=f"runs/{run.id}/client.log")
    store.record_metrics(
        run.id, {step: {"critic/score/mean": 2 * score, "batch/success_rate": score * step / 5} for step in range(1, 6)}
    )
    store.update_run(run.id, status=RunStatus.EVALUATING)
    evaluate(store, run.id, "base", "validation", 0.31 + seed / 100)
    evaluate(store, run.id, "final", "validation", score)
    store.update_run(run.id, status=RunStatus.FINISHED, final_weight_version=30, exit_reason="all 30 steps done")
    return run.id


def fail_run(store: ExperimentStore, experiment_id: str) -> None:
    run = store.claim_run(experiment_id, 0, f"{experiment_id}/0/1", attempt=1)
    store.update_run(run.id, status=RunStatus.LAUNCHING)
    store.update_run(run.id, status=RunStatus.FAILED, exit_reason=f"the engine broke {HOSTILE}")


def record_findings(store: ExperimentStore, study: str, run_ids: dict[str, dict[int, str]]) -> None:
    runs = {
        arm: {seed: ScoredRun(run_ids[arm][seed], score, 0.01**2) for seed, score in scores.items()}
        for arm, scores in SCORES.items()
    }
    analysis = judge(CHARTER, runs, Family(0, runs, size=2))
    StudyLog(store, study).write_analysis(0, analysis, "analyzed")
    experiments = {item.name: item.id for item in store.list_experiments(study)}
    for item in analysis.comparisons:
        store.record_finding(
            study, iteration=0, experiment_id=experiments[item.arm], baseline_id=experiments[item.baseline],
            metric=CHARTER.metric, split="validation", effect=item.difference, ci_low=item.ci_low,
            ci_high=item.ci_high, confidence=0.95, p_value=item.p, p_adjusted=item.p_adjusted,
            verdict=Verdict(item.verdict.value), method="paired t", run_ids=item.run_ids, summary="s",
        )  # fmt: skip


@pytest.fixture(scope="module")
def report(store: ExperimentStore, study_id: str, database: Path) -> ReportPaths:
    return build_report(store, study_id, database.parent / "report")


@pytest.fixture(scope="module")
def page(report) -> Page:
    return Page(report.html.read_text())


def sql(database: Path, query: str, *values: object) -> list[tuple]:
    with sqlite3.connect(database) as connection:
        rows = connection.execute(query, values).fetchall()
    connection.close()
    return rows


def scores_by_sql(database: Path, arm: str, phase: str) -> list[float]:
    rows = sql(
        database,
        "select v.mean from evaluations v join runs r on r.id = v.run_id join experiments x on x.id = r.experiment_id"
        " where x.name = ? and v.phase = ? and r.status = 'finished' and r.study_id = (select min(id) from studies)"
        " order by r.seed",
        arm, phase,
    )  # fmt: skip
    return [row[0] for row in rows]


def interval(values: list[float]) -> str:
    from scipy import stats

    mean = sum(values) / len(values)
    low, high = stats.t.interval(0.95, df=len(values) - 1, loc=mean, scale=stats.sem(values))
    return f"{low:.3f} to {high:.3f}"


def test_means_and_intervals_equal_those_of_plain_sql(database, page):
    for arm in SCORES:
        final, base = scores_by_sql(database, arm, "final"), scores_by_sql(database, arm, "base")
        expected = [f"{sum(base) / 3:.3f}", f"{sum(final) / 3:.3f}", interval(final)]
        [row] = [row for row in page.rows if len(row) == 8 and row[1] == arm]
        assert row[4:7] == expected


def test_arms_are_ranked_by_their_mean(page):
    order = [row[1] for row in page.rows if len(row) == 8 and row[0].isdigit()]
    assert order == ["lr=0.003", "lr=0.001", "lr=0.0003"]


def test_comparisons_equal_the_findings_and_welchs_test(database, page):
    from scipy import stats

    baseline = scores_by_sql(database, BASELINE, "final")
    for arm in ("lr=0.003", "lr=0.0003"):
        expected = stats.ttest_ind(scores_by_sql(database, arm, "final"), baseline, equal_var=False)
        ci = expected.confidence_interval(0.95)
        effect, p_adjusted = sql(
            database,
            "select f.effect, f.p_adjusted from findings f join experiments x on x.id = f.experiment_id"
            " where x.name = ?",
            arm,
        )[0]
        [row] = [row for row in page.rows if len(row) == 12 and row[0] == arm and "to" in row[5]]
        own = scores_by_sql(database, arm, "final")
        assert row[2:4] == [f"{sum(each) / 3:.3f}" for each in (own, baseline)]
        assert row[4] == f"{effect:+.3f}"
        assert row[5] == f"{ci.low:+.3f} to {ci.high:+.3f}"
        assert row[8] == (f"{expected.pvalue:.3f}" if expected.pvalue >= 0.001 else "<0.001")
        assert row[9] == (f"{p_adjusted:.3f}" if p_adjusted >= 0.001 else "<0.001")


def test_test_scores_equal_sql(database, page):
    for arm in ("lr=0.003", BASELINE):
        values = scores_by_sql(database, arm, "test")
        [row] = [row for row in page.rows if len(row) == 4 and row[0] == arm]
        assert row[2:] == [f"{sum(values) / 3:.3f}", interval(values)]


def test_the_answer_begins_with_what_is_best_below_the_question_as_it_was_asked(page):
    best = page.text.index("lr=0.003 has the best mean of 3 arms, 0.927 over 3 runs")
    assert page.text.index("Which learning rate is best?") < page.text.index(CHARTER.question) < best
    assert "It is better than lr=0.001 in the median pair of runs: +0.383 (95 % interval" in page.text


def test_every_run_has_its_row_with_provenance(database, page, study_id):
    runs = sql(database, "select id, seed, attempt, status, server_url from runs where study_id = ?", study_id)
    rows = {row[0]: row for row in page.rows if len(row) == 13}
    assert len(runs) == 10
    for run_id, seed, attempt, status, server in runs:
        row = rows[run_id]
        assert row[2:5] == [str(seed), str(attempt), status]
        assert row[11] == (server or "–")


def test_every_link_leads_to_an_anchor(page, report):
    assert {link.removeprefix("#") for link in page.links} <= set(page.ids)
    assert len(set(page.ids)) == len(page.ids)
    markdown = report.markdown.read_text()
    anchors = set(re.findall(r'<a id="([^"]+)"></a>', markdown))
    targets = set(re.findall(r"\]\(#([^)]+)\)", markdown))
    assert targets and targets <= anchors


def test_seeds_link_to_the_runs_that_count(database, page, store, study_id):
    counted = {run.id for run in store.list_runs(study_id=study_id, statuses=[RunStatus.FINISHED])}
    assert counted <= {link.removeprefix("#") for link in page.links}


def test_what_models_and_people_wrote_is_only_text_on_the_page_and_in_any_reader_of_markdown(page, report):
    rendered = Page(MarkdownIt("commonmark").enable("table").render(report.markdown.read_text()))
    for each in (page, rendered):
        assert "script" not in each.tags and "x" not in each.ids
        assert all(link.startswith("#") for link in each.links)
        assert HOSTILE in each.text
    assert [len(row) for row in page.rows] == [len(row) for row in rendered.rows]


def test_programs_are_shown_as_changes_of_the_baselines(page):
    changes = [f"+    return 2 * grade.score  # {HOSTILE}", "-    return grade.score"]
    assert all(line in page.text for line in changes) and page.text.count("does differently") == 1


def test_the_page_is_one_file_that_loads_nothing(page, report):
    html = report.html.read_text()
    assert "default-src 'none'" in html
    assert all(source.startswith("data:image/png;base64,") for source in page.sources)
    assert "prefers-color-scheme: dark" in html
    assert all(link.startswith("#") for link in page.links)
    assert "link" not in page.tags


def test_arms_that_train_on_other_rewards_are_drawn_by_what_they_solve_alone(report):
    assert "success-curves.csv" in {path.name for path in report.markdown.parent.glob("figures/*.csv")}
    assert "reward-curves.csv" not in {path.name for path in report.markdown.parent.glob("figures/*.csv")}


def test_figures_are_written_and_the_same_every_time(report, store, study_id, tmp_path):
    assert [path.name for path in report.figures] == [
        "final-scores.png",
        "differences.png",
        "success-curves.png",
    ]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in report.figures)
    again = build_report(store, study_id, tmp_path / "again")
    for one, two in zip(report.figures, again.figures, strict=True):
        assert one.read_bytes() == two.read_bytes()
    assert report.html.read_text() == again.html.read_text()
    markdown = report.markdown.read_text()
    assert all(f"](figures/{path.name})" in markdown for path in report.figures)


def test_a_false_claim_is_said_to_be_false_with_the_record_beside_it(page):
    assert "lr=0.003 has a mean score of 0.927 after training, over 3 runs." in page.text
    assert "False: lr=0.0003 is better than lr=0.001 by 0.383 after training." in page.text
    assert "On record: lr=0.0003 less lr=0.001 is -0.118." in page.text


def test_what_a_planner_wrote_is_printed_as_it_wrote_it_and_marked(page):
    for words in (OPINION, REASON):
        before, _, _ = page.text.partition(words)
        assert before != page.text and before.rstrip().endswith("unchecked:")


def test_what_failed_is_in_the_report(page):
    assert "the engine broke" in page.text and "collapsed" in page.text
    assert "was never run: rejected by check" in page.text


def test_budget_and_calls_are_reported(page):
    assert ["runs", "10", "20"] in page.rows
    assert "1 language model calls (0 failed), 7 tokens in, 5 out." in page.text


def test_a_study_without_runs_has_a_report_that_says_so(store, tmp_path):
    study = store.create_study("t", planner="rules").id
    store.freeze_charter(study, json.loads(json.dumps(asdict(CHARTER))))
    store.create_experiment(study, BASELINE, factors={"lr": 1}, job={"lr": 1.0}, is_baseline=True)
    paths = build_report(store, study, tmp_path / "empty")
    page = Page(paths.html.read_text())
    assert "No answer: the baseline lr=0.001 has no finished run" in page.text
    assert paths.figures == ()
    assert {link.removeprefix("#") for link in page.links} <= set(page.ids)


def test_one_seed_has_no_interval(store, tmp_path):
    study = store.create_study("t", planner="rules").id
    store.freeze_charter(study, json.loads(json.dumps(asdict(CHARTER))))
    experiment = store.create_experiment(study, BASELINE, factors={"lr": 1}, job={"lr": 1.0}, is_baseline=True)
    finish_run(store, experiment.id, 0, 0.5)
    page = Page(build_report(store, study, tmp_path / "one").html.read_text())
    [row] = [row for row in page.rows if len(row) == 8 and row[1] == BASELINE]
    assert row[5:7] == ["0.500", "n/a"]
    assert "nan" not in page.text.lower()


def test_a_study_that_was_never_framed_has_no_report(store, tmp_path):
    study = store.create_study("t", planner="rules").id
    with pytest.raises(StudyNotFound, match="no charter"):
        build_report(store, study, tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_the_answer_and_its_figure_stand_before_all_other_parts(report):
    html, image = report.html.read_text(), 'alt="Held-out score of each arm"'
    assert html.count(image) == 1
    assert html.index(" has the best mean of 3 arms") < html.index(image) < html.index("<h2>")


def test_no_path_of_a_log_is_in_the_report(page):
    assert "client.log" not in page.text
    assert without_paths("died: /home/me/runs/a/train.log says so, see http://127.0.0.1:1/v1/x") == (
        "died: train.log says so, see http://127.0.0.1:1/v1/x"
    )


@pytest.mark.parametrize(
    ("judged_by", "names", "main"),
    [
        (JudgedBy.FINAL, ["search-tree", "final-scores", "held-out-curves"], "final-scores"),
        (JudgedBy.STEPS_TO, ["final-scores", "held-out-curves"], "held-out-curves"),
        (JudgedBy.AREA, ["final-scores"], "final-scores"),
        (JudgedBy.FINAL, ["search-tree"], "search-tree"),
        (JudgedBy.FINAL, [], ""),
    ],
)
def test_the_main_figure_is_the_one_that_shows_the_answer(store, study_id, judged_by, names, main):
    from researcher.report.drawing.figures import find_main

    facts = gather(store, study_id)
    asked = replace(facts, charter=replace(facts.charter, judged_by=judged_by))
    assert find_main(asked, names) == main
