"""Tasks without a name of their own: equal content is one group, whatever the metadata is made of."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import subprocess
import sys
from datetime import date
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest

from swarm import Task


class Level(StrEnum):
    EASY = "easy"


class Plain:
    def __init__(self, value: int) -> None:
        self.value = value


@dataclasses.dataclass
class Record:
    value: int


def arrays() -> dict[str, Any]:
    import numpy as np

    return {"array": np.arange(5000), "number": np.float64(0.25), "nan": float("nan"), "level": Level.EASY}


def circular() -> dict[str, Any]:
    inner: dict[str, Any] = {"name": "x"}
    inner["self"] = inner
    return inner


MAKERS = [
    lambda: {"answer": "cba", "level": 3},
    lambda: {1: "a", "1": "b", None: "c", (1, 2): "d"},
    lambda: {"set": {"b", "a", "c"}, "tuple": (1, [2, 3])},
    lambda: {"date": date(2026, 1, 1), "path": Path("/x"), "bytes": b"\x00", "decimal": Decimal("1.10")},
    arrays,
    lambda: {"object": Plain(1), "record": Record(2), "type": Plain, "function": lambda: 1},
    circular,
]


@pytest.mark.parametrize("make", MAKERS)
def test_equal_content_has_one_id_whatever_the_metadata_holds(make: Any) -> None:
    assert Task("reverse abc", metadata=make()).task_id == Task("reverse abc", metadata=make()).task_id


def test_the_order_of_the_metadata_does_not_matter_and_everything_else_does() -> None:
    import numpy as np

    task = Task("reverse abc", metadata={"answer": "cba", "level": 3})
    assert Task("reverse abc", metadata={"level": 3, "answer": "cba"}) == task
    others = [
        Task("reverse abd", metadata=task.metadata),
        Task("reverse abc", metadata={"answer": "cba", "level": 4}),
        Task("reverse abc", metadata={"answer": "cba", "level": "3"}),
        Task("reverse abc", metadata={"array": np.arange(5000)}),
        Task("reverse abc", metadata={"array": np.arange(5001)}),
        Task("reverse abc", metadata={"object": Plain(1)}),
        Task("reverse abc", metadata={"object": Plain(2)}),
        Task("reverse abc", metadata=task.metadata, data_source="words"),
        Task("reverse abc"),
    ]
    assert len({task.task_id, *(other.task_id for other in others)}) == 1 + len(others)


def test_the_id_is_the_same_in_another_process() -> None:
    program = "from swarm import Task; print(Task('q', metadata={'set': {'a', 'b', 'c'}, 'x': 0.1}).task_id)"
    shown = {
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip()
        for _ in range(2)
    }
    assert shown == {Task("q", metadata={"x": 0.1, "set": {"c", "b", "a"}}).task_id}


def test_a_given_id_is_kept_and_copies_are_equal() -> None:
    assert Task("q", "mine").task_id == "mine"
    for task in (Task("q", "mine", {"a": 1}), Task("q", metadata={"a": 1})):
        assert copy.deepcopy(task) == task == pickle.loads(pickle.dumps(task))  # noqa: S301 - made right here
    with pytest.raises(dataclasses.FrozenInstanceError):
        Task("q").task_id = "other"  # pyright: ignore[reportAttributeAccessIssue]


def test_a_changed_copy_keeps_its_id_unless_asked_for_that_of_its_content() -> None:
    task = Task("q", metadata={"a": 1})
    assert dataclasses.replace(task, main_query="r").task_id == task.task_id
    assert dataclasses.replace(task, main_query="r", task_id="") == Task("r", metadata={"a": 1})
