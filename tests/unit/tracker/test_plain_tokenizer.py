"""A tokenizer read without transformers is the one that transformers reads, and what it may not be is left to those."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import TemplateError

from swarm.model_path import BUNDLED_DIRECTORIES, BUNDLED_DIRECTORY
from swarm.tracker.codec import Codec
from swarm.tracker.tokenizer import PlainTokenizer, read_plain_tokenizer


@pytest.fixture(scope="module", autouse=True)
def late_imports() -> None:
    global PreTrainedTokenizerFast
    from transformers import PreTrainedTokenizerFast


STYLES = (
    *("chatml", "llama3", "mistral", "zephyr", "qwen3", "thinking", "opened", "mistral_tools"),
    *("magistral", "plain", *BUNDLED_DIRECTORIES),
)
TEXTS = st.lists(st.text() | st.sampled_from(["<|im_end|>", "</s>", "[INST]", " ", "\n", "天气"])).map("".join)
ARGUMENTS = st.dictionaries(st.text(max_size=4), st.integers() | TEXTS)
CALL = st.fixed_dictionaries({"name": st.sampled_from(["add", "größe"]), "arguments": ARGUMENTS})
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "user", "assistant", "tool"]), "content": TEXTS | st.none()},
        optional={
            "reasoning_content": TEXTS,
            "tool_calls": st.lists(st.fixed_dictionaries({"function": CALL}), max_size=2),
        },
    ),
    min_size=1,
    max_size=4,
)
TOOLS = st.none() | st.lists(
    st.fixed_dictionaries(
        {
            "type": st.just("function"),
            "function": st.fixed_dictionaries({"name": TEXTS, "parameters": st.just({"é": [1, 0.5, None]})}),
        }
    ),
    min_size=1,
    max_size=2,
)
Pair = tuple[PlainTokenizer, Any]


@pytest.fixture(scope="module")
def pairs(tokenizers: dict[str, PreTrainedTokenizerFast], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pair]:
    """Each tokenizer as it is read from its files without transformers, and with it."""
    directories = dict(BUNDLED_DIRECTORIES)
    for style, tokenizer in tokenizers.items():
        directories[style] = tmp_path_factory.mktemp(style)
        tokenizer.save_pretrained(directories[style])
    read = {style: read_plain_tokenizer(directory) for style, directory in directories.items()}
    return {
        style: (plain, PreTrainedTokenizerFast.from_pretrained(str(directories[style]), local_files_only=True))
        for style, plain in read.items()
        if plain is not None
    }


@pytest.mark.parametrize("style", STYLES)
def test_all_that_a_codec_asks_is_answered_alike(pairs: dict[str, Pair], style: str) -> None:
    plain, known = pairs[style]

    for name in ("chat_template", "special_tokens_map", "eos_token_id", "all_special_ids"):
        assert getattr(plain, name) == getattr(known, name), name
    assert len(plain) == len(known)
    assert plain.get_added_vocab() == known.get_added_vocab()
    assert {id: str(entry) for id, entry in plain.added_tokens_decoder.items()} == {
        id: str(entry) for id, entry in known.added_tokens_decoder.items()
    }
    assert Codec(plain).stop_token_ids == Codec(known).stop_token_ids
    assert Codec(plain).syntax == Codec(known).syntax


@pytest.mark.hypothesis
@pytest.mark.parametrize("style", STYLES)
@given(text=TEXTS, ids=st.lists(st.integers(0, 300)), add=st.booleans())
def test_text_and_ids_are_the_same(pairs: dict[str, Pair], style: str, text: str, ids: list[int], add: bool) -> None:
    plain, known = pairs[style]
    exact: dict[str, Any] = {"skip_special_tokens": False, "clean_up_tokenization_spaces": False}

    assert plain.encode(text, add_special_tokens=add) == known.encode(text, add_special_tokens=add)
    assert plain.decode(ids, **exact) == known.decode(ids, **exact)


@pytest.mark.hypothesis
@pytest.mark.parametrize("style", STYLES)
@given(
    messages=MESSAGES,
    tools=TOOLS,
    generation=st.booleans(),
    options=st.dictionaries(
        st.sampled_from(["enable_thinking", "eos_token", "other"]), st.booleans() | st.text(max_size=3)
    ),
)
def test_messages_make_the_same_text_or_the_same_complaint(
    pairs: dict[str, Pair], style: str, messages: list, tools: list | None, generation: bool, options: dict
) -> None:
    def render(tokenizer: Any) -> tuple[str, str]:
        try:
            text = tokenizer.apply_chat_template(
                messages, tools=tools, add_generation_prompt=generation, tokenize=False, **options
            )
        except (TemplateError, TypeError, ValueError, LookupError, AttributeError) as error:
            return type(error).__name__, str(error)
        return "text", text

    plain, known = pairs[style]
    assert render(plain) == render(known)


@pytest.mark.parametrize(
    "template",
    [
        "{{ tools | tojson(indent=2) }}{{ messages | tojson(sort_keys=true, separators=(',', ':')) }}",
        "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.content }}\n{% endfor %}",
        "  {% if documents is none %}\n  none\n  {% endif %}\n{{ strftime_now('%Y') }}",
        "{{ raise_exception('no ' + messages[0].content) }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
    ],
)
def test_what_templates_are_given_and_kept_from_is_the_same(pairs: dict[str, Pair], template: str) -> None:
    messages = [{"role": "user", "content": "<é>"}, {"role": "user", "content": "b"}]
    tools = [{"name": "'é'"}]
    _, known = pairs["chatml"]

    def render(apply: Callable[..., str]) -> tuple[str, str]:
        try:
            return "text", apply(messages, tools=tools, add_generation_prompt=False, tokenize=False)
        except (TemplateError, TypeError, AttributeError) as error:
            return type(error).__name__, str(error)

    plain = PlainTokenizer(known.backend_tokenizer, template, {})
    known.chat_template, kept = template, known.chat_template
    try:
        assert render(plain.apply_chat_template) == render(known.apply_chat_template)
    finally:
        known.chat_template = kept


def _setting(**changed: Any) -> Callable[[Path], object]:
    def change(directory: Path) -> None:
        path = directory / "tokenizer_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))

    return change


def _template(text: str) -> Callable[[Path], object]:
    return lambda directory: (directory / "chat_template.jinja").write_text(text)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(_setting(tokenizer_class="Qwen2Tokenizer"), id="a class of its own"),
        pytest.param(_setting(add_bos_token=True), id="a setting that is not known"),
        pytest.param(_setting(extra_special_tokens=["<|im_start|>"]), id="more special tokens"),
        pytest.param(_setting(eos_token={"content": "<|im_end|>", "special": True}), id="a token with a form"),
        pytest.param(_setting(bos_token="<begin>"), id="a token that is to be added"),
        pytest.param(_setting(bos_token="a"), id="a token that is not special"),
        pytest.param(lambda directory: (directory / "added_tokens.json").write_text("{}"), id="a file of tokens"),
        pytest.param(lambda directory: (directory / "tokenizer.json").write_text("{}"), id="a broken file"),
        pytest.param(lambda directory: (directory / "tokenizer_config.json").write_text("[]"), id="broken settings"),
        pytest.param(lambda directory: (directory / "chat_template.jinja").unlink(), id="no template"),
        pytest.param(_template("{% if %}"), id="a broken template"),
        pytest.param(_template("{%- generation %}a{% endgeneration %}"), id="marks around replies"),
    ],
)
def test_files_that_may_mean_more_are_left_to_transformers(change: Callable[[Path], object], tmp_path: Path) -> None:
    directory = Path(shutil.copytree(BUNDLED_DIRECTORY, tmp_path / "model"))
    assert read_plain_tokenizer(directory) is not None

    change(directory)

    assert read_plain_tokenizer(directory) is None


def test_the_bundled_models_are_served_without_transformers() -> None:
    code = (
        "import sys; from pathlib import Path; from swarm.tracker.codec import Codec;"
        "[Codec.load(path) for path in sys.argv[1:]]; print('transformers' in sys.modules)"
    )
    command = [sys.executable, "-c", code, *map(str, BUNDLED_DIRECTORIES.values())]
    assert subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout == "False\n"
