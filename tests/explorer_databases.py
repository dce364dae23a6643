"""Databases that the explorer must show whatever is in them, or say what is wrong with them."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from explorer_study import HOSTILE, add_study, create_database

from experiments_db import (
    ExperimentStore,
    NoteKind,
    RecordedTraining,
    RunStatus,
    ServerEvent,
    SystemPoint,
    TrainedEpisode,
    TrainedEpisodeSummary,
    TrainingNews,
    TrainingPoint,
    TrainingScore,
    open_store,
)

NAMES = (
    HOSTILE,
    "<img src=x onerror=alert(2)>",
    "[link](javascript:alert(3)) ![picture](http://192.0.2.1/a.png) ![more](https://example.org/b.png)",
    "$x^2$ `code` ~~gone~~ :red-badge[no] :material/home: {{ 7 * 7 }} # title",
    "\u202etxt.exe \x1b[31mred\x1b[0m \x00 \ud7ff line\nbreak",
    '=HYPERLINK("http://192.0.2.1") \'quote\' "double" \\ ; DROP TABLE runs; --',
    "long " * 200,
    " ",
)
"""Texts of users, models and servers, each of which some program would take for something else."""


def add_training(store: ExperimentStore, number: int, name: str, *, status: str = "COMPLETE") -> RecordedTraining:
    """A training with curves (one of them without any finite value), scores, an episode, events and readings."""
    training = store.record_training(
        f"ledger-{number}", project=name, experiment=name, model=name, engine="local", home=name, launch_key=None,
        settings={"total_steps": 4, name: name}, changes={"3": {name: 1e-4}}, status=status, reason=name, step=3,
        begun_at=1_795_000_000.0 + number,
    )  # fmt: skip
    sample = {
        "token_ids": [1, 2], "tokens": ["A", name], "loss_mask": [0, 1], "logprobs": [0.0, -0.5],
        "weight_versions": [-1, 0], "turn_indices": [0, 0],
    }  # fmt: skip
    summary = TrainedEpisodeSummary(training.id, "e1", 2, "best", name, name, 3, 1.0, True, 0.75, 1, 5.0)
    points = (
        TrainingPoint(training.id, metric, step, value, 1_795_000_010.0 + step)
        for metric, values in {
            "critic/score/mean": (0.1, None, 0.3),
            name: (None, None, None),
            "eval/mean": (1e308,),
        }.items()
        for step, value in enumerate(values, 1)
    )
    news = TrainingNews(
        points=tuple(points),
        scores=(TrainingScore(training.id, 2, 0.92, 0.04, 50, 46, 3.0),),
        episodes=(TrainedEpisode(summary, ({"role": name, "content": name},), (sample,)),),
        events=(ServerEvent(training.id, 1, name, {"why": name}, 4.0),),
        system=(SystemPoint(training.id, name, 1_795_000_011.0, 0.5),),
    )
    store.add_to_training(training.id, news)
    return training


def add_hostile_study(store: ExperimentStore) -> str:
    """A study whose every text is hostile, with an arm for each of them."""
    study = store.create_study(NAMES[1], planner=NAMES[2])
    document = {"question": NAMES[3], "metric": NAMES[1], "search_split": NAMES[0], "assumptions": list(NAMES)}
    store.freeze_charter(study.id, document)
    for number, name in enumerate(NAMES):
        hypothesis = store.create_hypothesis(study.id, f"h{number}", f"{name}.", rationale=name)
        arm = store.create_experiment(
            study.id, f"{name}.", factors={f"{name}.": name}, job={f"{name}.": name}, program_code=name,
            hypothesis_id=hypothesis.id, is_baseline=not number, purpose=name, note=name,
        )  # fmt: skip
        run = store.claim_run(arm.id, 0, f"{study.id}/{number}", job={name: name})
        for status in (RunStatus.LAUNCHING, RunStatus.RUNNING):
            store.update_run(run.id, status=status, server_url=name, environment={name: name})
        store.record_metrics(run.id, {1: {f"{name}.": 0.5, "critic/score/mean": 0.5}})
        store.record_evaluation(
            run.id, phase="final", split=NAMES[0], metric=name + ".", weight_version=1, episodes=10, successes=5,
            mean=0.5, stderr=0.1, evaluator_hash=name + ".",
        )  # fmt: skip
        store.update_run(run.id, status=RunStatus.FINISHED, exit_reason=name)
        store.append_event(study.id, f"{name}.", name, run_id=run.id)
        store.write_note(study.id, f"n{number}", NoteKind.LESSON, f"{name}.", iteration=0, author=f"{name}.")
    store.record_decision(study.id, 0, action=f"{NAMES[0]}.", reason=NAMES[1])
    return study.id


def add_strange_numbers(store: ExperimentStore) -> None:
    """A study with runs whose curves have gaps, no finite value, huge ones, one point, or do not exist."""
    study = store.create_study("What do strange numbers look like?", planner="rules")
    arm = store.create_experiment(study.id, "arm", factors={"lr": 1e-300}, job={}, is_baseline=True)
    curves: tuple[dict[int, dict[str, float]], ...] = (
        {step: {"critic/score/mean": math.nan, "actor/entropy": math.inf} for step in range(1, 4)},
        {step: {"critic/score/mean": math.nan if step % 2 else 0.5, "eval/mean": -math.inf} for step in range(1, 9)},
        {1: {"critic/score/mean": 1e308, "actor/entropy": -1e308}, 2: {"critic/score/mean": -1e308}},
        {2**40: {"critic/score/mean": 0.0}},
        {},
    )
    for seed, curve in enumerate(curves):
        run = store.claim_run(arm.id, seed, f"{study.id}/{seed}")
        store.update_run(run.id, status=RunStatus.LAUNCHING)
        store.update_run(run.id, status=RunStatus.RUNNING)
        if curve:
            store.record_metrics(run.id, curve)
        store.update_run(run.id, status=RunStatus.FAILED, exit_reason="the loss is not finite")


def add_hostile_records(store: ExperimentStore, _: Path) -> None:
    add_hostile_study(store)
    for number, name in enumerate(NAMES):
        training = add_training(store, number, f"{name}.")
        store.label_training(training.id, tags=[name[:40] + "."], note=name)


FILLED: dict[str, Callable[[ExperimentStore, Path], object] | None] = {
    "empty": None,
    "one study": add_study,
    "a training without a study": lambda store, _: add_training(store, 0, "alone"),
    "hostile names and tokens": add_hostile_records,
    "strange numbers": lambda store, _: add_strange_numbers(store),
}
"""Readable databases, by what is in them."""


def make_database(home: Path, kind: str) -> Path:
    """A database of this kind under `home`: one of `FILLED`, or one that cannot be read."""
    home.mkdir(parents=True, exist_ok=True)
    if kind in FILLED:
        return create_database(home, FILLED[kind])
    path = home / "research.db"
    match kind:
        case "of another version":
            with open_store(path):
                pass
            with closing(sqlite3.connect(path)) as connection, connection:
                connection.execute("UPDATE experiments_db_version SET digest = '0123abcd'")
        case "of another program":
            with closing(sqlite3.connect(path)) as connection, connection:
                connection.execute("CREATE TABLE notes (text)")
        case "no database":
            path.write_text(HOSTILE * 100)
        case "cut off":
            create_database(home, add_study)
            path.write_bytes(path.read_bytes()[:20_000])
        case "missing":
            pass
        case _:
            raise ValueError(f"there is no database of the kind {kind!r}")
    return path
