"""Three letters to be written backwards. `task.judgement` makes the reward go wrong, for tests of what follows."""

import asyncio
import random
from collections.abc import Iterator
from typing import Literal

import verifiers.v1 as vf

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


class ReverseWordsData(vf.TaskData):
    answer: str


class ReverseWordsTaskConfig(vf.TaskConfig):
    judgement: Literal["right", "nan", "error", "never"] = "right"


class ReverseWordsTask(vf.Task[ReverseWordsData, vf.State, ReverseWordsTaskConfig]):
    @vf.reward(weight=1.0)
    async def reversed_word(self, trace: vf.Trace) -> float:
        print("what a task prints is no answer")  # noqa: T201
        if self.config.judgement == "error":
            raise ValueError("this judge never comes to an end")
        if self.config.judgement == "never":
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
        rng = random.Random(0)
        words = ["".join(rng.choices(LETTERS, k=3)) for _ in range(self.config.num_tasks)]
        distinct = list(dict.fromkeys(words))
        held_out = len(distinct) // 4
        chosen = {"all": distinct, "eval": distinct[:held_out], "train": distinct[held_out:]}[self.config.split]
        for word in chosen:
            data = ReverseWordsData(prompt=f"Reverse: {word}", answer=word[::-1], name=f"reverse {word}")
            yield ReverseWordsTask(data, self.config.task)
