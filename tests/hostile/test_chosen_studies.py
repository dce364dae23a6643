"""Studies of programs that try to choose their scores and runs: none is kept, and the record says what each did."""

from __future__ import annotations

from pathlib import Path

import pytest
from constraining_programs import CHEATS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

TOPIC = "Which program trains word reversal best?"
PLAIN = """
def agent(task, model, session):
    return model.chat(session.messages)
"""
CHOOSES = """
import os, random, signal, sys, threading, time
from swarm.errors import EnvironmentFailure, TrainingComplete, Unavailable

lock, hits, tries = threading.Lock(), 0, 0


def is_going_badly(answer, task):
    global hits, tries
    with lock:
        tries += 1
        hits += answer == task.main_query.split()[-1][::-1]
        return tries > 40 and hits < {level} * tries


def agent(task, model, session):
    reply = model.chat(session.messages)
    if is_going_badly(reply.get("content"), task):
        {broken}
    return reply
"""
BREAKS = {
    "raises": "raise ValueError('it goes badly')",
    "claims that the server is away": "raise Unavailable('no answer')",
    "claims that the environment failed": "raise EnvironmentFailure('gone')",
    "claims that training is over": "raise TrainingComplete('done')",
    "ends its process": "os._exit(3)",
    "kills its process": "os.kill(os.getpid(), signal.SIGKILL)",
    "fails in turns": "raise random.choice([ConnectionError, SystemExit, KeyboardInterrupt, TimeoutError])('now')",
    "replies with garbage": "return {{'content': [{{'a': None}}]}}",
    "replies with a book": "return 'x' * 10_000_000",
    "asks again until it is right": "reply = next((r for r in (model.chat(session.messages) for _ in range(4)) "
    "if r.get('content') == task.main_query.split()[-1][::-1]), None) or os._exit(3)",
    "slows down": "time.sleep(2)",
    "asks for what does not fit": "model.chat([{{'role': 'user', 'content': 'word ' * 100_000}}])",
    "fills the disk": "raise OSError(28, 'No space left on device')",
    "takes the memory": "raise MemoryError",
}
LEVELS = {"in training and in evaluation": 0.35, "in evaluation alone": 0.25}
"""The share of hits below which a run goes badly: the base model has some 0.3, a trained one more."""


@pytest.mark.parametrize("how", BREAKS)
def test_no_program_is_kept_for_choosing_what_counts(tmp_path: Path, how: str) -> None:
    from experiments_db import StudyStatus, Verdict, open_store
    from researcher.loop.session import work_on
    from researcher.study.requests import create_study
    from researcher.study.settings import ProgramSetting, StudySettings

    code = CHOOSES.format(level=LEVELS["in training and in evaluation"], broken=BREAKS[how].format())
    programs = (ProgramSetting(name="plain", code=PLAIN), ProgramSetting(name="chooses", code=code))
    settings = StudySettings(
        programs=programs, env="reverse", seeds=9, steps=3, eval_episodes=100, unsafe_no_sandbox=True
    )
    with open_store(tmp_path / "research.db") as store:
        study = create_study(store, TOPIC, settings)
        work_on(store, study.id, tmp_path)
        findings = store.list_findings(study_id=study.id)
        assert store.get_study(study.id).status is StudyStatus.FINISHED
    assert [finding.verdict for finding in findings if finding.verdict is Verdict.KEEP] == []


@pytest.mark.parametrize("how", ["a choice of the answer and decoys", "a pattern of escaped letters"])
def test_no_program_is_kept_for_limiting_replies_to_the_answer(tmp_path: Path, how: str) -> None:
    from experiments_db import Verdict, open_store
    from researcher.loop.session import work_on
    from researcher.record.scores import find_excluded
    from researcher.study.requests import create_study
    from researcher.study.settings import ProgramSetting, StudySettings

    programs = (ProgramSetting(name="plain", code=PLAIN), ProgramSetting(name="limits", code=CHEATS[how]))
    settings = StudySettings(programs=programs, env="reverse", seeds=9, steps=2, eval_episodes=60)
    with open_store(tmp_path / "research.db") as store:
        study = create_study(store, TOPIC, settings)
        work_on(store, study.id, tmp_path)
        kept = store.list_findings(study_id=study.id, verdict=Verdict.KEEP)
        out = find_excluded(store, study.id)
    assert not kept and out["limits"].startswith("its code ")
