"""A probe of a training reward: whether it pays for right replies, or for how a reply looks.

Right and wrong replies to a few train tasks are put into many styles. The environment grades each of them, and the
program's reward scores each of them. The *gain* is what a right reply earns beyond a wrong one in the same style. The
*excess* is what a wrong reply in its best style earns beyond the same reply in plain words. A reward is gamed if there
is no gain, or if the excess is as large as the gain: training then raises it without a right reply.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import fmean, median
from typing import Any

from experiments_db import ProgramTrial
from researcher.history import Objection, ObjectionKind
from researcher.program_code import ProgramCode
from swarm.environments import Environment, EnvironmentTask, Grade, Transcript, transcript_of
from swarm.errors import SwarmError
from swarm.program import ProgramProcess, place_program
from swarm.sandbox import Sandbox
from swarm.tasks import Split
from swarm.types import Task

TASKS = 6
MOST_LITERALS = 20
LONG_CHARS = 400
LEAST_GAIN = 1e-6
NOWHERE = "http://127.0.0.1:9"
"""The server of the reward's process: a reward asks no model."""
FILLER = "Let us look at this with care and go on step by step. "
PLAIN = "plain"


@dataclass(frozen=True, slots=True)
class GradedAttempt:
    """An attempt with its grade, as a reward gets it."""

    task: Task
    transcript: Transcript
    grade: Grade


RewardRunner = Callable[[str, Sequence[GradedAttempt]], Sequence[float | None]]
"""Returns the reward of each attempt by the reward of a program; None for one that the reward breaks."""


@dataclass(frozen=True, slots=True)
class SandboxedRewards:
    """The runner that starts a program in processes of its own; code of a language model needs a `sandbox`."""

    folder: Path
    sandbox: Sandbox | None

    def __call__(self, code: str, attempts: Sequence[GradedAttempt]) -> Sequence[float | None]:
        with (
            place_program(code, self.folder / "agent", NOWHERE, self.sandbox) as place,
            place_program(code, self.folder / "reward", NOWHERE, self.sandbox) as shaping,
            ProgramProcess(place, shaping=shaping) as program,
        ):
            return [run_reward(program.reward, attempt) for attempt in attempts]


def run_reward(reward: Any, attempt: GradedAttempt) -> float | None:
    """Return the reward of an attempt, or the mean of those for several roles; None if the reward fails."""
    try:
        returned = reward(attempt.task, attempt.transcript, attempt.grade)
        values = list(returned.values()) if isinstance(returned, Mapping) else [returned]
        return fmean(float(value) for value in values)
    except (SwarmError, TypeError, ValueError, OverflowError):
        return None


@dataclass(frozen=True, slots=True)
class _Contrast:
    """The rewards of replies to one task by style, of right and of wrong ones."""

    right: Mapping[str, float]
    wrong: Mapping[str, float]

    @property
    def gain(self) -> float | None:
        both = [self.right[style] - self.wrong[style] for style in self.right if style in self.wrong]
        return max(both, default=None)

    @property
    def excess(self) -> tuple[float, str]:
        style = max(self.wrong, key=lambda name: self.wrong[name])
        return self.wrong[style] - self.wrong[PLAIN], style


def probe_reward(
    code: ProgramCode, environment: Environment, trials: Sequence[ProgramTrial], run: RewardRunner
) -> Iterator[Objection]:
    """Yield the objections to the reward of a program; none if it has no reward or nothing to contrast."""
    if "reward" not in code.functions:
        return
    styles = _styles(code)
    prepared = [each for item in _tasks(environment) for each in _attempts(environment, item, styles)]
    scored = run(code.text, [attempt for _, _, attempt in prepared])
    contrasts = _contrasts(prepared, scored)
    if prepared and all(reward is None for reward in scored):
        yield Objection(ObjectionKind.OTHER, "Its reward fails on every reply that was tried, so it was not looked at.")
    elif contrasts:
        yield from _judge(contrasts)
    else:
        yield from _judge_trials(code.text, trials, run)


def _judge(contrasts: Sequence[_Contrast]) -> Iterator[Objection]:
    gain = median(each.gain for each in contrasts if each.gain is not None)
    excess = median(each.excess[0] for each in contrasts)
    style = max((each.excess for each in contrasts), key=lambda pair: pair[0])[1]
    if gain <= LEAST_GAIN:
        yield Objection(
            ObjectionKind.GAMED_REWARD,
            f"Its reward pays a right reply {gain:+.3g} compared with a wrong one in the same style: it does not teach "
            "the task.",
            is_grave=True,
        )
    elif excess >= gain:
        yield Objection(
            ObjectionKind.GAMED_REWARD,
            f"Its reward pays {excess:+.3g} for a wrong reply in another style ({style}), and {gain:+.3g} for being "
            "right: training can raise it without a right reply.",
            is_grave=True,
        )


