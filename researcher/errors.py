"""Failures the researcher names; each has the process exit code that the CLI returns for it.

ResearchError            1
├── TopicInvalid         2   empty topic, unknown task, contradicting flags
│   └── TopicNotUnderstood   2   parts of the topic that no setting, environment or option stands for
├── StudyNotFound        3
├── ServerProblem        5   a swarm server cannot be reached or started
│   └── ServerInUse     75   another study uses the server
├── RunBroken              1   a run cannot go on or cannot be scored; the study can
│   └── ScoreIncomplete    1   some episodes of a score brought no reward
├── RunLost                1   a server no longer has the run
├── StudyBusy           75   another process works on this study
├── PlannerError           1   a planner has no valid answer
├── LanguageModelRefused   1   its server refuses the key, or has no such model: nothing that waiting mends
├── LanguageModelUnavailable  10   no usable answer for as long as the study waits for one: the study is paused
├── BudgetExceeded       7   the next launch or call would exceed the budget
├── NothingToExtend      2   a study that is not finished, or has nothing left to compare
├── AlphaSpent          11   the charter has no alpha for another plan
├── StudyFailed         12   no arm of a study has a score, or nothing in it could be compared
├── EnvironmentBroken   13   the environment fails whatever the arms do: no run of the study can be scored
├── NotDetached          *   the process that was to work on a study ended at once; its own exit code
└── Underpowered         9   the study would hardly find what it looks for
"""

from __future__ import annotations

from typing import ClassVar


class ResearchError(Exception):
    """Base of the tree. The message is one line: what is wrong and what to do about it."""

    exit_code: ClassVar[int] = 1


class TopicInvalid(ResearchError):
    exit_code = 2


class TopicNotUnderstood(TopicInvalid):
    """`parts` are those parts of the topic, as they stand there. The message has several lines: each part with what to
    do about it, what would be understood, and the nearest study as a command."""

    def __init__(self, message: str, parts: tuple[str, ...]) -> None:
        super().__init__(message)
        self.parts = parts


class StudyNotFound(ResearchError):
    exit_code = 3


class ServerProblem(ResearchError):
    exit_code = 5


class ServerInUse(ServerProblem):
    exit_code = 75


class RunBroken(ResearchError):
    """This run cannot go on or cannot be scored; the study can."""


class ScoreIncomplete(RunBroken):
    """Some episodes of a score brought no reward; it may be measured again."""


class RunLost(ResearchError):
    """The server no longer has the run: nothing is left of it there that could go on or be scored."""


class StudyBusy(ResearchError):
    exit_code = 75


class PlannerError(ResearchError):
    exit_code = 1


class LanguageModelRefused(ResearchError):
    """Once a person has mended what is refused, `resume` goes on."""

    exit_code = 1


class LanguageModelUnavailable(ResearchError):
    """An outage: no connection, no capacity, or only answers that cannot be used. It never ends a study."""

    exit_code = 10


class BudgetExceeded(ResearchError):
    exit_code = 7


class Underpowered(ResearchError):
    exit_code = 9


class NothingToExtend(ResearchError):
    exit_code = 2


class AlphaSpent(ResearchError):
    exit_code = 11


class StudyFailed(ResearchError):
    """The study has come to its end and has no result; why is on record as its status."""

    exit_code = 12


class EnvironmentBroken(ResearchError):
    """The tasks or the grader of a study's environment fail, which says nothing of any arm."""

    exit_code = 13


class NotDetached(ResearchError):
    """The message is what the process said last."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.code = exit_code
