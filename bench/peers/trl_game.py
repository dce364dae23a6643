"""The game of sixteen turns as a `rollout_func` of TRL: all episodes advance together, one turn at a time.

Place in the flow: trl_side.py gives it to the trainer. The cache of keys and values is kept from one turn to the next,
so that no turn computes the conversation before it again; rows that are shorter have masked gaps.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache, GenerationConfig
from trl.models.utils import unwrap_model_for_generation

from bench.peers.workload import REPEATS, TEMPERATURE
from swarm.tasks.base import Exchange, TaskFamily
from swarm.types import Message, Task

END = "<|im_end|>"


class GameRollout:
    """Callable as `rollout_func`. It plays the next tasks in order, each `REPEATS` times in a row."""

    def __init__(self, family: TaskFamily, tasks: Sequence[Task]) -> None:
        self._family = family
        self._tasks = tasks
        self._taken = 0

    def __call__(self, prompts: list[list[Message]], trainer: Any) -> dict[str, Any]:
        """Play one episode per prompt and return columns with a row per episode.

        The columns are the token ids of the first prompts, the token ids of the rest, the mask of the tokens in the
        rest that the model wrote, and the rewards.
        """
        number = len(prompts) // REPEATS
        tasks = self._tasks[self._taken : self._taken + number]
        self._taken += number
        exchanges = [self._family.open(task) for task in tasks for _ in range(REPEATS)]
        if [prompt[-1]["content"] for prompt in prompts] != [each.task.main_query for each in exchanges]:
            raise ValueError("the trainer takes its prompts in another order than the tasks have")
        tokenizer = trainer.processing_class
        prompt_ids = tokenizer.apply_chat_template(prompts, add_generation_prompt=True, return_dict=False)
        with (
            unwrap_model_for_generation(trainer.model_wrapped, trainer.accelerator) as model,
            torch.no_grad(),
        ):
            rows = _play(model, tokenizer, exchanges, prompt_ids, self._family.max_tokens)
        return {
            "prompt_ids": prompt_ids,
            "completion_ids": rows.ids,
            "env_mask": rows.masks,
            "logprobs": None,
            "game_reward": [exchange.reward for exchange in exchanges],
        }


class _Rows:
    """The tokens after the first prompt of each episode, without the gaps of the batch."""

    def __init__(self, number: int) -> None:
        self.ids: list[list[int]] = [[] for _ in range(number)]
        self.masks: list[list[int]] = [[] for _ in range(number)]

    def extend(self, pieces: Sequence[list[int]], mask: int) -> None:
        for ids, masks, piece in zip(self.ids, self.masks, pieces, strict=True):
            ids += piece
            masks += [mask] * len(piece)


def _play(
    model: Any, tokenizer: Any, exchanges: Sequence[Exchange], prompt_ids: Sequence[list[int]], max_tokens: int
) -> _Rows:
    rows, cache = _Rows(len(exchanges)), DynamicCache(config=model.config)
    config = GenerationConfig(
        max_new_tokens=max_tokens,
        do_sample=True,
        temperature=TEMPERATURE,
        top_k=0,
        top_p=1.0,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    ids, mask = _left_padded(prompt_ids, tokenizer.pad_token_id)
    while True:
        output = model.generate(ids, attention_mask=mask, past_key_values=cache, generation_config=config)
        new = output[:, ids.shape[1] :]
        is_end = (new == tokenizer.eos_token_id).long()
        # The reply ends at the first end token; the rest is padding.
        is_reply = is_end.cumsum(1) - is_end == 0
        replies = [row[kept].tolist() for row, kept in zip(new, is_reply, strict=True)]
        rows.extend(replies, 1)
        texts = tokenizer.batch_decode(replies, skip_special_tokens=True)
        following = [
            exchange.reply({"role": "assistant", "content": text})
            for exchange, text in zip(exchanges, texts, strict=True)
        ]
        if following[0] is None:
            return rows
        suffixes = tokenizer(
            [
                _render(reply[-1] == tokenizer.eos_token_id, messages or ())
                for reply, messages in zip(replies, following, strict=True)
            ],
            add_special_tokens=False,
        )["input_ids"]
        rows.extend(suffixes, 0)
        suffix, suffix_mask = _left_padded(suffixes, tokenizer.pad_token_id)
        ids = torch.cat([output, suffix], dim=1)
        mask = torch.cat([mask, is_reply.long(), suffix_mask], dim=1)


def _render(is_ended: bool, messages: Sequence[Message]) -> str:
    """Return the text that the chat template puts between a reply and the next one."""
    text = "".join(f"<|im_start|>{each['role']}\n{each['content']}{END}\n" for each in messages)
    return f"{'' if is_ended else END}\n{text}<|im_start|>assistant\n"


def _left_padded(rows: Sequence[list[int]], padding: int) -> tuple[torch.Tensor, torch.Tensor]:
    longest = max(map(len, rows))
    ids = torch.tensor([[padding] * (longest - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
    return ids, mask
