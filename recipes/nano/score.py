# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
"""The accuracy of a model on the tasks of each family, sampled with plain Hugging Face `generate`."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from swarm.tasks import Split, TaskFamily, converse
from swarm.types import Message

_TOOL_CALL = re.compile(r"<tool_call>\n(.*?)\n</tool_call>", re.DOTALL)


def evaluate(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    family: TaskFamily,
    *,
    count: int,
    temperature: float,
    seed: int = 0,
    split: Split = Split.VALIDATION,
) -> float:
    """Return the mean reward over `count` tasks, where temperature 0 is greedy."""
    torch.manual_seed(seed)
    conversations = [converse(family, task) for task in family.tasks(split, count)]
    requests = {index: next(conversation) for index, conversation in enumerate(conversations)}
    rewards = [0.0] * count
    while requests:
        replies = sample_replies(model, tokenizer, list(requests.values()), temperature)
        for index, reply in zip(list(requests), replies, strict=True):
            try:
                requests[index] = conversations[index].send(reply)
            except StopIteration as finished:
                rewards[index] = finished.value.reward
                del requests[index]
    return sum(rewards) / count


@torch.inference_mode()
def sample_replies(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, requests: Sequence[dict[str, Any]], temperature: float
) -> list[Message]:
    """Return one assistant message per request of chat completions, each of at most the first one's `max_tokens`."""
    untyped_tokenizer: Any = tokenizer
    untyped_model: Any = model
    prompts = [
        untyped_tokenizer.apply_chat_template(
            request["messages"], tools=request.get("tools"), add_generation_prompt=True, tokenize=False
        )
        for request in requests
    ]
    inputs = untyped_tokenizer(
        prompts, add_special_tokens=False, padding=True, padding_side="left", return_tensors="pt"
    )
    sampling: dict[str, Any] = {"do_sample": False}
    if temperature > 0:
        sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    output = untyped_model.generate(
        input_ids=inputs["input_ids"],
        attention_mask=inputs["attention_mask"],
        max_new_tokens=requests[0]["max_tokens"],
        **sampling,
    )
    texts = untyped_tokenizer.batch_decode(output[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    return [_parse_reply(text) for text in texts]


def _parse_reply(text: str) -> Message:
    """Return the assistant message of a completion, where text without a well-formed tool call stays content."""
    try:
        calls = [
            {"id": "call_1", "type": "function", "function": {"name": call["name"], "arguments": call["arguments"]}}
            for call in map(json.loads, _TOOL_CALL.findall(text))
        ]
    except (ValueError, KeyError, TypeError):
        calls = []
    return {"role": "assistant", "content": None if calls else text, "tool_calls": calls}
