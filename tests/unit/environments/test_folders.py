"""Task files and folders of the user's become tasks with hidden answers; what is wrong is told in one line."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from swarm.environments import Grade, load_environment
from swarm.environments.scaffold import write_scaffold
from swarm.environments.sources import rows
from swarm.errors import EnvironmentFailure, EnvironmentInvalid
from swarm.tasks import Split

ROWS = [{"question": f"What is {number} + {number}?", "answer": 2 * number, "level": "easy"} for number in range(100)]


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def reply(content: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": "?"}, {"role": "assistant", "content": content}]


def test_rows_become_tasks_whose_answers_only_the_grader_sees(tmp_path: Path) -> None:
    environment = load_environment(f"{write(tmp_path / 'sums.jsonl', ROWS)}?grader=number&public=level")
    tasks = list(environment.tasks(Split.TRAIN))
    assert environment.name == "sums"
    for each in tasks:
        assert each.task.metadata == {"level": "easy"}
        assert environment.open(each).messages == ({"role": "user", "content": each.task.main_query},)
        assert environment.grade(each, reply(f"It is {each.answer['answer']}.")).score == 1
        assert not environment.grade(each, reply("no idea")).is_success


def test_every_row_is_in_one_split_in_an_order_fixed_by_the_seed(tmp_path: Path) -> None:
    environment = load_environment(str(write(tmp_path / "sums.jsonl", ROWS)))
    by_split = {split: [each.task.task_id for each in environment.tasks(split)] for split in Split}
    ids = [task_id for tasks in by_split.values() for task_id in tasks]
    assert len(ids) == len(set(ids)) == len(ROWS)
    assert len(by_split[Split.TRAIN]) > 60
    assert [each.task.task_id for each in environment.tasks(Split.TRAIN)] == by_split[Split.TRAIN]
    other = [each.task.task_id for each in environment.tasks(Split.TRAIN, seed=1)]
    assert other != by_split[Split.TRAIN] and sorted(other) == sorted(by_split[Split.TRAIN])


@pytest.mark.parametrize("kept_bytes", [0, rows.KEPT_BYTES], ids=["on disk", "in memory"])
def test_tasks_do_not_depend_on_where_the_lines_of_a_file_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept_bytes: int
) -> None:
    monkeypatch.setattr(rows, "KEPT_BYTES", kept_bytes)
    lines = [json.dumps(row, ensure_ascii=False) for row in [*ROWS, ROWS[7]]]
    (tmp_path / "sums.jsonl").write_bytes(("\n\n".join(lines[:50]) + "\r\n" + "\r\n".join(lines[50:])).encode())
    environment = load_environment(str(tmp_path / "sums.jsonl"))
    found = [each for split in Split for each in environment.tasks(split)]
    assert sorted(each.answer["answer"] for each in found) == [row["answer"] for row in ROWS]
    plain = load_environment(str(write(tmp_path / "plain" / "sums.jsonl", ROWS)))
    assert [each.task.task_id for each in plain.tasks(Split.TRAIN)] == [
        each.task.task_id for each in environment.tasks(Split.TRAIN)
    ]
    changed = write(tmp_path / "sums.jsonl", [{**ROWS[0], "answer": 5}, *ROWS])
    with pytest.raises(EnvironmentInvalid, match=r"row 2: it repeats the question .* with other values"):
        load_environment(str(changed))


def test_a_large_file_that_is_changed_while_it_is_in_use_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "KEPT_BYTES", 0)
    path = write(tmp_path / "sums.jsonl", ROWS)
    environment = load_environment(str(path))
    write(path, ROWS[:50])
    with pytest.raises(EnvironmentFailure, match=r"sums\.jsonl was changed while it was in use"):
        next(iter(environment.tasks(Split.TRAIN)))


def test_splits_by_column(tmp_path: Path) -> None:
    rows = [{**row, "part": ("train", "dev", "TEST")[number % 3]} for number, row in enumerate(ROWS)]
    environment = load_environment(f"{write(tmp_path / 'sums.jsonl', rows)}?split=part")
    assert [len(list(environment.tasks(split))) for split in Split] == [34, 33, 33]


def test_splits_by_file_with_the_missing_one_taken_from_train(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    (tmp_path / "data").mkdir()
    parquet.write_table(pyarrow.Table.from_pylist(ROWS[:80]), tmp_path / "data" / "train-00000-of-00001.parquet")
    write(tmp_path / "data" / "test.jsonl", ROWS[80:])
    environment = load_environment(f"{tmp_path}?grader=number")
    counts = {split: len(list(environment.tasks(split))) for split in Split}
    assert counts[Split.TEST] == 20
    assert counts[Split.TRAIN] + counts[Split.VALIDATION] == 80 and counts[Split.VALIDATION] > 0


def test_the_digest_changes_with_content_and_options(tmp_path: Path) -> None:
    path = write(tmp_path / "sums.jsonl", ROWS)
    digests = [load_environment(f"{path}{options}").digest for options in ("", "", "?grader=number")]
    write(path, ROWS[:99])
    digests.append(load_environment(str(path)).digest)
    assert digests[0] == digests[1] and len(set(digests)) == 3


def test_equal_rows_are_one_task(tmp_path: Path) -> None:
    environment = load_environment(str(write(tmp_path / "sums.jsonl", [*ROWS, *ROWS])))
    assert sum(len(list(environment.tasks(split))) for split in Split) == len(ROWS)


BROKEN = [
    ('{"question": "a", "answer": 1}\n{"question": \n', "", "line 2: not valid JSON"),
    ("[1]\n", "", "line 1: not a JSON object"),
    ("", "", "there is no task in it"),
    ('{"text": "a", "answer": 1}\n', "", "set query=COLUMN, where the columns are text, answer"),
    ('{"question": "a"}\n', "?query=title", "no column for the query was found"),
    ('{"question": 3, "answer": 1}\n', "", "row 1: its question is '3', which is not a text"),
    ('{"question": "a", "answer": 1}\n', "?split=part", "row 1: column part is 'None': use train"),
    ('{"question": "a", "answer": 1}\n', "?public=hint", "there is no column 'hint'"),
    ('{"question": "a", "answer": 1}\n', "?grader=bleu", "unknown grader 'bleu': use exact, number"),
    ('{"question": "a", "answer": 1}\n', "?colour=red", "no option colour; there are: "),
    ('{"question": "a", "answer": 1}\n', "?max_tokens=0", "option max_tokens: .*greater than or equal to 1"),
    ('{"question": "a", "answer": 1}\n', "?grader", "options are written NAME=VALUE"),
    ('{"question": "a", "answer": 1}\n', "", "none of its 1 tasks is in the split"),
    (
        '{"question": "a", "answer": 1}\n{"question": "a", "answer": 2}\n',
        "",
        "row 2: it repeats the question 'a'",
    ),
]


@pytest.mark.parametrize(("content", "options", "message"), BROKEN)
def test_broken_files_are_refused_in_one_line(tmp_path: Path, content: str, options: str, message: str) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text(content)
    with pytest.raises(EnvironmentInvalid, match=message) as refused:
        load_environment(f"{path}{options}")
    assert "\n" not in refused.value.message


def test_a_column_of_splits_is_refused_where_files_or_tasks_py_give_the_split(tmp_path: Path) -> None:
    write(tmp_path / "files" / "train.jsonl", ROWS)
    with pytest.raises(EnvironmentInvalid, match="option split has no effect") as refused:
        load_environment(f"{tmp_path / 'files'}?split=level")
    assert refused.value.param == "split"

    made = tmp_path / "made"
    made.mkdir()
    (made / "environment.toml").write_text('grader = "number"\nanswer = "wanted"\nsplit = "part"\n')
    (made / "tasks.py").write_text(TASKS_PY)
    with pytest.raises(EnvironmentInvalid, match="option split has no effect"):
        load_environment(str(made))


def test_an_option_that_is_given_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentInvalid, match="option grader is given twice"):
        load_environment(f"{write(tmp_path / 'sums.jsonl', ROWS)}?grader=number&grader=exact")


def test_overlapping_splits_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", ROWS)
    write(tmp_path / "test.jsonl", ROWS[:1])
    with pytest.raises(EnvironmentInvalid, match=r"the splits train and test overlap: both have .*What is 0"):
        load_environment(str(tmp_path))


def test_an_answer_that_the_grader_cannot_use_is_told_with_its_task(tmp_path: Path) -> None:
    rows = [{"question": f"{number}?", "answer": "many"} for number in range(60)]
    environment = load_environment(f"{write(tmp_path / 'tasks.jsonl', rows)}?grader=number")
    task = next(environment.tasks(Split.TRAIN))
    with pytest.raises(EnvironmentFailure, match="column answer: 'many' is not a number"):
        environment.grade(task, reply("7"))


TASKS_PY = """
def tasks(split, seed):
    start = {"train": 0, "validation": 100, "test": 200}[split]
    return [{"question": f"double {n}", "wanted": 2 * n} for n in range(start, start + 20)]
