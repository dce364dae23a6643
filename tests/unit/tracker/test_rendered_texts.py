"""What is remembered of rendered conversations, and what is not taken for the same."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.model_path import BUNDLED_DIRECTORY
from swarm.tracker.codec import Codec
from swarm.tracker.template import RenderedTexts

QUESTION = ({"role": "user", "content": "Reverse: ABC"},)


class Template:
    """Renders whatever it is told to, and counts."""

    def __init__(self) -> None:
        self.rendered = 0

    def __call__(self) -> str:
        self.rendered += 1
        return f"text {self.rendered}"


def test_a_conversation_rendered_again_is_remembered() -> None:
    texts, template = RenderedTexts(), Template()
    first = texts.get(QUESTION, (), {}, generation_prompt=True, render=template)
    again = texts.get([dict(QUESTION[0])], [], {}, generation_prompt=True, render=template)
    assert (first, again, template.rendered) == ("text 1", "text 1", 1)


@pytest.mark.parametrize(
    "other",
    [
        {"messages": ({"content": "Reverse: ABC", "role": "user"},)},
        {"messages": ({"role": "user", "content": "Reverse: ABD"},)},
        {"messages": ({"role": "user", "content": ["Reverse: ABC"]},)},
        {"tools": ({"type": "function", "function": {"name": "f"}},)},
        {"options": {"enable_thinking": True}},
        {"generation_prompt": False},
    ],
)
def test_a_request_that_differs_in_anything_is_rendered_itself(other: dict[str, Any]) -> None:
    texts, template = RenderedTexts(), Template()
    asked: dict[str, Any] = {"messages": QUESTION, "tools": (), "options": {}, "generation_prompt": True}
    texts.get(**asked, render=template)
    assert texts.get(**{**asked, **other}, render=template) == "text 2"


def test_what_json_cannot_spell_is_rendered_each_time() -> None:
    texts, template = RenderedTexts(), Template()
    for _ in range(2):
        texts.get(({"role": "user", "content": "\ud800"},), (), {}, generation_prompt=True, render=template)
    assert template.rendered == 2


@given(lengths=st.lists(st.integers(1, 12), max_size=40))
def test_no_more_characters_are_kept_than_allowed_and_the_last_text_is(lengths: list[int]) -> None:
    texts = RenderedTexts(max_chars=20)
    for number, length in enumerate(lengths):
        message = ({"role": "user", "content": str(number)},)
        texts.get(message, (), {}, generation_prompt=True, render=lambda length=length: "x" * length)
        assert sum(map(len, texts._texts.values())) == texts._chars <= 20
        template = Template()
        texts.get(message, (), {}, generation_prompt=True, render=template)
        assert template.rendered == 0


def test_a_text_longer_than_all_that_may_be_kept_is_not_remembered() -> None:
    texts, template = RenderedTexts(max_chars=3), Template()
    for _ in range(2):
        texts.get(QUESTION, (), {}, generation_prompt=True, render=template)
    assert template.rendered == 2


def test_a_template_that_reads_the_clock_is_rendered_each_time(tmp_path: Path) -> None:
    codec = Codec.load(BUNDLED_DIRECTORY)
    clock = Path(shutil.copytree(BUNDLED_DIRECTORY, tmp_path / "model"))
    template = clock / "chat_template.jinja"
    template.write_text("{{ strftime_now('%f') }}" + template.read_text())
    assert codec.render_text(QUESTION, (), generation_prompt=True).endswith("assistant\n")
    ticking = Codec.load(clock)
    assert len({ticking.render_text(QUESTION, (), generation_prompt=True) for _ in range(50)}) > 1
