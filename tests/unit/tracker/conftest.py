# ruff: noqa: E501  (templates read best unbroken)
"""Small tokenizers with the chat templates of several model families, and turns as if sampled with them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from turns import plain_turn

from swarm.tracker.codec import Codec
from swarm.types import FinishReason, Message, SamplingParams, ToolSpec, Turn

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

CORPUS = [
    "What is the weather in Paris today? It is sunny, and 21 degrees.",
    "user assistant system tool Thanks! And tomorrow? I do not know. Größe naïve 天气 🙂",
    '{"name": "calculator", "arguments": {"expression": "3*4"}} 0123456789 abcdefghijklmnopqrstuvwxyz',
] * 4

CHATML = """
{%- if tools %}{{- '<|im_start|>system\\n' }}{%- for tool in tools %}{{- tool | tojson }}{%- endfor %}{{- '<|im_end|>\\n' }}{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
    {%- for call in message.tool_calls or [] %}
        {{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) + '}\\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""

MISTRAL = """{{- bos_token }}
{%- for message in messages %}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate user/assistant/user/assistant') }}
    {%- endif %}
    {%- if message.role == 'user' %}{{- '[INST]' + message.content + '[/INST]' }}
    {%- else %}{{- message.content + eos_token }}{%- endif %}
{%- endfor %}"""

# Thinking is shown only in replies behind the last user message.
QWEN3 = """
{%- set state = namespace(last_user=0) %}
{%- for message in messages %}{%- if message.role == 'user' %}{%- set state.last_user = loop.index0 %}{%- endif %}{%- endfor %}
{%- for message in messages %}
    {%- set text = message.content or '' %}
    {%- if message.role == 'assistant' and loop.index0 < state.last_user %}{%- set text = text.split('</think>')[-1].lstrip('\\n') %}{%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' + text + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""

# A stop token with plain text behind it.
ZEPHYR = """
{%- for message in messages %}{{- '<|' + message.role + '|>\\n' + message.content + eos_token + '\\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>\\n' }}{%- endif %}"""

# No token ends a reply.
PLAIN = """
{%- for message in messages %}{{- message.role + ': ' + message.content + '\\n\\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- 'assistant: ' }}{%- endif %}"""

# As Qwen 3: reasoning is shown behind the last user message, tool results aside, and can be switched off.
THINKING = """
{%- set state = namespace(last=0) %}
{%- for message in messages %}{%- if message.role == 'user' %}{%- set state.last = loop.index0 %}{%- endif %}{%- endfor %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.role == 'assistant' and loop.index0 > state.last and (loop.last or message.reasoning_content) %}
        {{- '<think>\\n' + (message.reasoning_content or '') + '\\n</think>\\n\\n' }}
    {%- endif %}
    {{- message.content or '' }}
    {%- for call in message.tool_calls or [] %}
        {{- '\\n' if message.content or not loop.first }}
        {{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) + '}\\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and not enable_thinking %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}"""

# As DeepSeek R1: the prompt opens the reasoning, history never shows it.
OPENED = """{{- bos_token }}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}{{- '<|assistant|>' + message.content.split('</think>')[-1] | trim + eos_token }}
    {%- else %}{{- '<|user|>' + message.content }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|><think>\\n' }}{%- endif %}"""

LLAMA3 = """{{- bos_token }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' }}
    {%- for call in message.tool_calls or [] %}
        {{- '; ' if not loop.first }}{{- '{"name": "' + call.function.name + '", "parameters": ' + (call.function.arguments | tojson) + '}' }}
    {%- else %}{{- message.content | trim }}{%- endfor %}
    {{- '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}"""

MISTRAL_TOOLS = """{{- bos_token }}
{%- for message in messages %}
    {%- if message.role == 'user' %}{{- '[INST]' + message.content + '[/INST]' }}
    {%- elif message.role == 'tool' %}{{- '[TOOL_RESULTS]' + message.content + '[/TOOL_RESULTS]' }}
    {%- else %}
        {{- message.content or '' }}
        {%- if message.tool_calls %}
            {{- '[TOOL_CALLS] [' }}
            {%- for call in message.tool_calls %}
                {{- ', ' if not loop.first }}{{- '{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) + '}' }}
            {%- endfor %}
            {{- ']' }}
        {%- endif %}
        {{- eos_token }}
    {%- endif %}
{%- endfor %}"""

MAGISTRAL = (
    MISTRAL_TOOLS.replace("{{- '[TOOL_CALLS] [' }}", "")
    .replace("{{- ']' }}", "")
    .replace(
        """{{- ', ' if not loop.first }}{{- '{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) + '}' }}""",
        "{{- '[TOOL_CALLS]' + call.function.name + '[ARGS]' + (call.function.arguments | tojson) }}",
    )
)

_CHATML_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def _byte_level(
    special: Sequence[str], template: str, tags: Sequence[str] = ("<tool_call>", "</tool_call>"), **names: str
) -> PreTrainedTokenizerFast:
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=360, special_tokens=list(special), initial_alphabet=alphabet, show_progress=False
        ),
    )
    bpe.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in tags])
    return PreTrainedTokenizerFast(tokenizer_object=bpe, chat_template=template, **names)


