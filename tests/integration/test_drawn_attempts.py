"""The attempts of a score are drawn before it begins: the same seed gives the same ones, whoever fails meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from slow_samplers import Pace

from swarm import SwarmClient, TrainJob
from swarm.environments import DrivenEnvironment, Environment, Session, load_environment
from swarm.environments.base import EnvironmentTask, Grade, Transcript
from swarm.errors import BadRequest, EnvironmentFailure, NotFound, ProgramFailure
from swarm.program import Program, measure, train
from swarm.program.attempts import MAX_ANSWER_CHARS
from swarm.program.gates import until_rest
from swarm.program.training import _idle_limit
from swarm.tasks import Split
from swarm.types import Message

pytestmark = pytest.mark.timeout(300)

JOB = TrainJob(engine="fake", batch_size=2, num_repeat=2, total_steps=2)


@pytest.fixture(scope="module")
def server(start_shared_server: Any) -> Iterator[SwarmClient]:
    with SwarmClient(start_shared_server(JOB).url) as client:
        yield client


class Failing(Environment):
    """The environment `reverse`, whose grader or sessions fail the first time that each task is graded or opened."""

    def __init__(self, fails: str) -> None:
        self._real, self._fails, self._seen = load_environment("reverse"), fails, set[str]()
        self.name, self.digest, self.max_tokens = self._real.name, self._real.digest, self._real.max_tokens

    def tasks(self, split: Split, seed: int = 0) -> Iterator[EnvironmentTask]:
        return self._real.tasks(split, seed)

    def open(self, task: EnvironmentTask) -> Session:
        self._fail_once("open", task)
        return self._real.open(task)

    def grade(self, task: EnvironmentTask, transcript: Transcript) -> Grade:
        self._fail_once("grade", task)
        return self._real.grade(task, transcript)

    def _fail_once(self, where: str, task: EnvironmentTask) -> None:
        if where == self._fails and task.task.task_id not in self._seen:
            self._seen.add(task.task.task_id)
            raise ValueError("the disk of the grader is full")


def replies(client: SwarmClient, episode_ids: tuple[str, ...]) -> dict[str | None, Any]:
    details = [client.episode(episode_id) for episode_id in episode_ids]
    return {detail.episode.task_id: detail.turns[-1].reply["content"] for detail in details}


@pytest.mark.parametrize("fails", ["open", "grade"])
def test_what_the_environment_breaks_is_made_again_as_the_same_attempt(server: SwarmClient, fails: str) -> None:
    calm = measure(server, load_environment("reverse"), episodes=6, seed=7)
    broken = measure(server, Failing(fails), episodes=6, seed=7)
    assert (broken.n, broken.failures, broken.broken, len(broken.repeats)) == (6, (), (), 6)
    assert all("the disk of the grader is full" in reason for reason in broken.repeats)
    said = replies(server, calm.episode_ids)
    assert replies(server, broken.episode_ids) == said
    assert replies(server, measure(server, load_environment("reverse"), episodes=6, seed=8).episode_ids) != said


def test_a_score_may_leave_out_the_first_tasks_of_a_split(server: SwarmClient) -> None:
    environment = load_environment("reverse")
    all_tasks = list(measure(server, environment, episodes=5).rewards)

    assert list(measure(server, environment, episodes=2, skip=3).rewards) == all_tasks[3:]


def test_a_program_is_bounded_in_training_and_in_evaluation_alike(server: SwarmClient) -> None:
    def ask_three_times(task: Any, model: Any, session: Any) -> Any:
        for _ in range(3):
            reply = model.chat(session.messages)
        return reply

    reverse, greedy = load_environment("reverse"), Program("asks", ask_three_times)
    assert measure(server, reverse, greedy, episodes=4, attempt_calls=3).broken == ()
    bounded = measure(server, reverse, greedy, episodes=4, attempt_calls=2)
    assert (bounded.n, bounded.mean, len(bounded.broken)) == (4, 0.0, 4)
    assert "of its 2 model calls" in bounded.broken[0].error
    assert [receipt.usage.calls for receipt in bounded.receipts] == [2] * 4
    with pytest.raises(ProgramFailure, match="of its 2 model calls"):
        train(server, reverse, JOB, greedy, attempt_calls=2)


def test_a_call_that_the_server_failed_is_not_put_down_to_the_program(
    start_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pace = Pace()
    monkeypatch.setattr("swarm.server.http.Backends", pace.backends())

    def ask(task: Any, model: Any, session: Any) -> Any:
        # As a stock client does it. The model's own `chat` would wait.
        body = {"model": model.name, "messages": list(session.messages)}
        headers = {"authorization": f"Bearer {model.api_key}"}
        reply = httpx.post(f"{model.base_url}/chat/completions", headers=headers, json=body, timeout=60)
        if reply.is_success:
            return reply.json()["choices"][0]["message"]
        # From the second attempt on the server answers.
        pace.stalled_name = None
        raise ValueError("what a program makes of it")

    with SwarmClient(start_server(JOB, max_wait_s=0.2).url) as client:
        until_rest(client)
        pace.stalled_name = JOB.experiment_name
        result = measure(client, load_environment("reverse"), Program("asks", ask), episodes=1)
    assert (result.n, result.broken, result.failures, len(result.repeats)) == (1, (), (), 1)


def test_an_environment_that_always_fails_leaves_no_score(server: SwarmClient) -> None:
    class Broken(Failing):
        def _fail_once(self, where: str, task: EnvironmentTask) -> None:
            if where == self._fails:
                raise EnvironmentFailure("the judge is away")

    result = measure(server, Broken("grade"), episodes=2, worst=-1.0)
    assert (result.n, result.mean, result.broken, len(result.failures)) == (0, None, (), 2)


class Talking(Failing):
    """Takes 40 replies; `seen` are those that it got, and one that says so is refused."""

    max_turns = 40

    def __init__(self) -> None:
        super().__init__("never")
        self.seen_replies: list[Message] = []

    def open(self, task: EnvironmentTask) -> Session:
        session, seen = super().open(task), self.seen_replies

        class Conversation(Session):
            messages = session.messages

            def reply(self, message: Message) -> tuple[Message, ...]:
                if message["content"] == "refuse this":
                    raise BadRequest("messages.0: too deep")
                seen.append(message)
                return ({"role": "user", "content": "Go on"},)

        return Conversation()


def test_an_attempt_of_many_long_replies_is_scored(server: SwarmClient) -> None:
    def flood(task: Any, model: Any, session: Any) -> None:
        model.chat(session.messages)
        while session.reply("x" * (MAX_ANSWER_CHARS - 100)) is not None:
            pass

    result = measure(server, Talking(), Program("floods", flood), episodes=1, worst=-1.0)
    assert (result.n, result.mean, result.broken, result.failures) == (1, 0.0, (), ())
    assert result.receipts[0].model_share == 0.0


def test_replies_that_the_model_wrote_do_not_hide_a_long_one_that_it_did_not(server: SwarmClient) -> None:
    def hide(task: Any, model: Any, session: Any) -> None:
        said = model.chat(session.messages)["content"]
        while session.turns < 39:
            session.reply(f"{said}\n" * (MAX_ANSWER_CHARS // 4 // (len(said) + 1)))
        session.reply("the answer of a program")

    [receipt] = measure(server, Talking(), Program("hides", hide), episodes=1).receipts
    assert receipt.model_share is not None and receipt.model_share <= 0.5


def test_an_environment_sees_the_fields_of_a_message_and_no_others(server: SwarmClient) -> None:
    def decorate(task: Any, model: Any, session: Any) -> None:
        nested: Any = 0
        for _ in range(197):
            nested = [nested]
        function = {"name": "calculator", "arguments": "{}", "nested": nested}
        call = {"id": "one", "type": "function", "function": function, "index": nested}
        session.reply({"content": "hi", "tool_calls": [call], "reasoning": nested})

    environment = Talking()
    assert measure(server, environment, Program("decorates", decorate), episodes=1).broken == ()
    call = {"id": "one", "type": "function", "function": {"name": "calculator", "arguments": "{}"}}
    assert environment.seen_replies == [{"role": "assistant", "content": "hi", "tool_calls": [call]}]


def test_a_reply_that_the_environment_refuses_is_the_programs_fault(server: SwarmClient) -> None:
    def provoke(task: Any, model: Any, session: Any) -> None:
        session.reply("refuse this")

    result = measure(server, Talking(), Program("provokes", provoke), episodes=1, worst=-1.0)
    assert (result.n, result.mean, result.repeats) == (1, -1.0, ())
    assert "refused an answer of the program: messages.0: too deep" in result.broken[0].error


def test_what_an_environment_with_its_own_agent_raises_is_not_put_down_to_a_program(server: SwarmClient) -> None:
    class Driven(Failing, DrivenEnvironment):
        def run(
            self, task: EnvironmentTask, base_url: str, api_key: str, model: str, max_tokens: int
        ) -> tuple[Transcript, Grade]:
            raise NotFound("no package 'numbers' is installed", param="env")

        def interrupt(self) -> None:
            return

    result = measure(server, Driven("never"), episodes=2, worst=-1.0)
    assert (result.n, result.broken, len(result.failures)) == (0, (), 2)
    assert "no package 'numbers' is installed" in result.failures[0].error


@pytest.mark.parametrize(("limit_s", "expected"), [(1.0, 240.0), (600.0, 1320.0), (86_400.0, 86_400.0)])
def test_a_slow_environment_has_the_time_that_it_says_it_takes(limit_s: float, expected: float) -> None:
    environment = Failing("never")
    environment.time_limit_s = limit_s
    assert _idle_limit(environment) == expected
