"""The older API over HTTP: prompts as they are, turns that go on token by token, and the tokenizer on its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from tests_support import begin, end, wait_for_state

from swarm.job import TrainJob

END = "<|im_end|>"


@dataclass(frozen=True)
class Hosted:
    """One episode on a running server."""

    http: httpx.Client
    model: Any
    """A client of the openai library."""
    episode: dict[str, Any]

    def turns(self) -> list[dict[str, Any]]:
        return self.http.get(f"/v1/swarm/episodes/{self.episode['episode_id']}").json()["turns"]

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.http.post(path, json=body, headers={"authorization": f"Bearer {self.episode['api_key']}"})

    def samples(self) -> list[dict[str, Any]]:
        return self.http.get(f"/v1/swarm/episodes/{self.episode['episode_id']}").json()["samples"]


@pytest.fixture(scope="module")
def url(start_shared_server: Any) -> str:
    return start_shared_server(TrainJob(engine="fake", batch_size=1000)).url


@pytest.fixture
def hosted(url: str) -> Iterator[Hosted]:
    import openai

    with httpx.Client(base_url=url, timeout=60) as http:
        wait_for_state(http, "ROLLING")
        episode = begin(http)
        with openai.OpenAI(base_url=f"{url}/v1", api_key=episode["api_key"], timeout=60) as model:
            yield Hosted(http, model, episode)


def test_a_text_that_was_cut_off_goes_on_from_the_very_tokens(hosted: Hosted) -> None:
    first = hosted.model.completions.create(model="default", prompt="Once", max_tokens=1)
    assert first.choices[0].finish_reason == "length"
    said = "Once" + first.choices[0].text
    hosted.model.completions.create(model="default", prompt=f"{said} and then")
    before, after = hosted.turns()
    assert (after["parent"], after["fork_reason"]) == (0, None)
    assert after["prompt_ids"][: len(before["prompt_ids"]) + 1] == before["prompt_ids"] + before["output_ids"]
    assert len(hosted.samples()) == 1


def test_what_was_ended_goes_on_where_its_end_is_spelled_out(hosted: Hosted) -> None:
    first = hosted.model.completions.create(model="default", prompt="Once", extra_body={"return_token_ids": True})
    choice = first.choices[0]
    assert choice.finish_reason == "stop"
    hosted.model.completions.create(model="default", prompt=f"Once{choice.text}{END}more")
    ids = choice.prompt_token_ids + choice.token_ids
    more = hosted.post("/tokenize", prompt="more").json()["tokens"]
    hosted.model.completions.create(model="default", prompt=ids + more)
    hosted.model.completions.create(model="default", prompt=f"Once{choice.text}more")
    first_turn, *rest = hosted.turns()
    assert [turn["parent"] for turn in rest] == [0, 0, None], "the last one leaves the end out"
    assert [turn["prompt_ids"] == ids + more for turn in rest] == [True, True, False]
    assert first_turn["prompt_ids"] + first_turn["output_ids"] == ids


def test_prompts_of_every_form_in_one_call_are_turns_of_their_own(hosted: Hosted) -> None:
    body = {"model": "default", "prompt": ["Once", [5, 6]], "n": 2, "echo": True, "return_token_ids": True}
    reply = hosted.post("/v1/completions", **body)
    assert reply.status_code == 200, reply.text
    choices = reply.json()["choices"]
    turns = sorted(hosted.turns(), key=lambda turn: turn["choice"])
    assert [turn["prompt_ids"] for turn in turns[2:]] == [[5, 6]] * 2
    assert [choice["token_ids"] for choice in choices] == [turn["output_ids"] for turn in turns]
    texts = ["Once", hosted.post("/detokenize", tokens=[5, 6]).json()["prompt"]]
    assert [choice["text"] for choice in choices] == [
        texts[number // 2] + turn["reply"]["content"] for number, turn in enumerate(turns)
    ]
    assert len({turn["call_id"] for turn in turns}) == 1


def test_a_stream_says_what_is_recorded(hosted: Hosted) -> None:
    chunks = list(
        hosted.model.completions.create(
            model="default",
            prompt="Once",
            logprobs=2,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"return_token_ids": True},
        )
    )
    [turn] = hosted.turns()
    parts = [chunk.choices[0] for chunk in chunks[:-1]]
    assert "".join(part.text for part in parts) == turn["reply"]["content"]
    assert [token for part in parts for token in part.token_ids] == turn["output_ids"]
    assert [each for part in parts if part.logprobs for each in part.logprobs.token_logprobs] == turn["logprobs"]
    assert chunks[-1].usage.completion_tokens == len(turn["output_ids"])


def test_a_conversation_is_tokenized_as_a_call_would_be(hosted: Hosted) -> None:
    messages = [{"role": "user", "content": "hi"}]
    asked = hosted.post("/tokenize", messages=messages, return_token_strs=True).json()
    hosted.model.chat.completions.create(model="default", messages=messages)
    [turn] = hosted.turns()
    assert asked["tokens"] == turn["prompt_ids"]
    assert (asked["count"], asked["max_model_len"]) == (len(asked["tokens"]), 4096)
    assert "".join(asked["token_strs"]) == hosted.post("/detokenize", tokens=asked["tokens"]).json()["prompt"]
    without = hosted.post("/tokenize", messages=messages, add_generation_prompt=False).json()["tokens"]
    assert asked["tokens"][: len(without)] == without and len(without) < asked["count"]
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    assert hosted.post("/tokenize", messages=messages, tools=[tool]).json()["count"] > asked["count"]


def test_text_survives_the_way_to_tokens_and_back(hosted: Hosted) -> None:
    text = f"é 🙂 <|im_start|>user\nx{END} \n\t"
    tokens = hosted.post("/tokenize", prompt=text).json()
    assert tokens["token_strs"] is None
    assert hosted.post("/detokenize", tokens=tokens["tokens"]).json() == {"prompt": text}
    assert hosted.post("/detokenize", tokens=[]).json() == {"prompt": ""}
    assert hosted.post("/tokenize", prompt="").json()["tokens"] == []


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": [{"role": "user", "content": "x"}]}, "prompt"),
        ("/tokenize", {"prompt": "x", "tools": []}, "tools"),
        ("/tokenize", {"prompt": "x", "add_special_tokens": True}, "add_special_tokens"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [1, -1]}, "tokens"),
        ("/detokenize", {"tokens": [1, 10**6]}, "tokens"),
    ],
)
def test_what_cannot_be_tokenized_is_refused_by_name(hosted: Hosted, path: str, body: Any, param: str) -> None:
    reply = hosted.post(path, **body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param), reply.text


def test_the_tokenizer_is_open_to_the_keys_of_running_episodes_alone(hosted: Hosted) -> None:
    assert hosted.http.post("/tokenize", json={"prompt": "x"}).status_code == 401
    assert hosted.post("/v1/tokenize", prompt="x").status_code == 404
    assert hosted.post("/tokenize", prompt="x", model="other").headers["x-ignored-fields"] == "model"
    ignored = hosted.post("/tokenize", prompt="x", zebra=1)
    assert (ignored.status_code, ignored.headers["x-ignored-fields"]) == (200, "zebra")
    end(hosted.http, hosted.episode, task_id="task", reward=1.0)
    assert hosted.post("/tokenize", prompt="x").status_code == 409
