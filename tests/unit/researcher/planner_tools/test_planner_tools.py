"""What a planner sees through its tools, on a finished study whose scores are drawn by chance."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
from simulated_study import BASELINE, SimulatedStudy, Simulation

from experiments_db import (
    Author,
    EpisodeSample,
    EpisodeSummary,
    NoteKind,
    Operator,
    Verdict,
    open_store,
)
from prompts import load
from researcher.plan import ManipulationCheck
from researcher.planner.tools.base import MAX_RESULT_CHARS, Toolbox, ToolRefused
from researcher.planner.tools.build import build_toolbox
from researcher.planner.tools.models import BUNDLED
from researcher.planner.tools.sources import ToolSources
from researcher.record.log import to_json
from swarm.environments import load_environment
from swarm.tasks import Split

LONG_PROGRAM = "def agent(task, model, session):\n" + "".join(
    f"    note_{number} = {number}\n" for number in range(1_500)
)
ALWAYS = ("environment", "model", "program_api", "code", "diff", "metrics", "episodes", "requests", "notebook",
          "findings", "query", "tables")  # fmt: skip


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedStudy]:
    simulated = Simulation(seeds=2, failed=()).carry_out(tmp_path_factory.mktemp("simulated"))
    store = simulated.store
    job = {**simulated.arm(BASELINE).job, "lr": 0.003}
    store.create_experiment(
        simulated.study_id, "long", factors={}, job=job, program_code=LONG_PROGRAM, author=Author.LANGUAGE_MODEL
    )
    run = simulated.runs("lr=0.003")[0]
    for number in range(20):
        split = "test" if number % 2 else "validation"
        solved = number < 10
        summary = EpisodeSummary(
            run.id, f"ep-{number}", "eval", split, 5, f"task-{number}", float(solved), solved, None, 5, time.time()
        )
        messages = (
            {"role": "user", "content": f"{split} question {number}"},
            {"role": "assistant", "content": "x" * 9_000},
        )
        store.record_episodes(run.id, [EpisodeSample(summary, messages, ())])
    store.write_note(simulated.study_id, "a", NoteKind.LESSON, "short\nprompts win", iteration=0, author="llm")
    store.write_note(simulated.study_id, "b", NoteKind.FAILED, "it diverged", iteration=1, author="study")
    yield simulated
    store.close()


@pytest.fixture(scope="module")
def toolbox(study: SimulatedStudy) -> Toolbox:
    return build_toolbox(ToolSources(study.store, study.study_id, load_environment))


def test_a_tool_without_a_source_does_not_exist(study: SimulatedStudy, tmp_path: Path) -> None:
    sources = ToolSources(study.store, study.study_id, load_environment)
    assert tuple(build_toolbox(sources).tools) == ALWAYS
    whole = build_toolbox(
        ToolSources(
            study.store, study.study_id, load_environment, notes=tmp_path,
            try_program=lambda code, attempts, check: f"{code} {attempts} {check}", propose=lambda *_: {"lr": "0.01"},
        )
    )  # fmt: skip
    assert tuple(whole.tools) == (*ALWAYS, "notes", "try_program", "propose")
    for function in whole.as_functions():
        assert function["function"]["parameters"]["additionalProperties"] is False


def test_before_the_charter_the_tools_know_what_a_person_named(tmp_path: Path) -> None:
    with open_store(tmp_path / "research.db") as store:
        for settings, environment, model in (
            ({}, "no environment is chosen yet", "nano"),
            ({"family": "copy", "train_model": "micro"}, "copy: ", "micro"),
        ):
            study_id = store.create_study("t", planner="llm", settings=settings).id
            toolbox = build_toolbox(ToolSources(store, study_id, load_environment))
            try:
                assert toolbox.call("environment", {}).startswith(environment)
            except ToolRefused as refused:
                assert str(refused).startswith(environment)
            assert f"model: {model}" in toolbox.call("model", {})
            assert "none of 0 findings" in toolbox.call("findings", {})
            with pytest.raises(ToolRefused, match="there are: none yet"):
                toolbox.call("code", {"arm": "a"})


def test_metrics_are_listed_and_read_as_numbers_per_arm_and_seed(toolbox: Toolbox) -> None:
    assert "6 runs; metrics: actor/entropy, batch/success_rate, critic/score/mean" in toolbox.call("metrics", {})
    read = toolbox.call("metrics", {"arms": [BASELINE], "names": ["actor/entropy", "critic/score/mean"]})
    assert read.count(f"actor/entropy, {BASELINE} seed ") == 2
    assert "first 1 last 1 min 1 max 1 mean 1 | 1: 1 2: 1 5: 1" in read
    with pytest.raises(ToolRefused, match="no metric loss; there are: actor/entropy"):
        toolbox.call("metrics", {"names": ["loss"]})
    with pytest.raises(ToolRefused, match=f"there is no arm 'lr=7'; there are: .*{BASELINE}"):
        toolbox.call("metrics", {"arms": ["lr=7"]})


def test_a_long_curve_comes_in_few_points(study: SimulatedStudy, toolbox: Toolbox) -> None:
    run = study.runs("lr=0.0003")[0]
    study.store.record_metrics(run.id, {step: {"long": float(step)} for step in range(1, 1_001)})
    read = toolbox.call("metrics", {"arms": ["lr=0.0003"], "names": ["long"], "points": 40})
    _, _, points = read.partition("|")
    assert len(re.findall(r"\d+: ", points)) <= 40
    assert "min 1 max 1000" in read and len(read) < 1_500


def test_episodes_are_chosen_by_outcome_capped_and_never_of_the_test_split(toolbox: Toolbox) -> None:
    for which in ("failed", "solved", "random"):
        shown = toolbox.call("episodes", {"arm": "lr=0.003", "which": which, "count": 8})
        assert "validation question" in shown and "test question" not in shown and "of test" not in shown
        assert len(shown) < MAX_RESULT_CHARS and "characters left out" in shown
    assert ", solved" not in toolbox.call("episodes", {"arm": "lr=0.003"})
    assert "of 0 attempts" in toolbox.call("episodes", {"arm": BASELINE})
    assert "was not tried" in toolbox.call("episodes", {"arm": BASELINE, "which": "trial"})
    with pytest.raises(ToolRefused, match="less than or equal to 8"):
        toolbox.call("episodes", {"arm": BASELINE, "count": 9})


def test_a_program_of_any_length_is_read_whole_in_pages(toolbox: Toolbox) -> None:
    read, offset, pages = "", 0, 0
    while True:
        shown = toolbox.call("code", {"arm": "long", "offset": offset})
        assert len(shown) <= MAX_RESULT_CHARS and "characters are left out" not in shown
        body = re.search(r"BEGIN DATA \w+\n(.*)\nEND DATA", shown, re.DOTALL)
        assert body is not None
        read, pages = read + body[1], pages + 1
        if (following := re.search(r"the rest with offset (\d+)", shown)) is None:
            break
        offset = int(following[1])
    assert read == LONG_PROGRAM and pages > 2
    assert "lr: 0.003" in toolbox.call("code", {"arm": "long"})


def test_a_diff_has_settings_and_code(toolbox: Toolbox) -> None:
    shown = toolbox.call("diff", {"arm": "long", "against": BASELINE})
    assert "lr: 0.001 -> 0.003" in shown and "+    note_0 = 0" in shown and "the rest with offset" in shown
    assert "settings that differ:\nnone" in toolbox.call("diff", {"arm": BASELINE, "against": BASELINE})
    assert "the same to the last byte" in toolbox.call("diff", {"arm": BASELINE, "against": BASELINE})


def test_the_environment_shows_train_tasks_with_solutions(toolbox: Toolbox) -> None:
    shown = toolbox.call("environment", {"tasks": 2})
    environment = load_environment("reverse")
    held_out = [
        item.task.main_query
        for split in (Split.VALIDATION, Split.TEST)
        for item in islice(environment.tasks(split), 200)
    ]
    assert shown.count("--- train task") == 2 and "a reply that the grader finds perfect: " in shown
    assert re.search(r"train at least 2000|train \d+, validation \d+, test \d+", shown)
    assert not [question for question in held_out if question in shown]
    assert toolbox.call("environment", {"tasks": 1, "skip": 1}).split("--- train task")[1].split()[0] in shown


def test_the_facts_about_bundled_models_are_those_of_the_documentation() -> None:
    page = " ".join(Path(__file__).parents[4].joinpath("docs", "models.md").read_text(encoding="utf-8").split())
    for known in BUNDLED.values():
        assert known.partition("\n")[0].removeprefix("trained on: ") in page and "It knows no facts" in known
    abilities = re.search(r"`micro` (follows questions about [^.]*)\.", page)
    assert abilities is not None and abilities[1] in BUNDLED["micro"] and "They know no facts" in page


def test_the_model_is_described_with_its_scores_before_training(toolbox: Toolbox) -> None:
    shown = toolbox.call("model", {})
    assert "model: nano" in shown and "0.4759 million" in shown
    assert f"held-out score before training: {BASELINE} 0.3 (± " in shown


def test_a_model_of_ones_own_is_described_from_its_files(study: SimulatedStudy, tmp_path: Path) -> None:
    from researcher.planner.tools.models import describe_model
    from swarm.model_path import BUNDLED_DIRECTORIES

    described = "\n".join(describe_model(str(BUNDLED_DIRECTORIES["micro"])))
    assert "parameters: 1.01" in described or "parameters: 1.00" in described
    assert "num_hidden_layers 4" in described
    assert "its files cannot be read here" in "\n".join(describe_model(str(tmp_path / "nothing")))


def test_the_contract_of_a_program_has_whole_examples(toolbox: Toolbox) -> None:
    shown = toolbox.call("program_api", {})
    assert load("program").strip() in shown
    assert all(f"# {name}" in shown for name in ("turns.py", "review.py", "curriculum.py"))
    assert "characters are left out" not in shown


def test_the_notebook_is_read_by_kind(toolbox: Toolbox) -> None:
    assert "lesson (llm): short prompts win" in toolbox.call("notebook", {})
    assert "it diverged" not in toolbox.call("notebook", {"kind": "lesson"})
    assert toolbox.call("notebook", {"kind": "objection"}) == "no such entry yet"


def test_findings_of_all_studies_are_found_retracted_ones_marked(study: SimulatedStudy, tmp_path: Path) -> None:
    with open_store(tmp_path / "research.db") as store:
        ids = [store.create_study("t", planner="rules").id for _ in range(2)]
        for study_id in ids:
            store.freeze_charter(study_id, to_json(study.deps.charter()))
        arm = store.create_experiment(ids[0], "terse", job={}, factors={}, program_code="print('it')")
        common = {"iteration": 0, "experiment_id": arm.id, "baseline_id": None, "ci_low": 0.1, "ci_high": 0.3,
                  "confidence": 0.95, "p_value": 0.001, "p_adjusted": 0.002, "method": "t", "run_ids": [],
                  "environment_name": "reverse"}  # fmt: skip
        kept = store.record_finding(
            ids[0], metric="m", split="validation", effect=0.2, verdict=Verdict.KEEP, summary="terse wins",
            recipe={"model": "nano", "factors": {"prompt": "terse"}}, **common,
        )  # fmt: skip
        gone = store.record_finding(
            ids[0], metric="n", split="validation", effect=0.9, verdict=Verdict.KEEP, summary="lr wins", **common
        )
        store.retract_finding(gone.id, "it did not replicate")
        store.record_finding(
            ids[0], metric="m", split="test", effect=0.77, verdict=Verdict.KEEP, summary="sealed", **common
        )
        toolbox = build_toolbox(ToolSources(store, ids[1], load_environment))
        shown = toolbox.call("findings", {"words": ["reverse"]})
        assert "keep, effect 0.2 [0.1, 0.3]" in shown and "RETRACTED: it did not replicate" in shown
        assert "sealed" not in shown and "0.77" not in shown
        assert "lr wins" not in toolbox.call("findings", {"words": ["nano", "prompt"]})
        assert "none of 2 findings fits" in toolbox.call("findings", {"words": ["sort"]})
        assert "print('it')" in toolbox.call("findings", {"code_of": kept.id})


def test_a_listed_finding_says_what_was_compared_and_of_one_its_whole_recipe_is_shown(
    study: SimulatedStudy, toolbox: Toolbox
) -> None:
    (finding,) = [
        each
        for each in study.store.list_findings(study_id=study.study_id)
        if each.experiment_id == study.arm("lr=0.003").id and each.split == "validation"
    ]
    listed = toolbox.call("findings", {"words": ["lr=0.003"]})
    whole = toolbox.call("findings", {"code_of": finding.id})

    assert '"arm": {"name": "lr=0.003", "factors": {"lr": 0.003}' in listed and "characters left out" in listed
    assert all(f"{name}: " in whole for name in finding.recipe) and "return 2 * grade.score" in whole


def test_a_draft_and_a_proposal_are_asked_for_with_checked_arguments(study: SimulatedStudy) -> None:
    asked: list[tuple[str, int, ManipulationCheck | None]] = []

    def try_program(code: str, attempts: int, check: ManipulationCheck | None) -> str:
        asked.append((code, attempts, check))
        return "tried"

    sources = ToolSources(
        study.store, study.study_id, load_environment, try_program=try_program,
        propose=lambda operator, parents: {"lr": "0.01"} if operator is Operator.TUNE and parents == ("a",) else None,
    )  # fmt: skip
    toolbox = build_toolbox(sources)
    check = {"statement": "it answers twice", "at_least": 2}
    assert toolbox.call("try_program", {"code": "x = 1", "attempts": 2, "check": check}) == "tried"
    assert asked == [("x = 1", 2, ManipulationCheck("it answers twice", at_least=2))]
    with pytest.raises(ToolRefused, match="less than or equal to 16"):
        toolbox.call("try_program", {"code": "x = 1", "attempts": 17})
    with pytest.raises(ToolRefused, match="a pattern or code, not both"):
        toolbox.call("try_program", {"code": "x", "check": {"statement": "s", "pattern": "a", "code": "b"}})
    assert 'lr: "0.01"' in toolbox.call("propose", {"operator": "tune", "parents": ["a"]})
    assert "no further settings" in toolbox.call("propose", {"operator": "draft"})
    with pytest.raises(ToolRefused, match="combine takes 2 parents, not 1"):
        toolbox.call("propose", {"operator": "combine", "parents": ["a"]})
