"""One held-out task before and after training: the conversations of the same agent with both weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from experiments_db import DetailedEvaluation, EpisodeSummary, ExperimentStore, JsonObject, Run
from researcher.phases import BASE, FINAL, MEASURED_ON
from researcher.planner.texts import message_as_text

MESSAGE_CHARS = 1200
"""The characters of one message that are shown."""
MOST_RUNS = 12
"""The runs that are looked at; usually the first one has attempts that were kept."""
MOST_MESSAGES = 12
"""The messages of one attempt that are shown, the last ones, besides those that both attempts begin with."""


@dataclass(frozen=True, slots=True)
class ShownMessage:
    role: str
    text: str


@dataclass(frozen=True, slots=True)
class ShownAttempt:
    """One attempt at the task.

    `messages` are those after the common beginning; `left_out` says how many of them are not shown.
    """

    run_id: str
    score: float | None
    is_success: bool | None
    messages: tuple[ShownMessage, ...]
    left_out: int


@dataclass(frozen=True, slots=True)
class ShownConversation:
    """The attempts of one arm and seed at one held-out task, before and after training.

    `opening` are the messages that both attempts begin with. `rose`, `fell` and `same` count the tasks with both
    attempts kept, by what became of their score. `before_mean` and `after_mean` are the means over all `episodes`.
    """

    arm: str
    seed: int
    task_id: str
    opening: tuple[ShownMessage, ...]
    before: ShownAttempt
    after: ShownAttempt
    rose: int
    fell: int
    same: int
    episodes: int
    before_mean: float
    after_mean: float


def find_conversation(
    store: ExperimentStore, runs: Sequence[tuple[str, Run]], split: str, *, sign: float
) -> ShownConversation | None:
    """Return the conversation of the first of these arms with their runs for which both attempts were kept.

    The task is the first whose score changed as the mean of the run did, else the first that was kept. `sign` is -1 if
    the smaller score is the better one.
    """
    for arm, run in runs[:MOST_RUNS]:
        base, final = (store.find_evaluation(run.id, phase, split) for phase in (BASE, FINAL))
        if base is not None and final is not None and (found := _of_run(store, arm, run, base, final, sign)):
            return found
    return None


def _of_run(
    store: ExperimentStore, arm: str, run: Run, base: DetailedEvaluation, final: DetailedEvaluation, sign: float
) -> ShownConversation | None:
    base_run = str(base.details.get(MEASURED_ON, run.id))
    before, after = (
        _kept(store, of_run, score)
        for of_run, score in ((base_run, base), (run.id, final))
    )  # fmt: skip
    order = dict.fromkeys(str(task) for task in final.details.get("tasks", ()))
    common = [task for task in (order or sorted(after)) if task in before and task in after]
    if not common:
        return None
    changes = {task: sign * ((after[task].reward or 0.0) - (before[task].reward or 0.0)) for task in common}
    direction = sign * (final.mean - base.mean)
    chosen = next((task for task in common if changes[task] * direction > 0), common[0])
    opening, first, second = _attempts(store, before[chosen], after[chosen])
    return ShownConversation(
        arm=arm,
        seed=run.seed,
        task_id=chosen,
        opening=opening,
        before=first,
        after=second,
        rose=sum(change > 0 for change in changes.values()),
        fell=sum(change < 0 for change in changes.values()),
        same=sum(change == 0 for change in changes.values()),
        episodes=final.episodes,
        before_mean=base.mean,
        after_mean=final.mean,
    )


def _kept(store: ExperimentStore, run_id: str, score: DetailedEvaluation) -> dict[str, EpisodeSummary]:
    """Return the kept attempts of one score by task."""
    kept = store.list_episodes(run_id, kind="eval", step=score.weight_version, limit=None)
    return {item.task_id: item for item in kept if item.split == score.split}


def _attempts(
    store: ExperimentStore, before: EpisodeSummary, after: EpisodeSummary
) -> tuple[tuple[ShownMessage, ...], ShownAttempt, ShownAttempt]:
    """Return the messages that both attempts begin with, and both attempts without them."""
    whole = [
        [_read(message) for message in store.get_episode(item.run_id, item.episode_id).messages]
        for item in (before, after)
    ]
    opening = [one for one, _ in takewhile(lambda pair: pair[0] == pair[1], zip(*whole, strict=False))]
    # What the model itself said is never a part of the task, even if both attempts say the same.
    opening = list(takewhile(lambda message: message.role != "assistant", opening))
    first, second = (
        ShownAttempt(
            item.run_id,
            item.reward,
            item.is_success,
            tuple(rest[-MOST_MESSAGES:]),
            max(0, len(rest) - MOST_MESSAGES),
        )
        for item, messages in zip((before, after), whole, strict=True)
        if (rest := messages[len(opening) :]) is not None
    )
    return tuple(opening), first, second


def _read(message: JsonObject) -> ShownMessage:
    """Return a message as a role and a text of limited length."""
    thought, text = message.get("reasoning_content"), message_as_text(message)
    if thought:
        text = f"(reasoning) {thought}\n{text}".strip()
    if len(text) > MESSAGE_CHARS:
        text = f"{text[:MESSAGE_CHARS]} … ({len(text) - MESSAGE_CHARS} characters left out)"
    return ShownMessage(str(message.get("role", "?")), text)