def _sentence_piece(template: str, *, legacy: bool) -> PreTrainedTokenizerFast:
    """As Llama 2's and Mistral's: words begin with a mark for the space, unknown characters fall back to bytes.

    The legacy form puts a mark behind every special token, the newer one only where the text begins.
    """
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    if legacy:
        bpe.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    else:
        bpe.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    bpe.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    special = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"]
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=420, special_tokens=[*special, *byte_tokens], show_progress=False)
    bpe.train_from_iterator([text.split("Größe")[0] for text in CORPUS], trainer)
    trained = Tokenizer.from_str(_without_special_bytes(bpe.to_str(), special))
    return PreTrainedTokenizerFast(
        tokenizer_object=trained, chat_template=template, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


def _without_special_bytes(serialized: str, special: Sequence[str]) -> str:
    content = json.loads(serialized)
    content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] in special]
    return json.dumps(content)


@pytest.fixture(scope="session")
def tokenizers() -> dict[str, PreTrainedTokenizerFast]:
    chatml_names = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    llama3_tokens = ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
    think = ("<tool_call>", "</tool_call>", "<think>", "</think>")
    opened = ("<s>", "</s>", "<|user|>", "<|assistant|>")
    mistral = ("<s>", "</s>", "[INST]", "[/INST]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]")
    ends = {"bos_token": "<s>", "eos_token": "</s>"}
    return {
        "chatml": _byte_level(_CHATML_TOKENS, CHATML, **chatml_names),
        # As in Llama 3, the end-of-text token is not the one that ends a reply.
        "llama3": _byte_level(
            (*llama3_tokens, "<|python_tag|>"), LLAMA3, (), bos_token=llama3_tokens[0], eos_token=llama3_tokens[1]
        ),
        "mistral": _sentence_piece(MISTRAL, legacy=True),
        "zephyr": _sentence_piece(ZEPHYR, legacy=False),
        "qwen3": _byte_level(_CHATML_TOKENS, QWEN3, **chatml_names),
        "thinking": _byte_level(_CHATML_TOKENS, THINKING, think, **chatml_names),
        "opened": _byte_level(opened, OPENED, think, **ends),
        "mistral_tools": _byte_level(mistral, MISTRAL_TOOLS, (), **ends),
        "magistral": _byte_level((*mistral, "[ARGS]", "[THINK]", "[/THINK]"), MAGISTRAL, (), **ends),
        "plain": _byte_level(("<|endoftext|>",), PLAIN, eos_token="<|endoftext|>"),
    }


@pytest.fixture(scope="session")
def codecs(tokenizers: dict[str, PreTrainedTokenizerFast]) -> dict[str, Codec]:
    return {style: Codec(tokenizer) for style, tokenizer in tokenizers.items()}


@pytest.fixture(scope="session")
def chatml(codecs: dict[str, Codec]) -> Codec:
    return codecs["chatml"]


MakeTurn = Callable[..., Turn]


@pytest.fixture(scope="session")
def make_turn() -> MakeTurn:
    """A turn whose ids are given; everything that is not of interest is filled in."""

    def make(
        codec: Codec,
        messages: Sequence[Message],
        output_ids: Sequence[int],
        *,
        tools: Sequence[ToolSpec] = (),
        index: int = 0,
        prompt_ids: Sequence[int] | None = None,
        finish: FinishReason = FinishReason.STOP,
        stop: tuple[str, ...] = (),
        **fields: Any,
    ) -> Turn:
        prompt_ids = tuple(codec.render(messages, tools) if prompt_ids is None else prompt_ids)
        options = {"choice": fields.pop("choice")} if "choice" in fields else {}
        reply = codec.parse_reply(output_ids, tools, turn_index=index, stop=stop, prompt_ids=prompt_ids, **options)
        return plain_turn(
            index,
            prompt_ids,
            output_ids,
            finish_reason=finish,
            params=SamplingParams(max_tokens=64, stop=stop),
            messages=tuple(messages),
            reply=reply,
            tools=tuple(tools),
            **fields,
        )

    return make
