"""`swarm train`: a user's own task, agent and reward, from one command to scores before and after."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner

from swarm import SwarmClient, TrainJob
from swarm.cli import app
from swarm.environments.scaffold import write_scaffold
from swarm.job import usual_lr
from swarm.model_path import BUNDLED_DIRECTORIES, stored_parameters
from swarm.program import load_program

PAGE = Path(__file__).parents[2] / "docs" / "training.md"
JOB = "engine: fake\nbatch_size: 2\nnum_repeat: 2\ntotal_steps: 3\n"
AGENT = """
def agent(task, model, session):
    model.chat([{"role": "user", "content": "Think: " + task.main_query}])
    return ANSWERS.get(task.main_query, "?")

def reward(task, transcript, grade):
    assert transcript[-1]["role"] == "assistant"
    return grade.score - 0.25

ANSWERS = {}
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The present folder, with an environment, a job and a program whose agent knows every answer."""
    monkeypatch.chdir(tmp_path)
    write_scaffold(tmp_path / "longer")
    rows = [json.loads(line) for line in (tmp_path / "longer" / "tasks.jsonl").read_text().splitlines()]
    (tmp_path / "job.yaml").write_text(JOB)
    answers = {row["question"]: row["answer"] for row in rows}
    (tmp_path / "knows.py").write_text(AGENT + f"ANSWERS.update({answers!r})\n")
    return tmp_path


def train(own: Path, *words: str) -> Any:
    command = ["train", "--env", str(own / "longer"), "--job", str(own / "job.yaml"), "--json", "--eval-episodes", "6"]
    return CliRunner().invoke(app, [*command, "--few-tasks", *words])


def test_an_own_agent_and_reward_are_trained_and_judged_by_the_true_grade(own: Path, start_server: Any) -> None:
    url = start_server().url
    done = train(own, "--program", str(own / "knows.py"), "--url", url)
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout)
    assert (figures["steps"], figures["failed_episodes"], figures["program"]) == (3, 0, "knows")
    assert figures["before"]["mean"] == figures["after"]["mean"] == 1.0
    assert done.stderr.count("reward 0.750") == 3
    with SwarmClient(url) as client:
        assert [point.metrics["batch/groups"] for point in client.metrics()] == [2.0, 2.0, 2.0]
        assert client.job().job["experiment_name"] == "longer"


@pytest.mark.parametrize(("limit", "tokens", "said"), [(3, 3, "replies have at most 3"), (99, 16, "changes no reply")])
def test_the_smaller_limit_of_a_reply_binds_in_training_and_in_scores_and_the_line_says_so(
    own: Path, start_server: Any, limit: int, tokens: int, said: str
) -> None:
    (own / "job.yaml").write_text(f"{JOB}max_response_length: {limit}\n")
    url = start_server().url
    done = train(own, "--url", url)
    assert done.exit_code == 0, done.output
    assert said in done.stderr
    assert json.loads(done.stdout)["max_response_length"] == (tokens if tokens == limit else None)
    with SwarmClient(url) as client:
        kinds = {(each.episode_id, each.episode_type) for each in client.episodes(limit=1000)}
        turns = [(kind, turn) for name, kind in kinds for turn in client.episode(name).turns]
    assert {(kind, turn.params["max_tokens"]) for kind, turn in turns} == {("train", tokens), ("eval", tokens)}
    assert 0 < max(len(turn.output_ids) for _, turn in turns) <= tokens


def test_a_model_of_the_users_own_is_trained_at_the_rate_of_its_size(own: Path, start_server: Any) -> None:
    small = shutil.copytree(BUNDLED_DIRECTORIES["nano"], own / "small")
    url = start_server().url
    done = train(own, "--model", str(small), "--url", url)
    assert done.exit_code == 0, done.output
    lr = usual_lr(stored_parameters(small), has_adapter=False)
    assert f"lr {lr:g} suits the size of {small}" in done.stderr
    with SwarmClient(url) as client:
        assert client.job().job["lr"] == lr


def test_the_agent_of_the_environments_folder_plays_where_no_program_is_named(own: Path, start_server: Any) -> None:
    (own / "longer" / "agent.py").write_text((own / "knows.py").read_text())
    url = start_server().url
    done = train(own, "--url", url)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["program"] == "agent"
    (own / "longer" / "agent.py").write_text("x = 1\n")
    scored = CliRunner().invoke(app, ["eval", "--env", str(own / "longer"), "--url", url])
    assert scored.exit_code == 2 and "it defines no function agent, reward or schedule" in scored.stderr


@pytest.mark.timeout(400)
def test_without_a_server_one_is_started_and_more_steps_go_further(own: Path) -> None:
    first = train(own)
    assert first.exit_code == 0, first.output
    figures = json.loads(first.stdout)
    assert (figures["steps"], figures["program"], figures["home"]) == (3, "plain", "runs/train/longer")
    assert (own / "runs" / "train" / "longer" / "ledger.db").exists()
    (own / "job.yaml").write_text(JOB.replace("total_steps: 3", "total_steps: 4"))
    second = train(own)
    assert second.exit_code == 0, second.output
    assert json.loads(second.stdout)["before"] == figures["before"]
    assert [line for line in second.stderr.splitlines() if line.startswith("step")] == ["step    4  reward 0.000"]


def test_files_of_the_present_folder_hide_no_module_of_a_library_and_can_be_imported_by_a_grader(own: Path) -> None:
    for name in ("cmd", "types", "random", "yaml", "torch"):
        (own / f"{name}.py").write_text("raise SystemExit('a module of the present folder was imported')\n")
    (own / "scale.py").write_text("BEST = 1.0\n")
    grade = own / "longer" / "grade.py"
    grade.write_text(grade.read_text().replace("return 1.0", "from scale import BEST; return BEST"))
    (own / "job.yaml").write_text(JOB.replace("fake", "local").replace("steps: 3", "steps: 1") + "model: nano\n")
    done = train(own)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["steps"] == 1


def test_a_killed_run_leaves_no_server(own: Path) -> None:
    (own / "job.yaml").write_text(JOB.replace("total_steps: 3", "total_steps: 100000"))
    command = [sys.executable, "-m", "swarm.cli", "train", "--env", "longer", "--job", "job.yaml", "--home", "home"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, cwd=own) as run:
        assert run.stderr is not None
        assert run.stderr.readline().startswith("held-out score before")
        server = psutil.Process(json.loads((own / "home" / "stdout.log").read_text())["pid"])
        run.kill()
        server.wait(timeout=60)


def test_the_folder_of_a_server_is_taken_for_no_training(own: Path, start_server: Any) -> None:
    home = start_server().home
    done = train(own, "--home", str(home))
    assert done.exit_code == 1 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and "no training is on record there" in done.stderr


def test_a_training_that_would_begin_at_a_checkpoint_that_is_not_there_is_refused(own: Path, start_server: Any) -> None:
    (own / "job.yaml").write_text(f"{JOB}resume_from: step-000002\n")
    done = train(own, "--url", start_server().url)
    assert done.exit_code == 2 and done.stdout == ""
    assert "resume_from: no directory" in done.stderr.splitlines()[-1]


FAULTY = {
    "agent": "def agent(task, model, session): return {}[task.task_id]\n",
    "agent that exits": "def agent(task, model, session): raise SystemExit(0)\n",
    "grader": "def grade(task, transcript): return {}[task['question']]\n",
    "grader that exits": "import os\ndef grade(task, transcript): os._exit(0)\n",
}


@pytest.mark.parametrize(("kind", "code"), FAULTY.items(), ids=FAULTY.keys())
def test_a_fault_of_every_attempt_ends_a_training_with_one_traceback_and_the_reason(
    own: Path, start_server: Any, kind: str, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    is_grader = kind.startswith("grader")
    path = own / "longer" / "grade.py" if is_grader else own / "broken.py"
    path.write_text(code)
    words = ["--program", str(own / ("knows.py" if is_grader else "broken.py"))]
    done = train(own, *words, "--url", start_server().url)
    assert done.exit_code == 1 and done.stdout == ""
    reason = "SystemExit" if "exits" in kind else "KeyError"
    assert reason in done.stderr and "Traceback" not in done.stderr
    assert "exits" not in kind or (path.name if is_grader else "broken: agent") in done.stderr
    [first, counted] = [each for each in caplog.records if each.levelname == "WARNING"]
    assert bool(first.exc_info) != is_grader and reason in counted.getMessage()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("x = 1\n", "it defines no function agent, reward or schedule"),
        ("agent = 3\n", "agent is no function"),
        ("import nothing_of_this_name\n", "importing it raised ModuleNotFoundError"),
        (None, "there is no Python file of this name"),
    ],
)
def test_files_that_are_no_programs_are_refused_before_anything_is_started(
    own: Path, content: str | None, message: str
) -> None:
    path = own / "program.py"
    if content is not None:
        path.write_text(content)
    done = train(own, "--program", str(path))
    assert done.exit_code == 2 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and message in done.stderr
    assert not Path("runs/train/longer").exists()


def test_an_environment_with_fewer_tasks_than_a_batch_trains_with_exact_batches(own: Path, start_server: Any) -> None:
    tasks = [{"question": f"Say {number}", "answer": str(number), "split": split_of(number)} for number in range(8)]
    (own / "few.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    (own / "job.yaml").write_text("engine: fake\nbatch_size: 8\nnum_repeat: 2\ntotal_steps: 3\n")
    url = start_server().url
    words = ["--env", f"{own / 'few.jsonl'}?split=split", "--job", str(own / "job.yaml"), "--few-tasks", "--json"]
    done = CliRunner().invoke(app, ["train", *words, "--url", url])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["steps"] == 3
    with SwarmClient(url) as client:
        assert [point.metrics["batch/groups"] for point in client.metrics()] == [8.0, 8.0, 8.0]


def split_of(number: int) -> str:
    return {0: "validation", 1: "test"}.get(number, "train")


def test_the_programs_and_the_job_of_the_page_can_be_read(tmp_path: Path) -> None:
    text = PAGE.read_text().partition("\n## Programs\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```(\w+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    program, foot, parts, pair = [block for language, block in blocks if language == "python"][:4]
    assert "__main__" in foot and "model.role" in pair
    for name, lines in (("program", program), ("parts", parts), ("pair", pair)):
        (tmp_path / f"{name}.py").write_text(f"{lines}\n\n{foot}")
        assert load_program(tmp_path / f"{name}.py").name == name
    [given] = [block for language, block in blocks if language == "yaml"]
    (tmp_path / "job.yaml").write_text(given)
    assert TrainJob.build_job_from_yaml(tmp_path / "job.yaml")


def scores_by_version(client: SwarmClient) -> dict[int, list[float | None]]:
    """The rewards of eval episodes, by the one weight version that answered."""
    found: dict[int, list[float | None]] = {}
    for view in client.episodes(episode_type="eval"):
        [version] = view.weight_versions
        found.setdefault(version, []).append(view.reward)
    return found


@pytest.mark.parametrize("settings", ["", "max_staleness: 1\n"], ids=["exact batches", "stale episodes"])
def test_scores_on_the_way_are_of_the_step_they_are_labelled_with(own: Path, start_server: Any, settings: str) -> None:
    scored = [0, 2, 4, 5]
    (own / "job.yaml").write_text(JOB.replace("total_steps: 3", "total_steps: 5") + settings)
    luck = AGENT.replace('ANSWERS.get(task.main_query, "?")', "random.choice(task.main_query.split()[1:])")
    luck = "import random\n" + luck
    (own / "lucky.py").write_text(luck)
    url = start_server().url
    done = train(own, "--program", str(own / "lucky.py"), "--url", url, "--eval-every", "2")
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout)
    evaluations = figures["evaluations"]
    assert [each["step"] for each in evaluations] == scored
    means = {each["step"]: each["mean"] for each in evaluations}
    assert (means[0], means[figures["ended_at"]]) == (figures["before"]["mean"], figures["after"]["mean"])
    assert figures["after"]["mean"] == max(mean for step, mean in means.items() if step)
    with SwarmClient(url) as client:
        by_version = scores_by_version(client)
        assert [point.step for point in client.metrics()] == list(range(1, figures["ended_at"] + 1))
    assert sorted(by_version) == scored and {len(rewards) for rewards in by_version.values()} == {6}
    for each in evaluations:
        rewards = [reward for reward in by_version[each["step"]] if reward is not None]
        assert sum(rewards) / 6 == pytest.approx(each["mean"])
    assert done.stderr.count("held-out score at step") == 2


def test_a_training_ends_at_its_best_step_and_goes_further_from_there(own: Path, start_server: Any) -> None:
    (own / "job.yaml").write_text(JOB.replace("total_steps: 3", "total_steps: 4"))
    forgetful = (own / "knows.py").read_text().replace('ANSWERS.get(task.main_query, "?")', "answer(task.main_query)")
    # The score before takes 6 answers, two steps take 8, and the score on the way takes 6.
    forgetful += "\nimport itertools\nCOUNT = itertools.count(1)\n"
    forgetful += 'def answer(query):\n    return ANSWERS[query] if next(COUNT) <= 24 else "?"\n'
    (own / "forgetful.py").write_text(forgetful)
    url = start_server().url
    options = ("--program", str(own / "forgetful.py"), "--url", url, "--workers", "1")
    done = train(own, *options, "--eval-every", "2")
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout)
    assert (figures["steps"], figures["ended_at"], figures["after"]["mean"]) == (4, 2, 1.0)
    assert [(each["step"], each["mean"]) for each in figures["evaluations"]] == [(0, 1.0), (2, 1.0), (4, 0.0)]
    with SwarmClient(url) as client:
        assert (client.status().step, client.status().state) == (2, "COMPLETE")
        again = train(own, *options)
        assert json.loads(again.stdout)["ended_at"] == 2 and "has ended at step 2" in again.stderr
        (own / "job.yaml").write_text(JOB.replace("total_steps: 3", "total_steps: 5"))
        further = json.loads(train(own, *options).stdout)
        assert (further["steps"], further["ended_at"]) == (5, 5)
        assert [point.step for point in client.metrics()] == [1, 2, 3, 4, 5]


def test_the_command_takes_the_guard_that_the_job_and_the_program_leave_it(own: Path, start_server: Any) -> None:
    curriculum = (own / "knows.py").read_text() + "\ndef schedule(tasks, progress):\n    return tasks\n"
    (own / "curriculum.py").write_text(curriculum)
    found: list[Any] = []
    for settings, program in (("", "knows"), ("guard: stop\n", "knows"), ("", "curriculum")):
        (own / "job.yaml").write_text(JOB.replace("total_steps: 3", "total_steps: 1") + settings)
        url = start_server().url
        assert train(own, "--program", str(own / f"{program}.py"), "--url", url, "--fresh").exit_code == 0
        with SwarmClient(url) as client:
            found.append((client.job().resolved or {})["guard"])
    assert found == ["rollback", "stop", "warn"]


def test_a_fault_that_the_guard_finds_is_told_and_listed(own: Path, start_server: Any) -> None:
    job = JOB.replace("total_steps: 3", "total_steps: 9").replace("num_repeat: 2", "num_repeat: 1")
    (own / "job.yaml").write_text(job.replace("batch_size: 2", "batch_size: 4") + "guard: stop\n")
    forgetful = (own / "knows.py").read_text().replace('ANSWERS.get(task.main_query, "?")', "answer(task.main_query)")
    forgetful += "\nimport itertools\nCOUNT = itertools.count(1)\n"
    forgetful += 'def answer(query):\n    return ANSWERS[query] if next(COUNT) <= 24 else "?"\n'
    (own / "forgetful.py").write_text(forgetful)
    done = train(own, "--program", str(own / "forgetful.py"), "--url", start_server().url, "--workers", "1")
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout)
    assert [(each["did"], each["fault"]) for each in figures["guard"]] == [("stopped", "collapse")]
    assert figures["steps"] == figures["ended_at"] == figures["guard"][0]["step"] < 9
    assert "guard: The mean" in done.stderr


def test_scores_on_the_way_leave_the_batches_as_they_are(own: Path, start_server: Any) -> None:
    trained: list[list[set[str | None]]] = []
    for words in ((), ("--eval-every", "1")):
        url = start_server().url
        # The attempts run one at a time, so that no race decides which task comes first.
        assert train(own, "--url", url, "--workers", "1", "--fresh", *words).exit_code == 0
        with SwarmClient(url) as client:
            by_batch: dict[str, set[str | None]] = {}
            for view in reversed(client.episodes(episode_type="train")):
                if view.batch_id is not None:
                    by_batch.setdefault(view.batch_id, set()).add(view.task_id)
            assert [point.metrics["batch/groups"] for point in client.metrics()] == [2.0, 2.0, 2.0]
        trained.append(list(by_batch.values()))
    assert trained[0] == trained[1] and len(trained[0]) == 3


def test_attempts_that_the_program_breaks_score_nothing_and_end_no_training(own: Path, start_server: Any) -> None:
    # Only the held-out tasks come again, and no second attempt at them succeeds.
    (own / "fails.py").write_text(
        "SEEN = {}\n"
        "def agent(task, model, session):\n"
        "    SEEN[task.task_id] = SEEN.get(task.task_id, 0) + 1\n"
        "    assert not 2 <= SEEN[task.task_id] <= 4\n"
        "    model.chat(session.messages)\n"
        "    return '?'\n"
    )
    (own / "job.yaml").write_text(JOB.replace("num_repeat: 2", "num_repeat: 1"))
    done = train(own, "--program", str(own / "fails.py"), "--url", start_server().url, "--eval-every", "2")
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout)
    assert [(each["step"], each["mean"]) for each in figures["evaluations"]] == [(0, 0.0), (2, 0.0), (3, 0.0)]


def test_a_job_that_asks_for_scores_gets_them_from_the_command_that_trains_it(own: Path, start_server: Any) -> None:
    (own / "job.yaml").write_text(JOB + "eval_every: 2\neval_episodes: 4\n")
    url = start_server().url
    done = train(own, "--program", str(own / "knows.py"), "--url", url, "--home", str(own / "logs"))
    assert done.exit_code == 0, done.output
    evaluations = json.loads(done.stdout)["evaluations"]
    assert [(each["step"], each["mean"], each["n"]) for each in evaluations] == [(0, 1.0, 6), (2, 1.0, 4), (3, 1.0, 6)]
    with SwarmClient(url) as client:
        curve = [(each.step, each.state, each.mean, each.scored) for each in client.evaluations()]
        assert curve == [(step, "done", 1.0, 4) for step in (0, 2, 3)]
    # The training reward is another one than the grade.
    assert (own / "logs" / "evaluator.log").read_text().count('"mean": 1.0') == 3


@pytest.mark.timeout(400)
def test_an_estimate_leaves_nothing_behind_and_the_next_training_reads_the_record_of_the_last(own: Path) -> None:
    (own / "prices.yaml").write_text("cpu_hour: 3600\n")
    priced = ("--prices", str(own / "prices.yaml"))
    before = set(own.rglob("*"))
    tried = train(own, "--estimate", *priced)
    assert tried.exit_code == 0, tried.output
    estimate = json.loads(tried.stdout)
    assert (estimate["source"], estimate["steps"]) == ("3 steps", 3)
    assert 0 < estimate["money"] == pytest.approx(estimate["seconds"])
    assert estimate["tokens"] > 0 and estimate["memory"] > 0 and estimate["disk"] > 0
    left = {path for path in set(own.rglob("*")) - before if "__pycache__" not in path.parts}
    assert left == {own / "runs", own / "runs" / "train"}

    first = train(own, *priced)
    assert first.exit_code == 0, first.output
    assert "expected" not in first.stderr
    took = json.loads(first.stdout)["took"]
    assert took["steps"] == 3 and took["money"] == pytest.approx(took["seconds"])
    second = train(own, "--name", "again", "--seed", "5")
    assert "1 like training on record" in second.stderr
    refused = train(own, "--estimate", "--url", "http://127.0.0.1:1")
    assert refused.exit_code == 2 and "leave --url out" in refused.stderr
