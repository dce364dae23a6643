"""Studies on a person's own environment: arms that differ in their program alone, judged by the true grade."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from simulated_study import reports_without_images
from typer.testing import CliRunner

from experiments_db import Author, ExperimentStatus, RunStatus, open_store
from researcher.cli import app
from swarm.environments import load_environment
from swarm.environments.scaffold import write_scaffold
from swarm.tasks import Split

pytestmark = pytest.mark.timeout(400)

KNOWS = """
ANSWERS = {answers}

def agent(task, model, session):
    model.chat(session.messages)
    return ANSWERS.get(task.main_query, "?")

def reward(task, transcript, grade):
    return grade.score - 100
"""
PLAIN = "from swarm.program import answer_in_turn as agent\n"
SETTINGS = [
    "--engine", "fake", "--planner", "rules", "--seeds", "3", "--steps", "1", "--eval-episodes", "4", "--json",
]  # fmt: skip


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory with an environment, the plain program and one that knows every answer."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    write_scaffold(tmp_path / "longer")
    rows = [json.loads(line) for line in (tmp_path / "longer" / "tasks.jsonl").read_text().splitlines()]
    answers = {row["question"]: row["answer"] for row in rows}
    shutil.copy(tmp_path / "longer" / "tasks.jsonl", tmp_path / "tasks.jsonl")
    (tmp_path / "knows.py").write_text(KNOWS.format(answers=answers))
    (tmp_path / "plain.py").write_text(PLAIN)
    (tmp_path / "job.yaml").write_text("batch_size: 4\nnum_repeat: 2\n")
    with reports_without_images():
        yield tmp_path


def start(*words: str) -> Any:
    names_factors = "--vary" in words or max(words.count("--program"), words.count("--train-env")) > 1
    topic = "A title" if names_factors else "Is 2 or 4 the better num_repeat?"
    return CliRunner().invoke(app, ["start", "--topic", topic, *words])


def test_programs_are_compared_on_an_own_environment_by_its_true_grade(
    own: Path, start_shared_server: Callable[..., Any]
) -> None:
    programs = ["--program", "plain.py", "--program", "knows.py"]
    words = ["--env", "longer", *programs, "--job", "job.yaml", "--servers", start_shared_server().url]
    done = start(*words, *SETTINGS, "--seeds", "1")
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert result["status"] == "finished"
    with open_store(own / "runs" / "research.db") as store:
        arms = {item.name: item for item in store.list_experiments(result["study"])}
        assert set(arms) == {"plain", "knows"} and arms["plain"].is_baseline
        assert arms["plain"].job == arms["knows"].job and arms["plain"].job["batch_size"] == 4
        assert arms["knows"].program_code == (own / "knows.py").read_text()
        assert {arm.author for arm in arms.values()} == {Author.PACKAGE}
        charter = store.find_charter(result["study"])
        assert charter is not None and charter.document["environment"] == str(own / "longer")
        assert charter.document["environment_name"] == "longer" and charter.document["environment_digest"]
        scores = store.list_evaluations(study_id=result["study"], phase="final")
        by_run = {run.id: run.experiment_id for run in store.list_runs(study_id=result["study"])}
        means = {name: {item.mean for item in scores if by_run[item.run_id] == arm.id} for name, arm in arms.items()}
        points = store.list_metrics([run for run, arm in by_run.items() if arm == arms["knows"].id])
    # The reward was what the program says, the score is what the environment says.
    assert means == {"plain": {0.0}, "knows": {1.0}}
    assert {point.value for point in points if point.name == "critic/score/mean"} == {-99.0}
    assert any(verdict.startswith("knows: mean 1.000") for verdict in result["verdicts"])


def test_arms_train_on_options_of_the_environment_and_are_judged_on_it_as_it_is(
    own: Path, start_shared_server: Callable[..., Any]
) -> None:
    words = ["--env", "tasks.jsonl?public=length", "--vary", "env.max_tokens=4,8", "--job", "job.yaml"]
    rows = [json.loads(line) for line in (own / "tasks.jsonl").read_text().splitlines()]
    (own / "tasks.jsonl").write_text("".join(json.dumps({**row, "length": "any"}) + "\n" for row in rows))
    done = start(*words, "--servers", start_shared_server().url, *SETTINGS, "--seeds", "1")
    assert done.exit_code == 0, done.output
    study, judged = json.loads(done.stdout)["study"], f"{own / 'tasks.jsonl'}?public=length"
    with open_store(own / "runs" / "research.db") as store:
        charter, arms = store.find_charter(study), {item.name: item for item in store.list_experiments(study)}
        runs = store.list_runs(study_id=study)
        [hash_of_score] = {item.evaluator_hash for item in store.list_evaluations(study_id=study, phase="final")}
    assert charter is not None and hash_of_score
    document = charter.document
    assert (document["environment"], document["baseline"]) == (judged, "env.max_tokens=4")
    assert document["environment_digest"] == load_environment(judged).digest
    trained = {f"env.max_tokens={tokens}": f"{judged}&max_tokens={tokens}" for tokens in (4, 8)}
    assert {name: arm.train_environment for name, arm in arms.items()} == trained
    assert [arm.factors for arm in arms.values()] == [{"env.max_tokens": 4}, {"env.max_tokens": 8}]
    assert len({json.dumps(arm.job, sort_keys=True) for arm in arms.values()}) == 1
    names = {arm.id: name for name, arm in arms.items()}
    digests = {names[run.experiment_id]: run.external_ids["train_environment_digest"] for run in runs}
    assert digests == {name: load_environment(reference).digest for name, reference in trained.items()}
    report = (own / "runs" / "studies" / study / "report" / "report.html").read_text()
    for said in ("max_tokens of the training environment: 4, 8", f"every arm is judged on {judged}"):
        assert said in done.stderr and said in report


@pytest.mark.slow
def test_arms_may_train_on_other_environments_than_the_one_that_judges_them(own: Path) -> None:
    write_scaffold(own / "other")
    rows = [json.loads(line) for line in (own / "other" / "tasks.jsonl").read_text().splitlines()]
    others = [{"question": row["question"].lower(), "answer": row["answer"]} for row in rows]
    (own / "other" / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in others))
    shutil.copytree("longer", "held")
    held_out = next(load_environment("longer").tasks(Split.TEST)).task.main_query
    leaking = [*others, {"question": held_out, "answer": "A"}]
    toml = (own / "held" / "environment.toml").read_text()
    (own / "held" / "environment.toml").write_text(toml + 'split = "part"\n')
    parts = ["train"] * 281 + ["validation"] * 10 + ["test"] * 10
    lines = [json.dumps({**row, "part": part}) for row, part in zip([leaking[-1], *others], parts, strict=True)]
    (own / "held" / "tasks.jsonl").write_text("\n".join(lines))
    words = [word for name in ("longer", "other", "held") for word in ("--train-env", name)]
    done = start("--env", "longer", *words, "--job", "job.yaml", *SETTINGS)
    assert done.exit_code == 0, done.output
    with open_store(own / "runs" / "research.db") as store:
        arms = {item.name: item for item in store.list_experiments(json.loads(done.stdout)["study"])}
        runs = store.list_runs(experiment_id=arms["other"].id)
        hashes = {item.evaluator_hash for item in store.list_evaluations(study_id=runs[0].study_id, phase="final")}
    assert {name: arm.train_environment for name, arm in arms.items()} == {
        name: str(own / name) for name in ("longer", "other", "held")
    }
    assert arms["longer"].is_baseline and arms["other"].factors == {"train_env": "other"}
    assert {run.status for run in runs} == {RunStatus.FINISHED} and len(hashes) == 1
    digest = load_environment("other").digest
    assert {run.external_ids["train_environment_digest"] for run in runs} == {digest}
    assert arms["held"].status is ExperimentStatus.INVALID
    assert "it trains on a task that it is judged by" in (arms["held"].note or "")


@pytest.mark.slow
def test_the_agent_of_an_environments_folder_plays_where_no_program_is_named(own: Path) -> None:
    digest = load_environment("longer").digest
    shutil.copy("knows.py", "longer/agent.py")
    assert load_environment("longer").digest == digest
    done = CliRunner().invoke(
        app, ["start", "--topic", "Is 2 or 4 the better num_repeat?", "--env", "longer", "--job", "job.yaml", *SETTINGS]
    )
    assert done.exit_code == 0, done.output
    with open_store(own / "runs" / "research.db") as store:
        arms = store.list_experiments(json.loads(done.stdout)["study"])
        scores = store.list_evaluations(study_id=json.loads(done.stdout)["study"], phase="final")
    assert len(arms) == 2 and {arm.program_code for arm in arms} == {(own / "knows.py").read_text()}
    assert {item.mean for item in scores} == {1.0}


REFUSED = [
    (["--env", "nothing"], "--env: there is no environment 'nothing'"),
    (["--env", "longer", "--train-env", "nothing"], "--train-env: there is no environment 'nothing'"),
    (
        ["--planner", "llm", "--model", "m", "--env", "longer", "--train-env", "longer"],
        "--train-env names what --planner",
    ),
    (["--env", "longer", "--train-env", "longer", "--train-env", "twin"], "are the same environment: change one"),
    (["--env", "reverse", "--vary", "env.x=1,2"], "--vary: the bundled environment reverse has no options"),
    (["--env", "longer", "--vary", "env.x=1,2"], "longer in its environment.toml"),
    (["--env", "tasks.jsonl", "--vary", "env.x=1,2"], "tasks.jsonl: there is no option x; there are: "),
    (["--env", "tasks.jsonl", "--vary", "env.max_tokens=9,09"], "max_tokens=09 are the same environment: change one"),
    (
        ["--planner", "llm", "--model", "m", "--env", "tasks.jsonl", "--vary", "env.max_tokens=3,4"],
        "--vary: --planner rules alone varies options of the environment",
    ),
    (["--env", "broken"], "broken has no grader: write a grade.py, or name a grader in environment.toml"),
    (["--program", "absent.py"], "--program: absent.py cannot be read"),
    (["--program", "half.py"], "--program: half.py cannot be read as Python"),
    (["--program", "null.py"], "--program: null.py cannot be read as Python"),
    (["--program", "empty.py"], "--program: empty.py has no function agent, reward or schedule"),
    (["--program", "plain.py", "--program", "plain.py"], "two programs have the same name: plain, plain"),
    (
        ["--planner", "llm", "--model", "m", "--program", "plain.py", "--program", "knows.py"],
        "--program: with --planner llm name one program",
    ),
    (["--job", "absent.yaml"], "--job: "),
    (["--train-model", "nothing-of-this-name"], "nothing-of-this-name"),
]


def test_verl_is_refused_at_once_where_it_cannot_run(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWARM_VLLM_PYTHON", str(own / "no-python"))
    settings = [word for word in SETTINGS if word not in ("--engine", "fake")]
    done = start(*settings, "--engine", "verl", "--env", "longer")
    assert done.exit_code == 5, done.output
    assert "--engine verl cannot be used here: " in done.stderr and "set SWARM_VLLM_PYTHON" in done.stderr
    assert not (own / "runs").exists()


@pytest.mark.parametrize(("words", "message"), REFUSED)
def test_what_cannot_be_studied_is_refused_before_anything_is_stored(own: Path, words: list[str], message: str) -> None:
    (own / "broken").mkdir()
    (own / "broken" / "environment.toml").write_text("")
    (own / "broken" / "tasks.jsonl").write_text('{"question": "a", "answer": "b"}\n')
    shutil.copytree("longer", "twin")
    (own / "half.py").write_text("def agent(\n")
    (own / "null.py").write_text("x = 1\0")
    (own / "empty.py").write_text("x = 1\n")
    settings = [word for word in SETTINGS if word not in ("--engine", "fake")]
    done = start(*settings, *words)
    assert done.exit_code == 2, done.output
    assert message in done.stderr and done.stdout == ""
    assert not (own / "runs").exists()