"""


def folder(tmp_path: Path, **files: str) -> str:
    write_scaffold(tmp_path / "own")
    for name, content in files.items():
        path = tmp_path / "own" / name.replace("_", ".")
        path.unlink(missing_ok=True)
        if content:
            path.write_text(content)
    return str(tmp_path / "own")


def grade_of(environment: Any, reply: str) -> Grade:
    task = next(environment.tasks(Split.TRAIN))
    return environment.grade(task, [*environment.open(task).messages, {"role": "assistant", "content": reply}])


def test_the_scaffold_is_an_environment(tmp_path: Path) -> None:
    environment = load_environment(folder(tmp_path))
    task = next(environment.tasks(Split.TRAIN))
    assert environment.name == "own" and task.task.main_query.startswith("Longer: ")
    assert "answer" not in task.task.metadata
    assert grade_of(environment, str(environment.solution(task))) == Grade(1.0, True)
    assert grade_of(environment, "?") == Grade(0.0, False)


def test_tasks_may_come_from_a_program(tmp_path: Path) -> None:
    name = folder(
        tmp_path,
        tasks_jsonl="",
        tasks_py=TASKS_PY,
        environment_toml='answer = "wanted"\ngrader = "number"',
        grade_py="",
    )
    environment = load_environment(name)
    assert [len(list(environment.tasks(split))) for split in Split] == [20, 20, 20]
    task = next(environment.tasks(Split.TEST))
    assert int(task.task.main_query.split()[1]) >= 200
    assert environment.grade(task, [{"role": "assistant", "content": f"{task.answer['wanted']}"}]).is_success


def test_a_grader_may_say_more_than_a_number(tmp_path: Path) -> None:
    grade = "def grade(task, transcript): return {'score': 0.5, 'success': True, 'details': {'why': 'half'}}"
    environment = load_environment(folder(tmp_path, grade_py=grade))
    assert grade_of(environment, "x") == Grade(0.5, True, {"why": "half"})


def test_a_system_prompt_opens_every_attempt(tmp_path: Path) -> None:
    toml = 'system = "Answer with one word."'
    environment = load_environment(folder(tmp_path, environment_toml=toml))
    opening = environment.open(next(environment.tasks(Split.TRAIN))).messages
    assert opening[0] == {"role": "system", "content": "Answer with one word."}


def test_the_digest_changes_with_any_file_but_caches(tmp_path: Path) -> None:
    name = folder(tmp_path)
    before = load_environment(name).digest
    (tmp_path / "own" / "__pycache__").mkdir(exist_ok=True)
    (tmp_path / "own" / "__pycache__" / "x.pyc").write_text("x")
    assert load_environment(name).digest == before
    (tmp_path / "own" / "notes.txt").write_text("x")
    assert load_environment(name).digest != before


INCOMPLETE = [
    ({"grade_py": ""}, EnvironmentInvalid, "write a grade.py, or name a grader"),
    ({"tasks_jsonl": ""}, EnvironmentInvalid, "there must be exactly one of tasks.jsonl, .* but there is none"),
    ({"tasks_py": TASKS_PY}, EnvironmentInvalid, "but there are tasks.py, tasks.jsonl"),
    ({"environment_toml": "grader = 'exact'"}, EnvironmentInvalid, "a grade.py and a grader .*: keep one"),
    ({"environment_toml": "name = "}, EnvironmentInvalid, "environment.toml: cannot be read"),
    ({"environment_toml": "colour = 1"}, EnvironmentInvalid, "environment.toml: there is no option colour"),
    ({"grade_py": "def judge(): ..."}, EnvironmentInvalid, "there is no function grade in it"),
    ({"grade_py": "import nothing_of_this_name"}, EnvironmentInvalid, "importing it raised ModuleNotFoundError"),
    ({"tasks_jsonl": "", "tasks_py": "def tasks(split, seed): return 1 / 0"}, EnvironmentFailure, "ZeroDivisionError"),
    ({"tasks_jsonl": "", "tasks_py": "def tasks(split, seed): return ['x']"}, EnvironmentInvalid, "is not a dict"),
    ({"tasks_jsonl": json.dumps({"question": "a"})}, EnvironmentInvalid, "none of its 1 tasks is in the split"),
]


@pytest.mark.parametrize(("files", "kind", "message"), INCOMPLETE)
def test_folders_that_cannot_be_used_are_refused_in_one_line(
    tmp_path: Path, files: dict[str, str], kind: type[EnvironmentInvalid], message: str
) -> None:
    with pytest.raises(kind, match=message) as refused:
        load_environment(folder(tmp_path, **files))
    assert "\n" not in refused.value.message


GRADERS = [
    ("raise KeyError('length')", "failed on task own/.*: KeyError: 'length'"),
    ("return float('nan')", "the score nan: it must be a finite number"),
    ("return None", "returned 'None': return a number"),
    ("return {'points': 3}", "return a number, a boolean, or a mapping with a score"),
]


@pytest.mark.parametrize(("body", "message"), GRADERS)
def test_what_is_no_grade_is_a_failure_and_never_a_reward(tmp_path: Path, body: str, message: str) -> None:
    environment = load_environment(folder(tmp_path, grade_py=f"def grade(task, transcript): {body}"))
    with pytest.raises(EnvironmentFailure, match=message):
        grade_of(environment, "x")


def test_a_folder_with_files_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "notes.txt").write_text("mine")
    with pytest.raises(EnvironmentInvalid, match="exists and is not empty"):
        write_scaffold(tmp_path / "own")
    assert [path.name for path in (tmp_path / "own").iterdir()] == ["notes.txt"]
