"""Evaluations on record: exactly once, from the rewards of episodes that only the weights in question have sampled."""

from __future__ import annotations

import math
from typing import Any

import pytest

from swarm.errors import BadRequest, Conflict, NotFound
from swarm.ledger import EvaluationReport, EvaluationRow, EvaluationState, Ledger
from swarm.types import EpisodeType

RUNNING, DUE, DONE = EvaluationState.RUNNING, EvaluationState.DUE, EvaluationState.DONE
ABANDONED, REWOUND = EvaluationState.ABANDONED, EvaluationState.REWOUND


def report(*episode_ids: str, evaluator: str = "one", failures: int = 0, reason: str | None = None) -> EvaluationReport:
    return EvaluationReport(evaluator, episode_ids, failures, reason)


@pytest.fixture
def claimed(ledger: Ledger, script: Any) -> EvaluationRow:
    """The evaluation of the base weights, which evaluator `one` runs."""
    script.wait(ledger.open_evaluation(0, 0, 4))
    return script.wait(ledger.claim_evaluation(0, "one"))


def score(script: Any, episode_id: str, reward: float, *, task_id: str = "a", version: int = 0) -> str:
    script.begin(episode_id, EpisodeType.EVAL)
    script.wait(script.ledger.add_turns([script.turn(episode_id, weight_versions_T=(version, version))]))
    script.end(episode_id, reward=reward, task_id=task_id)
    return episode_id


def events_of(ledger: Ledger, script: Any) -> list[str]:
    kinds = [event.kind for event in script.wait(ledger.events(limit=1000))]
    return [kind for kind in kinds if kind.startswith("evaluation.")]


def train(ledger: Ledger, script: Any, step: int) -> None:
    script.complete(f"train-{step}")
    script.train(step, [f"train-{step}"])


def test_a_score_is_computed_from_the_rewards_on_record(ledger: Ledger, script: Any, claimed: EvaluationRow) -> None:
    assert (claimed.state, claimed.evaluator, claimed.episodes) == (RUNNING, "one", 4)
    ids = [
        score(script, f"e{n}", reward, task_id=task) for n, (task, reward) in enumerate((("a", 1), ("a", 0), ("b", 1)))
    ]
    done = script.wait(ledger.end_evaluation(0, report(*ids, failures=1)))
    assert (done.state, done.scored, done.successes, done.failures) == (DONE, 3, 2, 1)
    assert done.mean == pytest.approx(2 / 3)
    # Between the tasks, whose means are 1/2 and 1.
    assert done.stderr == pytest.approx(math.sqrt(0.125) / math.sqrt(2))
    assert script.wait(ledger.evaluations()) == [done]
    assert events_of(ledger, script) == ["evaluation.due", "evaluation.claimed", "evaluation.done"]


def test_the_same_report_again_gets_the_same_answer_and_another_one_none(
    ledger: Ledger, script: Any, claimed: EvaluationRow
) -> None:
    first, second = score(script, "e1", 1.0), score(script, "e2", 0.0)
    done = script.wait(ledger.end_evaluation(0, report(first)))
    assert script.wait(ledger.end_evaluation(0, report(first))) == done
    for other in (report(first, second), report(first, evaluator="two")):
        with pytest.raises(Conflict, match="it is done by one"):
            script.wait(ledger.end_evaluation(0, other))
    assert events_of(ledger, script).count("evaluation.done") == 1


def test_only_ended_eval_episodes_of_these_weights_since_then_are_a_score(
    ledger: Ledger, script: Any, claimed: EvaluationRow
) -> None:
    script.complete("train")
    script.begin("running", EpisodeType.EVAL)
    good = score(script, "good", 1.0)
    for wrong in ("train", "running", "unknown", score(script, "other", 1.0, version=1)):
        with pytest.raises(BadRequest, match=f"'{wrong}' is no score") as refusal:
            script.wait(ledger.end_evaluation(0, report(good, wrong)))
        assert refusal.value.param == "episode_ids"
    assert script.wait(ledger.end_evaluation(0, report(good, good))).scored == 1


