"""Task files: columns become tasks, answers stay hidden, splits never overlap, broken files are told in one line."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from swarm.environments import load_environment
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
    ('{"question": "a", "answer": 1}\n', "?grader=bleu", "unknown grader 'bleu'"),
    ('{"question": "a", "answer": 1}\n', "?colour=red", "no option colour; there are: "),
    ('{"question": "a", "answer": 1}\n', "?max_tokens=0", "option max_tokens: .*greater than or equal to 1"),
    ('{"question": "a", "answer": 1}\n', "?grader", "options are written NAME=VALUE"),
    ('{"question": "a", "answer": 1}\n', "", "there is no task in the split"),
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