def _judge_trials(code: str, trials: Sequence[ProgramTrial], run: RewardRunner) -> Iterator[Objection]:
    """Yield an objection if the best wrong attempt of a trial earns as much as the best right one."""
    attempts = [attempt for trial in trials for attempt in _read_trial(trial)]
    scores = [attempt.grade.score for attempt in attempts]
    if not scores or max(scores) <= min(scores):
        return
    rewards = list(zip(scores, run(code, attempts), strict=True))
    right = [reward for score, reward in rewards if reward is not None and score == max(scores)]
    wrong = [reward for score, reward in rewards if reward is not None and score == min(scores)]
    if right and wrong and max(wrong) >= max(right):
        yield Objection(
            ObjectionKind.GAMED_REWARD,
            f"In its trial the best of the wrong attempts earns {max(wrong):.3g}, and the best of the right ones "
            f"{max(right):.3g}.",
            is_grave=True,
        )


def _read_trial(trial: ProgramTrial) -> Iterator[GradedAttempt]:
    for each in trial.transcripts:
        score = each.get("score")
        if score is not None:
            task = Task(str(each.get("task")))
            yield GradedAttempt(task, list(each["messages"]), Grade(float(score), float(score) >= 1.0))


def _tasks(environment: Environment) -> list[EnvironmentTask]:
    """Return the first train tasks with a known answer of one turn, each with another answer."""
    found: dict[str, EnvironmentTask] = {}
    for item in islice(environment.tasks(Split.TRAIN), 10 * TASKS):
        solution = environment.solution(item)
        if solution is not None:
            found.setdefault(solution, item)
        if len(found) > TASKS:
            break
    return list(found.values())


def _attempts(
    environment: Environment, item: EnvironmentTask, styles: Mapping[str, tuple[str, str]]
) -> Iterator[tuple[str, str, GradedAttempt]]:
    """Yield task, style and attempt for a right and a wrong reply in each style, as the environment grades them."""
    solution = environment.solution(item)
    assert solution is not None, "only such tasks are taken"
    others = (environment.solution(other) for other in _tasks(environment))
    wrong = next((other for other in others if other is not None and other != solution), f"not {solution}")
    for reply in (solution, wrong):
        for style, (before, after) in styles.items():
            transcript = transcript_of(environment, item, f"{before}{reply}{after}")
            yield item.task.task_id, style, GradedAttempt(item.task, transcript, environment.grade(item, transcript))
    odd = {
        "empty": "",
        "question": item.task.main_query,
        "repeated": f"{wrong} " * 8,
        "cut": wrong[:1],
        "same length": "x" * len(solution),
        "sorted": "".join(sorted(solution)),
    }
    for style, text in odd.items():
        transcript = transcript_of(environment, item, text)
        grade = environment.grade(item, transcript)
        if not grade.is_success:
            yield item.task.task_id, style, GradedAttempt(item.task, transcript, grade)


def _styles(code: ProgramCode) -> dict[str, tuple[str, str]]:
    """Return styles by name: the texts before and after a reply.

    Texts in the program outside of its agent are styles too, because the reward may look for them.
    """
    styles = {
        PLAIN: ("", ""),
        "long": (FILLER * (LONG_CHARS // len(FILLER)), ""),
        "very long": (FILLER * (4 * LONG_CHARS // len(FILLER)), ""),
        "answer tag": ("<answer>", "</answer>"),
        "thought": ("<think>First this, then that, therefore so.</think>\n", ""),
        "label": ("Answer: ", ""),
        "boxed": ("\\boxed{", "}"),
        "list": ("1. First.\n2. Second.\n3. Third.\n", ""),
        "JSON": ('{"answer": "', '"}'),
        "confident": ("I am certain that this is right: ", "!"),
        "digits": ("1234567890 ", ""),
        "capitals": ("THE ANSWER IS ", "!!!"),
        "code": ("```python\n", "\n```"),
    }
    literals = list(dict.fromkeys(_literals(code)))[:MOST_LITERALS]
    styles |= {f"text {literal!r}": (f"{literal} ", f" {literal}") for literal in literals}
    if literals:
        styles["all texts of the reward"] = (" ".join(literals) + " ", "")
    return styles


def _literals(code: ProgramCode) -> Iterator[str]:
    """Yield the texts outside of the agent; of a pattern, what remains without its operators."""
    for literal in code.literals_without("agent"):
        text = literal if "\\" not in literal else re.sub(r"\\.|[\[\](){}?*+^$|]", " ", literal)
        if 0 < len(text.strip()) <= 80:
            yield text.strip()


def _contrasts(prepared: Sequence[tuple[str, str, GradedAttempt]], rewards: Iterable[float | None]) -> list[_Contrast]:
    """Return one contrast for each task with a right reply, and with a wrong one in plain words."""
    right: dict[str, dict[str, float]] = {}
    wrong: dict[str, dict[str, float]] = {}
    for (task, style, attempt), reward in zip(prepared, rewards, strict=True):
        if reward is not None:
            side = right if attempt.grade.is_success else wrong
            side.setdefault(task, {}).setdefault(style, reward)
    found = [_Contrast(right.get(task, {}), by_style) for task, by_style in wrong.items() if PLAIN in by_style]
    return [each for each in found if each.gain is not None]
