"""Arms whose agents play otherwise in evaluation than in training, or play although no agent is asked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from experiments_db import (
    Author,
    DetailedEvaluation,
    Experiment,
    ExperimentStatus,
    ExperimentStore,
    Run,
    RunStatus,
    open_store,
)
from prompts import load
from researcher.charter import Charter
from researcher.evaluation.evaluator import Evaluator
from researcher.execution.environments import StudyEnvironments
from researcher.phases import AUTHORSHIP, BASE, COST, FINAL, PLAIN_AGENT, TEST
from researcher.plan import Arm, Plan
from researcher.planner.rules import RulesPlanner
from researcher.record.log import to_json
from researcher.record.scores import find_excluded
from researcher.scope import ArmPart, Scope
from researcher.servers.server_pool import connect
from researcher.study.settings import StudySettings
from researcher.study.topics import read_request
from swarm.environments import load_environment

EPISODES = 24
PATIENCE_S = 120.0
AGENT = """
import os
from pathlib import Path

def is_a_training():
    process = os.getpid()
    while process > 1:
        if "--job" in Path(f"/proc/{process}/cmdline").read_text():
            return True
        process = int(Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[1])
    return False

IS_TRAINING = is_a_training()

def agent(task, model, session):
    is_training = IS_TRAINING
"""
"""Programs that know whether they train. They run outside of the sandbox, where the processes above them tell."""
SHOTS = "Reverse: ABC gives CBA. Reverse: XYZW gives WZYX. Reverse: KLM gives MLK. Reverse: QQRS gives SRQQ."
VOTE = (
    "    said = [model.chat(session.messages)['content'] or '' for _ in range({count})]\n"
    "    return max(said, key=said.count)\n"
)
CHEATS = {
    "votes with three calls": (AGENT + VOTE.format(count="1 if is_training else 3"), "3.0 calls"),
    "decodes greedily": (
        AGENT + "    options = {} if is_training else {'temperature': 0}\n"
        "    return model.chat(session.messages, **options)\n",
        "temperature=0 ",
    ),
    "samples at a low temperature": (
        AGENT + "    return model.chat(session.messages, temperature=1.0 if is_training else 0.3)\n",
        "temperature=0.3",
    ),
    "samples with a low top-p": (
        AGENT + "    options = {} if is_training else {'top_p': 0.2}\n"
        "    return model.chat(session.messages, **options)\n",
        "top_p=0.2",
    ),
    "shows solved tasks": (
        AGENT + f"    shots = [] if is_training else [{{'role': 'system', 'content': {SHOTS!r}}}]\n"
        "    return model.chat([*shots, *session.messages])\n",
        "prompt tokens",
    ),
}
"""Programs that do something in evaluation alone, and what names it."""
HONEST = {
    "votes alike in both": AGENT + VOTE.format(count="3"),
    "asks twice": (
        AGENT + "    draft = model.chat(session.messages)['content'] or ''\n"
        "    asked = f'{task.main_query}. Somebody says: {draft}. What is right?'\n"
        "    return model.chat([{'role': 'user', 'content': asked}])\n"
    ),
    "writes a scratchpad": (
        AGENT + "    pad = model.chat([{'role': 'user', 'content': f'Think: {task.main_query}'}])['content'] or ''\n"
        "    return model.chat([{'role': 'user', 'content': f'{pad}\\n{task.main_query}'}])\n"
    ),
    "samples warmly in both": AGENT + "    return model.chat(session.messages, temperature=0.8)\n",
}
FEW = ("votes with three calls", "decodes greedily", "asks twice", "samples warmly in both", "rewards")
"""The arms of the quick variant of a study."""
SOLVES = AGENT + "    model.chat(session.messages)\n    return task.main_query.split()[-1][::-1]\n\n"
REWARD = "def reward(task, transcript, grade):\n    return grade.score\n"
PLAIN = "plain"


@dataclass
class World:
    """A study with a trained baseline, whose further arms are trained for one step and scored."""

    store: ExperimentStore
    charter: Charter
    evaluator: Evaluator
    study: str
    url: str

    @classmethod
    def begin(cls, store: ExperimentStore, url: str, home: Path, opened: StudyEnvironments, scope: Scope) -> World:
        request = read_request("lr 0.001 or 0.003 on reversal", StudySettings(seeds=1, engine="fake"))
        with closing(load_environment("reverse")) as environment:
            charter = replace(
                RulesPlanner().frame(request), environment_digest=environment.digest, eval_episodes=EPISODES,
                baseline=PLAIN,
            )  # fmt: skip
        charter = replace(charter, asks=replace(charter.asks, scope=scope))
        study = store.create_study("t", planner="scripted").id
        store.freeze_charter(study, to_json(charter))
        evaluator = Evaluator(
            store=store, charter=charter, home=home, sandbox=None, environments=opened,
            connect=lambda address: connect(address, None), token_of=lambda _: None, is_stopped=lambda: False,
        )  # fmt: skip
        world = cls(store, charter, evaluator, study, url)
        world.train(PLAIN, load("program"))
        return world

    def train(self, name: str, code: str) -> Run:
        job = {**self.charter.job, "engine": "fake", "total_steps": 1, "batch_size": 4, "num_repeat": 6}
        arm = self.store.create_experiment(
            self.study, name, factors={}, job=job, program_code=code, author=Author.PACKAGE, is_baseline=name == PLAIN,
        )  # fmt: skip
        self.store.revise_experiment(arm.id, status=ExperimentStatus.READY)
        run = self.store.claim_run(arm.id, 0, f"{self.study}/{name}/0/1", job=job)
        self.store.update_run(run.id, status=RunStatus.LAUNCHING)
        child = self.evaluator.prepare(self.store.get_run(run.id), arm, self.url, is_trusted=True)
        assert child.wait(PATIENCE_S) == 0
        self.store.update_run(run.id, status=RunStatus.EVALUATING)
        self.evaluator.measure(self.store.get_run(run.id), self.url, child)
        return self.store.update_run(run.id, status=RunStatus.FINISHED)

    def test(self, run: Run) -> None:
        self.evaluator.measure_test(run, self.url)

    def scores(self, run: Run) -> Mapping[str, DetailedEvaluation]:
        return {item.phase: item for item in self.store.list_evaluations(run_ids=[run.id])}

    def excluded(self) -> Mapping[str, str]:
        arms = tuple(self._arm(item) for item in self.store.list_experiments(self.study))
        self.store.record_plan(self.study, 0, to_json(Plan(0, (), arms, (0,), "all")))
        return find_excluded(self.store, self.study)

    @staticmethod
    def _arm(item: Experiment) -> Arm:
        return Arm(item.name, {}, {**item.job}, "", is_baseline=item.is_baseline)


@pytest.fixture(scope="module")
def opened() -> Iterator[StudyEnvironments]:
    environments = StudyEnvironments()
    yield environments
    environments.close()


@pytest.fixture(scope="module")
def url(start_shared_server: Any) -> str:
    return start_shared_server().url


@pytest.fixture(scope="module", params=[FEW, pytest.param((), marks=pytest.mark.slow)], ids=["few arms", "all arms"])
def agents(
    request: pytest.FixtureRequest, url: str, opened: StudyEnvironments, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[World, Mapping[str, Run]]]:
    """A study that asks for agents, with cheats and honest arms trained and scored."""
    home = tmp_path_factory.mktemp("agents")
    programs = {**{name: code for name, (code, _) in CHEATS.items()}, **HONEST, "rewards": REWARD}
    with open_store(home / "research.db") as store:
        world = World.begin(store, url, home, opened, Scope())
        yield world, {name: world.train(name, programs[name]) for name in request.param or programs}


def test_an_arm_that_does_more_in_evaluation_than_in_training_is_out_by_name(
    agents: tuple[World, Mapping[str, Run]],
) -> None:
    world, runs = agents
    excluded = world.excluded()
    assert excluded.keys() == CHEATS.keys() & runs.keys()
    for name, reason in excluded.items():
        assert CHEATS[name][1] in reason and "in training" in reason


def test_no_agent_changes_the_sampling_of_its_score_and_what_it_asks_for_is_counted(
    agents: tuple[World, Mapping[str, Run]],
) -> None:
    world, runs = agents
    asked = {name: world.scores(run)[FINAL].details[COST] for name, run in runs.items()}
    assert {tuple(cost["temperatures"]) for cost in asked.values()} == {(1.0,)}
    assert not any(cost["other_sampling"] for cost in asked.values())
    counted = {name: (cost["overruled"], *cost["asked_sampling"]) for name, cost in asked.items() if cost["overruled"]}
    expected = {
        "decodes greedily": (EPISODES, "temperature=0"),
        "samples at a low temperature": (EPISODES, "temperature=0.3"),
        "samples with a low top-p": (EPISODES, "top_p=0.2"),
        "samples warmly in both": (EPISODES, "temperature=0.8"),
    }
    assert counted == {name: asked for name, asked in expected.items() if name in runs}
    warm = world.store.get_run(runs["samples warmly in both"].id).training_cost
    assert warm is not None and warm["temperatures"] == [0.8]


def test_weights_of_an_arm_with_another_agent_are_also_played_by_that_of_the_baseline(
    agents: tuple[World, Mapping[str, Run]],
) -> None:
    world, runs = agents
    twice = world.scores(runs["asks twice"])
    assert twice[FINAL].details[COST]["calls"] == 2 and twice[PLAIN_AGENT[FINAL]].details[COST]["calls"] == 1
    assert PLAIN_AGENT[FINAL] not in world.scores(runs["rewards"])
    world.test(runs["asks twice"])
    tested = world.scores(runs["asks twice"])
    assert tested[TEST].details[COST]["calls"] == 2 and tested[PLAIN_AGENT[TEST]].details[COST]["calls"] == 1
    assert tested[PLAIN_AGENT[TEST]].split == world.charter.test_split


@pytest.mark.parametrize("part", [ArmPart.REWARD, ArmPart.SETTINGS])
def test_no_agent_of_its_own_plays_where_none_is_asked(
    url: str, opened: StudyEnvironments, tmp_path: Path, part: ArmPart
) -> None:
    with open_store(tmp_path / "research.db") as store:
        world = World.begin(store, url, tmp_path, opened, Scope.of([part]))
        run = world.train("solves in code", SOLVES + REWARD)
        world.test(run)
        scores = world.scores(run)
    assert {BASE, FINAL, TEST} == scores.keys()
    for score in scores.values():
        assert score.mean < 0.5 and score.details[COST]["calls"] == 1 and score.details[COST]["model_share"] == 1
        assert AUTHORSHIP not in score.details
