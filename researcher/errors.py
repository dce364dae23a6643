"""The errors of the researcher, each with the exit code that the CLI returns for it.

ResearchError            1
├── TopicInvalid         2   empty topic, unknown environment, contradicting flags
│   ├── TopicNotUnderstood   2   parts of the topic match no setting, environment or option
│   └── SettingWithoutEffect 2   a setting that nothing reads in any arm
├── StudyNotFound        3   the database has no study of this id
├── FindingNotFound      3   the database has no finding of this id
├── KeyUnusable          2   a key cannot sign, or no signature can be checked with it
├── ServerProblem        5   a swarm server cannot be reached or started
│   └── ServerInUse     75   another study uses the server
├── RunBroken              1   a run cannot go on or cannot be scored; the study can
│   └── ScoreIncomplete    1   some episodes of a score brought no reward
├── RunLost                1   a server no longer has the run
├── RunRejected            1   a run is not what its arm claims
├── StudyBusy           75   another process works on this study
├── PlannerError           1   a planner has no valid answer
├── LanguageModelRefused   1   its server refuses the key, or has no such model, so waiting does not help
├── LanguageModelUnavailable  10   no usable answer for as long as the study waits for one: the study is paused
├── AnswerOverdue          10   an external planner has not answered by its deadline
├── AnswerRefused          2   the study cannot use an answer of an external planner
├── BudgetExceeded       7   the next launch or call would exceed the budget
├── StudyFailed         12   no arm of a study has a score, or nothing in it could be compared
├── EnvironmentBroken   13   the environment fails whatever the arms do: no run of the study can be scored
├── NotDetached          *   the detached process of a study ended at once; the code is that of the process
├── NothingToLearnFrom  14   every attempt of the base weights has the worst score: the study is paused
└── Underpowered         9   the study has too little power to find its target effect
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar


class ResearchError(Exception):
    """Base class of the researcher's errors.

    The message is one line: what is wrong and what to do about it.
    """

    exit_code: ClassVar[int] = 1


class TopicInvalid(ResearchError):
    exit_code = 2


class TopicNotUnderstood(TopicInvalid):
    """A topic with parts that cannot be read.

    `parts` are those parts, as in the topic. The message has several lines: each part with what to do about it, what
    was understood, and the nearest study as a command.
    """

    def __init__(self, message: str, parts: tuple[str, ...]) -> None:
        super().__init__(message)
        self.parts = parts


class SettingWithoutEffect(TopicInvalid):
    """A setting that nothing reads in any arm. `added` are the flags with which it has an effect."""

    def __init__(self, message: str, added: Sequence[str]) -> None:
        super().__init__(message)
        self.added = tuple(added)


class KeyUnusable(ResearchError):
    exit_code = 2


class StudyNotFound(ResearchError):
    exit_code = 3


class FindingNotFound(ResearchError):
    exit_code = 3


class ServerProblem(ResearchError):
    exit_code = 5


class ServerInUse(ServerProblem):
    exit_code = 75


class RunBroken(ResearchError):
    """A run that cannot go on or cannot be scored, in a study that can."""


class RunDiverged(RunBroken):
    """A run whose trained weights give no finite numbers."""


class ScoreIncomplete(RunBroken):
    """A score with episodes that brought no reward; it may be measured again."""


class RunLost(ResearchError):
    """A run that the server no longer has, so that nothing there can go on or be scored."""


class RunRejected(ResearchError):
    """A run that is not what its arm claims: it gets no score and no further attempt."""


class StudyBusy(ResearchError):
    exit_code = 75


class PlannerError(ResearchError):
    exit_code = 1


class LanguageModelRefused(ResearchError):
    """A refusal by the server of the language model.

    Once a person has fixed the cause, `resume` goes on.
    """

    exit_code = 1


class LanguageModelUnavailable(ResearchError):
    """An outage of the language model: no connection, no capacity, or only unusable answers. It never ends a study."""

    exit_code = 10


class AnswerOverdue(ResearchError):
    """A question that an external planner did not answer by its deadline. It never ends a study."""

    exit_code = 10


class AnswerRefused(ResearchError):
    """An answer of an external planner that the study cannot use; its question is open again."""

    exit_code = 2


class BudgetExceeded(ResearchError):
    exit_code = 7


class Underpowered(ResearchError):
    exit_code = 9


class NothingToLearnFrom(ResearchError):
    """A base score with the worst reward in every attempt. The study is paused until a person goes on all the same."""

    exit_code = 14


class StudyFailed(ResearchError):
    """A study that ended without a result; its status has the reason."""

    exit_code = 12


class EnvironmentBroken(ResearchError):
    """A failure of the environment's tasks or grader, which says nothing about any arm."""

    exit_code = 13


class NotDetached(ResearchError):
    """A detached process that ended before it had the study; the message is its last output."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.code = exit_code


def exit_code_of(error: Exception) -> int:
    """Return the exit code of a command that ends with a domain error."""
    from experiments_db import RecordNotFound, StoreLeaseLost
    from swarm.errors import SandboxUnavailable

    if isinstance(error, NotDetached):
        return error.code
    if isinstance(error, ResearchError):
        return error.exit_code
    codes = {RecordNotFound: 3, StoreLeaseLost: 75, SandboxUnavailable: 6}
    return next((code for kind, code in codes.items() if isinstance(error, kind)), 1)