def test_an_episode_that_was_begun_before_the_evaluation_was_due_is_no_score(ledger: Ledger, script: Any) -> None:
    early = score(script, "early", 1.0)
    script.wait(ledger.open_evaluation(0, 0, 4))
    script.wait(ledger.claim_evaluation(0, "one"))
    with pytest.raises(BadRequest, match="begun since then"):
        script.wait(ledger.end_evaluation(0, report(early)))


def test_an_evaluation_is_claimed_by_one_and_due_again_once_it_is_returned(
    ledger: Ledger, script: Any, claimed: EvaluationRow
) -> None:
    with pytest.raises(Conflict, match="not due"):
        script.wait(ledger.claim_evaluation(0, "two"))
    returned = script.wait(ledger.return_evaluation(0, "lease_expired"))
    assert (returned.state, returned.evaluator, returned.claimed_at) == (DUE, None, None)
    with pytest.raises(Conflict, match="it is due"):
        script.wait(ledger.end_evaluation(0, report(score(script, "late", 1.0))))
    assert script.wait(ledger.claim_evaluation(0, "two")).evaluator == "two"
    with pytest.raises(NotFound, match="no evaluation of step 7"):
        script.wait(ledger.end_evaluation(7, report()))


def test_without_an_episode_there_is_no_score_and_the_reason_is_kept(
    ledger: Ledger, script: Any, claimed: EvaluationRow
) -> None:
    ended = script.wait(ledger.end_evaluation(0, report(failures=4, reason="the grader died")))
    assert (ended.state, ended.reason, ended.failures, ended.mean) == (ABANDONED, "the grader died", 4, None)
    assert script.wait(ledger.end_evaluation(0, report(failures=4, reason="the grader died"))) == ended
    with pytest.raises(Conflict, match="is over"):
        script.wait(ledger.abandon_evaluation(0, "timeout"))
    # What is over is not opened a second time.
    assert script.wait(ledger.open_evaluation(0, 0, 9)) == ended


def test_scores_of_weights_that_were_left_are_of_another_past(ledger: Ledger, script: Any) -> None:
    for step in (0, 1, 2):
        if step:
            train(ledger, script, step)
        script.wait(ledger.open_evaluation(step, step, 4))
        script.wait(ledger.claim_evaluation(step, "one"))
        if step < 2:
            script.wait(ledger.end_evaluation(step, report(score(script, f"e{step}", 1.0, version=step))))
    script.wait(ledger.rewind(0, "loaded by command"))
    train(ledger, script, 3)
    assert script.wait(ledger.open_evaluation(1, 1, 4)).state is DUE
    states = [(row.step, row.state) for row in script.wait(ledger.evaluations())]
    assert states == [(0, DONE), (1, REWOUND), (1, DUE), (2, REWOUND)]
    # A page holds all that there is of its last step.
    assert len(script.wait(ledger.evaluations(limit=2))) == 3
    assert script.wait(ledger.evaluations(after_step=1, limit=1))[0].step == 2


def test_an_open_evaluation_of_other_weights_is_rewound(ledger: Ledger, script: Any, claimed: EvaluationRow) -> None:
    opened = script.wait(ledger.open_evaluation(0, 3, 4))
    assert (opened.weight_version, opened.state) == (3, DUE)
    assert [row.state for row in script.wait(ledger.evaluations())] == [REWOUND, DUE]


def test_a_new_job_leaves_no_evaluation_open(ledger: Ledger, script: Any, claimed: EvaluationRow) -> None:
    script.wait(ledger.record_job({}, {}))
    assert script.wait(ledger.evaluations()) == []
    assert script.wait(ledger.newest_evaluation()) is None
    with pytest.raises(NotFound):
        script.wait(ledger.end_evaluation(0, report()))
