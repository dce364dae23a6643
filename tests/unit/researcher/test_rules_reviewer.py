"""The reviewer without a language model finds gamed rewards and cheating agents, and lets honest programs pass."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from reviewed_programs import CHEATING_AGENTS, GAMED_REWARDS, HONEST, PLAIN_AGENT

from experiments_db import Author, ExperimentStatus, ExperimentStore, Operator, RunStatus
from researcher.charter import Charter
from researcher.errors import PlannerError
from researcher.history import Objection, ObjectionKind
from researcher.phases import BASE, FINAL
from researcher.planner.rules import RulesPlanner
from researcher.record.costs import AttemptCost, cost_to_json
from researcher.reviewer.reward_probe import GradedAttempt, SandboxedRewards, run_reward
from researcher.reviewer.rules import RulesReviewer
from researcher.study.settings import read_settings
from researcher.study.topics import read_request
from swarm.environments import Environment, load_environment
from swarm.errors import ProgramFailure
from swarm.guard import REWARD, SUCCESS
from swarm.tasks import Split

HOSTILE = Path(__file__).parents[2] / "hostile" / "programs"


@pytest.fixture(scope="module")
def environment() -> Iterator[Environment]:
    opened = load_environment("reverse")
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def charter() -> Charter:
    return RulesPlanner().frame(read_request("learning rate 1e-3 or 3e-3 for word reversal", read_settings({})))


def run_here(code: str, attempts: Sequence[GradedAttempt]) -> list[float | None]:
    """Run the reward of a program of this file in this process, which is quicker than one of its own."""
    module: dict[str, Any] = {}
    exec(compile(code, "program.py", "exec"), module)

    def reward(*given: Any) -> Any:
        try:
            return module["reward"](*given)
        except (AttributeError, IndexError) as error:
            # The process of a program turns every error into this one.
            raise ProgramFailure(str(error)) from error

    return [run_reward(reward, attempt) for attempt in attempts]


def add_arm(store: ExperimentStore, code: str, **details: Any) -> tuple[str, str]:
    """Return the ids of a study and of its arm with this program."""
    study = store.create_study("t", planner="rules").id
    arm = store.create_experiment(study, "arm", factors={}, job={"engine": "fake"}, **details)
    store.revise_experiment(arm.id, program_code=code, author=Author.LANGUAGE_MODEL, status=ExperimentStatus.READY)
    return study, arm.id


def review(
    store: ExperimentStore, environment: Environment, charter: Charter, code: str, **details: Any
) -> tuple[Objection, ...]:
    study, _ = add_arm(store, code, **details)
    return look(store, environment, charter, study)


def look(store: ExperimentStore, environment: Environment, charter: Charter, study: str) -> tuple[Objection, ...]:
    return RulesReviewer(store, study, lambda _: environment, run_here).review(charter, "arm")


def grave(objections: Sequence[Objection]) -> set[ObjectionKind]:
    return {each.kind for each in objections if each.is_grave}


def with_answers(code: str, environment: Environment) -> str:
    """Return the program with held-out answers put into its text."""
    items = list(islice(environment.tasks(Split.VALIDATION), 40))
    answers = {item.task.main_query: environment.solution(item) for item in items}
    digests = {hashlib.sha256(key.encode()).hexdigest()[:12]: value for key, value in answers.items()}
    table = base64.b64encode(json.dumps(answers).encode()).decode()
    examples = "\n".join(f"{key} is {value}" for key, value in answers.items())
    texts = {"TABLE": repr(answers), "DIGESTS": repr(digests), "OPAQUE": table, "EXAMPLES": examples}
    for name, text in texts.items():
        code = code.replace(f"{{{name}}}", text)
    return code.replace("{{", "{").replace("}}", "}")


@pytest.mark.parametrize("kind", GAMED_REWARDS)
def test_reward_that_can_be_gamed_is_found(
    store: ExperimentStore, environment: Environment, charter: Charter, kind: str
) -> None:
    assert ObjectionKind.GAMED_REWARD in grave(review(store, environment, charter, PLAIN_AGENT + GAMED_REWARDS[kind]))


@pytest.mark.parametrize("kind", CHEATING_AGENTS)
def test_agent_that_cheats_is_found(
    store: ExperimentStore, environment: Environment, charter: Charter, kind: str
) -> None:
    code = with_answers(CHEATING_AGENTS[kind], environment)
    assert grave(review(store, environment, charter, code))


@pytest.mark.parametrize("kind", HONEST)
def test_honest_program_gets_no_grave_objection(
    store: ExperimentStore, environment: Environment, charter: Charter, kind: str
) -> None:
    assert not grave(review(store, environment, charter, HONEST[kind]))


@pytest.mark.parametrize("path", sorted(HOSTILE.glob("*.py")), ids=lambda path: path.stem)
def test_hostile_programs_are_objected_to_by_what_they_reach_for(
    store: ExperimentStore, environment: Environment, charter: Charter, path: Path
) -> None:
    found = grave(review(store, environment, charter, path.read_text()))
    assert found & {ObjectionKind.LEAK, ObjectionKind.OTHER}


def test_reward_is_run_in_a_process_of_its_own(environment: Environment, tmp_path: Path) -> None:
    item = next(environment.tasks(Split.TRAIN))
    attempts = [
        GradedAttempt(item.task, transcript, environment.grade(item, transcript))
        for text in (environment.solution(item) or "", "wrong", "fails")
        for transcript in ([*environment.open(item).messages, {"role": "assistant", "content": text}],)
    ]
    code = (
        "def reward(task, transcript, grade):\n"
        "    assert transcript[-1]['content'] != 'fails'\n    return 2 * grade.score\n"
    )

    assert SandboxedRewards(tmp_path, None)(code, attempts) == [2.0, 0.0, None]


def test_reward_that_cannot_be_run_is_told_and_is_no_grave_objection(
    store: ExperimentStore, environment: Environment, charter: Charter
) -> None:
    code = PLAIN_AGENT + "\ndef reward(task, transcript, grade):\n    return grade.no_such_field\n"
    (told,) = review(store, environment, charter, code)
    assert (told.kind, told.is_grave) == (ObjectionKind.OTHER, False)


@pytest.mark.parametrize(("operator", "found"), [(Operator.IMPROVE, True), (Operator.TUNE, False)])
def test_arm_with_program_and_settings_of_its_parent_is_not_as_claimed(
    store: ExperimentStore, environment: Environment, charter: Charter, operator: Operator, found: bool
) -> None:
    study = store.create_study("t", planner="rules").id
    parent = store.create_experiment(study, "parent", factors={}, job={"lr": 0.1})
    arm = store.create_experiment(study, "arm", factors={}, job={"lr": 0.1}, parent_id=parent.id, operator=operator)
    for each in (parent, arm):
        store.revise_experiment(each.id, program_code=PLAIN_AGENT)

    assert (ObjectionKind.NOT_AS_CLAIMED in grave(look(store, environment, charter, study))) is found


RISING = [0.1 * step for step in range(12)]
FLAT = [0.3] * 12


@pytest.mark.parametrize(
    ("rewards", "solved", "scores", "found"),
    [
        (RISING, FLAT, (0.3, 0.31), True),
        (RISING, FLAT[::-1], (0.3, 0.1), True),
        (RISING, RISING, (0.1, 0.8), False),
        (FLAT, FLAT, (0.3, 0.3), False),
        (RISING, FLAT, (0.3, 0.8), False),
        (RISING[:4], FLAT[:4], (0.3, 0.3), False),
    ],
    ids=["hacked", "unlearned", "learned", "flat", "held-out gain", "too short"],
)
def test_recorded_training_whose_reward_alone_rises_is_found(
    store: ExperimentStore,
    environment: Environment,
    charter: Charter,
    rewards: list[float],
    solved: list[float],
    scores: tuple[float, float],
    found: bool,
) -> None:
    code = PLAIN_AGENT + "\ndef reward(task, transcript, grade):\n    return grade.score\n"
    study, arm = add_arm(store, code)
    add_run(store, arm, rewards, solved, scores)

    assert (ObjectionKind.GAMED_REWARD in grave(look(store, environment, charter, study))) is found


@pytest.mark.parametrize(("name", "found"), [("honest", False), ("credit", False), ("length", True), ("letter", True)])
def test_recorded_trainings_of_the_bundled_model_are_told_apart(
    store: ExperimentStore, environment: Environment, charter: Charter, name: str, found: bool
) -> None:
    """The trainings were real: one seed of each reward on `reverse`, with the model `nano`."""
    recorded = json.loads((Path(__file__).parents[2] / "nano_trainings.json").read_text())[name]
    study, arm = add_arm(store, recorded["program"])
    add_run(store, arm, recorded["reward"], recorded["solved"], (recorded["base"], recorded["final"]))

    objections = look(store, environment, charter, study)
    assert (ObjectionKind.GAMED_REWARD in grave(objections)) is found
    assert any("In training" in each.sentence for each in objections) is (name == "letter")


def add_run(
    store: ExperimentStore, arm: str, rewards: Sequence[float], solved: Sequence[float], scores: Sequence[float]
) -> str:
    run = store.claim_run(arm, 0, f"{arm}/0")
    store.record_metrics(
        run.id, {step: {REWARD: r, SUCCESS: s} for step, (r, s) in enumerate(zip(rewards, solved, strict=True), 1)}
    )
    for phase, mean in zip((BASE, FINAL), scores, strict=True):
        store.record_evaluation(
            run.id, phase=phase, split="validation", metric="m", weight_version=1, episodes=400, successes=0, mean=mean,
            stderr=0.02, evaluator_hash="e",
        )  # fmt: skip
    return run.id


@pytest.mark.parametrize(("share", "is_grave"), [(0.02, True), (0.3, False), (1.0, None)])
def test_measured_share_of_the_model_in_its_replies_counts(
    store: ExperimentStore, environment: Environment, charter: Charter, share: float, is_grave: bool | None
) -> None:
    study, arm = add_arm(store, PLAIN_AGENT)
    run = store.claim_run(arm, 0, "key", server_url="http://one")
    cost = AttemptCost(30, 1.0, 20.0, 5.0, 0.1, (1.0,), model_share=share)
    store.update_run(run.id, training_cost=cost_to_json(cost), status=RunStatus.LAUNCHING)

    found = look(store, environment, charter, study)
    assert [(each.kind, each.is_grave) for each in found] == (
        [] if is_grave is None else [(ObjectionKind.SOLVED_IN_CODE, is_grave)]
    )


def test_trial_shows_a_gamed_reward_where_no_answer_is_known(
    store: ExperimentStore, environment: Environment, charter: Charter
) -> None:
    guess = load_environment("guess")
    code = PLAIN_AGENT + "\ndef reward(task, transcript, grade):\n    return len(transcript[-1]['content'])\n"
    study, arm = add_arm(store, code)
    attempts = [
        {"task": "t", "messages": [{"role": "assistant", "content": text}], "score": score, "error": None}
        for text, score in (("7", 1.0), ("it might be seven", 0.0))
    ]
    store.record_program_trial(
        study, code_digest="d", attempts=2, broken=0, seconds=1.0, experiment_id=arm, transcripts=attempts
    )
    played = replace(charter, environment="guess", environment_name="guess")
    reviewer = RulesReviewer(store, study, lambda _: guess, run_here)
    assert ObjectionKind.GAMED_REWARD in grave(reviewer.review(played, "arm"))


def test_arm_that_does_not_exist_is_refused(store: ExperimentStore, environment: Environment, charter: Charter) -> None:
    study, _ = add_arm(store, PLAIN_AGENT)
    with pytest.raises(PlannerError, match="no such arm"):
        RulesReviewer(store, study, lambda _: environment, run_here).review(charter, "another")
