"""What is read of a study, and when it is read again: which runs count, which arm is best, and its interval."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from explorer_samples import HOSTILE, add_study, create_database, record_calls

from experiments_db import StoredCharter, open_store
from ui.contents import FINAL, PLAIN_AGENT, StudyContents, best_arm, read_contents


@pytest.fixture(scope="module")
def contents(tmp_path_factory: pytest.TempPathFactory) -> StudyContents:
    path = create_database(tmp_path_factory.mktemp("contents"), add_study)
    with open_store(path, read_only=True) as store:
        return read_contents(store, store.list_studies()[0].id)


def test_arms_are_ranked_best_first_with_their_intervals(contents: StudyContents) -> None:
    ranked = contents.ranking
    means = [item.mean for item in ranked]
    assert means == sorted(means, key=lambda mean: -(mean or 0))
    assert [len(item.seeds) for item in ranked] == [3, 3, 3]
    assert all(item.ci_low is not None and item.ci_high is not None for item in ranked)
    assert ranked[0].base_mean == pytest.approx(0.314) and ranked[0].test_mean is not None


def test_the_score_with_the_plain_agent_is_a_column_of_its_own(contents: StudyContents) -> None:
    finals = [item for item in contents.evaluations if item.phase == FINAL]
    plain = tuple(replace(item, phase=PLAIN_AGENT, mean=item.mean / 2) for item in finals)
    ranked = replace(contents, evaluations=(*contents.evaluations, *plain)).ranking
    assert [item.mean_with_plain for item in ranked] == pytest.approx([(item.mean or 0) / 2 for item in ranked])
    assert all(item.mean_with_plain is None for item in contents.ranking)


def test_the_least_is_best_where_the_charter_minimizes(contents: StudyContents) -> None:
    assert contents.charter is not None
    charter: StoredCharter = replace(contents.charter, document={**contents.document, "direction": "minimize"})
    ranked = replace(contents, charter=charter).ranking
    assert ranked == tuple(reversed(contents.ranking))


def test_an_interval_over_other_runs_is_not_shown(contents: StudyContents) -> None:
    fewer = replace(contents, runs=contents.runs[:-1])
    by_arm = {item.arm.name: item for item in fewer.ranking}
    changed = contents.arms_by_id[contents.runs[-1].experiment_id].name
    assert by_arm[changed].ci_low is None
    assert all(item.ci_low is not None for name, item in by_arm.items() if name != changed)


def test_without_scores_no_arm_is_best(contents: StudyContents) -> None:
    assert best_arm(replace(contents, evaluations=())) is None
    assert [item.arm for item in replace(contents, evaluations=()).ranking] == list(contents.experiments)


def test_arm_that_was_disqualified_is_ranked_last_and_never_the_best(contents: StudyContents) -> None:
    first, second, third = (item.arm for item in contents.ranking)
    (decision,) = contents.decisions
    ruled_out = {"disqualified": {first.name: "Python", second.name: "Python"}}
    out = replace(contents, decisions=(replace(decision, details=ruled_out),))

    best = best_arm(out)

    assert best is not None and best.arm == third
    assert [item.arm for item in out.ranking] == [third, first, second]
    verdicts = {finding.experiment_id: out.verdict_of(finding) for finding in out.last_findings}
    assert verdicts == {second.id: "disqualified", third.id: "worse"}


def test_arm_that_the_last_analysis_puts_out_is_never_the_best(contents: StudyContents) -> None:
    first, second, _ = (item.arm for item in contents.ranking)
    judged = {"comparisons": [{"arm": first.name, "note": "disqualified: it votes in evaluation alone"}]}
    out = replace(contents, analysis={**contents.analysis, **judged})
    best = best_arm(out)
    assert best is not None and best.arm == second
    assert out.disqualified == {first.name: "it votes in evaluation alone"}


def test_location_is_the_address_then_the_variables_then_the_default() -> None:
    from ui import queries

    both = {"SWARM_RESEARCH_DB": "given.db", "SWARM_HOME": "/home"}
    assert queries.database_location("asked.db", both) == "asked.db"
    assert queries.database_location(None, both) == "given.db"
    assert queries.database_location("", {"SWARM_HOME": "/home"}) == "/home/research.db"
    assert Path(queries.database_location(None, {})) == Path("runs/research.db")


def test_arms_judged_by_another_number_are_ranked_by_the_numbers_of_the_analysis(contents: StudyContents) -> None:
    assert contents.charter is not None
    charter: StoredCharter = replace(contents.charter, document={**contents.document, "judged_by": "spread"})
    by_spread = replace(contents, charter=charter)
    numbers = {arm.name: 0.1 * place for place, arm in enumerate(contents.experiments, 1)}
    run_of = {
        arm.name: next(run.id for run in contents.runs if run.experiment_id == arm.id) for arm in contents.experiments
    }
    arms = [
        {"arm": name, "scores": {"0": number}, "base_scores": {}, "run_ids": [run_of[name]]}
        for name, number in reversed(numbers.items())
    ]
    ranked = replace(by_spread, analysis={"arms": arms}).ranking

    assert [(item.arm.name, item.mean) for item in ranked] == list(numbers.items())
    assert by_spread.metric == by_spread.findings[-1].metric


def test_what_was_read_is_kept_until_it_is_written_and_no_page_changes_that_of_another(tmp_path: Path) -> None:
    from ui import queries

    location = str(create_database(tmp_path, add_study))
    with open_store(location) as writer:
        study_id = writer.list_studies()[0].id
        record_calls(writer, study_id)
        before = queries.load_study(location, study_id)
        frame = queries.llm_calls(location, study_id)
        frame["node"] = "changed"
        queries.store(location).list_studies(limit=None).clear()
        assert len(queries.store(location).list_studies(limit=None)) == 1
        assert set(queries.llm_calls(location, study_id)["node"]) == {"plan", HOSTILE}

        writer.create_study("Another topic", planner="rules")
        assert len(queries.store(location).list_studies(limit=None)) == 2
        assert queries.load_study(location, study_id) is before

        run = writer.claim_run(before.experiments[0].id, 77, "one-more")
        writer.create_experiment(study_id, "one more arm", factors={}, job={})
        after = queries.load_study(location, study_id)
        assert [item.id for item in after.runs] == [*(item.id for item in before.runs), run.id]
        assert [arm.name for arm in after.experiments] == [*(arm.name for arm in before.experiments), "one more arm"]


def test_of_many_seeds_a_ranking_draws_a_part_with_the_extremes() -> None:
    from ui import elements

    many = tuple((seed, seed * 37 % 501 / 500) for seed in range(501))
    drawn = elements._thinned(many)
    scores = [score for _, score in drawn]
    assert len(drawn) == elements.MOST_DOTS and (min(scores), max(scores)) == (0.0, 1.0)
    assert elements._thinned(many[:7]) == many[:7]
