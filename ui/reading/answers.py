"""The store with answers that are kept until the database changes, so that no page reads anything of it twice."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from copy import copy
from functools import partial
from threading import Lock
from typing import Any, TypeVar

import pandas as pd

from experiments_db import ExperimentStore

T = TypeVar("T")

MOST_ANSWERS = 64
"""So many are kept, the ones asked for last. A page asks about twenty questions."""


class KeptAnswers:
    """The answers of one store, shared by the browser sessions of an explorer."""

    def __init__(self, store: ExperimentStore) -> None:
        self.store = store
        self._lock = Lock()
        self._version = ""
        self._kept: OrderedDict[Hashable, Any] = OrderedDict()

    def close(self) -> None:
        self.store.close()

    def ask(self, question: Hashable, read: Callable[[], T]) -> T:
        """Return the answer to a question: the one that is kept, or else what `read` gives.

        Lists, dictionaries and frames are shallow copies, so that no page changes those of another.
        """
        # The version comes first: a change while the answer is read makes it one of an older version.
        version = self.store.read_version()
        with self._lock:
            if version != self._version:
                self._version = version
                self._kept.clear()
            if question in self._kept:
                self._kept.move_to_end(question)
                return _copied(self._kept[question])
        answer = read()
        with self._lock:
            if version == self._version:
                self._kept[question] = answer
                if len(self._kept) > MOST_ANSWERS:
                    self._kept.popitem(last=False)
        return _copied(answer)


class KeptStore:
    """A store whose methods give kept answers."""

    def __init__(self, answers: KeptAnswers) -> None:
        self._answers = answers

    def __getattr__(self, name: str) -> Callable[..., Any]:
        read = getattr(self._answers.store, name)

        def ask(*args: Any, **kwargs: Any) -> Any:
            return self._answers.ask((name, args, tuple(sorted(kwargs.items()))), partial(read, *args, **kwargs))

        return ask


def _copied(answer: Any) -> Any:
    if isinstance(answer, pd.DataFrame):
        return answer.copy(deep=False)
    return copy(answer) if isinstance(answer, list | dict) else answer
