"""What is remembered of rendered conversations, and what is not taken for the same."""

from __future__ import annotations

from typing import Any

import pytest

from swarm.model_path import BUNDLED_DIRECTORY
from swarm.tracker.codec import Codec
from swarm.tracker.template import LONGEST_KEPT

MESSAGE = {"role": "user", "content": "Reverse: ABC"}
ASKED: dict[str, Any] = {"messages": (MESSAGE,), "tools": (), "generation_prompt": True}


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> tuple[Codec, list[Any]]:
    """A codec, and what its template rendered."""
    codec, rendered = Codec.load(BUNDLED_DIRECTORY), list[Any]()
    apply = codec._tokenizer.apply_chat_template
    monkeypatch.setattr(
        codec._tokenizer,
        "apply_chat_template",
        lambda conversation, **more: rendered.append(conversation) or apply(conversation, **more),
    )
    return codec, rendered


@pytest.mark.parametrize(
    "other",
    [
        {"messages": ({"content": "Reverse: ABC", "role": "user"},)},
        {"messages": ({**MESSAGE, "content": "Reverse: ABD"},)},
        {"messages": ({**MESSAGE, "content": ["Reverse: ABC"]},)},
        {"tools": ({"type": "function", "function": {"name": "f"}},)},
        {"generation_prompt": False},
    ],
)
def test_a_conversation_is_rendered_once_and_one_that_differs_in_anything_by_itself(
    counted: tuple[Codec, list[Any]], other: dict[str, Any]
) -> None:
    codec, rendered = counted
    first = codec.render_text(**ASKED)
    assert codec.render_text(**{**ASKED, "messages": [dict(MESSAGE)]}) == first
    assert len(rendered) == 1
    codec.render_text(**{**ASKED, **other})
    assert len(rendered) == 2


@pytest.mark.parametrize("content", [{"number": object()}, "x" * LONGEST_KEPT], ids=["no JSON", "too long"])
def test_what_json_cannot_spell_and_long_conversations_are_rendered_each_time(
    counted: tuple[Codec, list[Any]], content: object
) -> None:
    codec, rendered = counted
    for _ in range(2):
        codec.render_text(({**MESSAGE, "more": content},), (), generation_prompt=True)
    assert len(rendered) == 2


def test_a_template_that_reads_the_clock_is_rendered_each_time(counted: tuple[Codec, list[Any]]) -> None:
    codec, rendered = counted
    codec._tokenizer.chat_template += "{# strftime_now #}"
    for _ in range(2):
        codec.render_text(**ASKED)
    assert len(rendered) == 2
