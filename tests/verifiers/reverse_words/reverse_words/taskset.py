"""Three letters to be written backwards. `task.judgement` makes the reward go wrong, for tests of what follows: with
`never` the judge says that it has begun, to who reads the pipe `task.begun`, and does not come to an end."""

import asyncio
import random
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Literal

import verifiers.v1 as vf

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


class ReverseWordsData(vf.TaskData):
    answer: str


class ReverseWordsTaskConfig(vf.TaskConfig):
    judgement: Literal["right", "nan", "error", "never"] = "right"
    begun: str | None = None


class ReverseWordsTask(vf.Task[ReverseWordsData, vf.State, ReverseWordsTaskConfig]):
    @vf.reward(weight=1.0)
    async def reversed_word(self, trace: vf.Trace) -> float:
        print("what a task prints is no answer")  # noqa: T201
        if self.config.judgement == "error":
            raise ValueError("this judge never comes to an end")
        if self.config.judgement == "never":
            if self.config.begun is not None:
                Path(self.config.begun).write_text("begun", encoding="utf-8")
            await asyncio.Event().wait()
        right = [a == b for a, b in zip(trace.last_reply, self.data.answer, strict=False)]
        return float("nan") if self.config.judgement == "nan" else sum(right) / len(self.data.answer)

    @vf.metric
    async def letters(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply))


class ReverseWordsConfig(vf.TasksetConfig):
    num_tasks: int = 200
    split: Literal["all", "train", "eval"] = "all"
    task: ReverseWordsTaskConfig = ReverseWordsTaskConfig()


class ReverseWordsTaskset(vf.Taskset[ReverseWordsTask, ReverseWordsConfig]):
    """Three letters to be written backwards."""

    def load(self) -> Iterator[ReverseWordsTask]:
        words = ["".join(letters) for letters in product(LETTERS, repeat=3)]
        words = random.Random(0).sample(words, self.config.num_tasks)
        held_out = len(words) // 4
        for word in {"all": words, "eval": words[:held_out], "train": words[held_out:]}[self.config.split]:
            data = ReverseWordsData(prompt=f"Reverse: {word}", answer=word[::-1], name=f"reverse {word}")
            yield ReverseWordsTask(data, self.config.task)
