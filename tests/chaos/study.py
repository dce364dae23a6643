"""The study under faults: its topic, its environment, what the language model answers, and the words that begin it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from swarm.environments import load_environment
from swarm.tasks import Split

TASKS_PER_SPLIT = 400
ENVIRONMENT, JOB, REPLIES = "words", "job.yaml", "replies"
SMALL_JOB = "batch_size: 4\nnum_repeat: 2\n"
"""On the fake engine nothing is learned, so that a step may be small."""

TOML = """\
name = "words"
description = "Spell a word backwards."
query = "question"
answer = "answer"
split = "part"
max_tokens = 12
"""

GRADE = '''\
"""One point for the word spelled backwards."""


def grade(task: dict, transcript: list[dict]) -> float:
    return 1.0 if (transcript[-1].get("content") or "").strip() == task["answer"] else 0.0
'''

PROGRAM = '''\
```python
"""Word reversal: one question, one answer."""


def agent(task, model, session):
    return model.chat(session.messages, tools=session.tools)["content"] or ""
```
'''


@dataclass(frozen=True, slots=True)
class ChaosStudy:
    """Learning rates compared on `seeds` runs per arm and plan. The first rate is the baseline."""

    rates: tuple[float, ...]
    seeds: int
    steps: int
    eval_episodes: int

    @property
    def runs(self) -> int:
        return len(self.rates) * self.seeds

    @property
    def topic(self) -> str:
        rates = [f"{rate:g}" for rate in self.rates]
        return f"learning rate {', '.join(rates[:-1])} or {rates[-1]} for word reversal at equal steps"

    def words(self, folder: Path, urls: Sequence[str], min_free_gb: float) -> list[str]:
        """The arguments of `researcher`, with what `write` wrote into the folder."""
        return [
            *("start", "--topic", self.topic, "--env", str(folder / ENVIRONMENT)),
            *("--engine", "fake", "--job", str(folder / JOB)),
            *("--planner", "hybrid", "--model", "recorded", "--servers", ",".join(urls)),
            *("--seeds", str(self.seeds), "--steps", str(self.steps), "--eval-episodes", str(self.eval_episodes)),
            *("--max-runs", str(self.runs), "--min-free-gb", f"{min_free_gb:g}", "--json"),
        ]

    def write(self, folder: Path) -> None:
        """What the words name, and the replies of the language model."""
        (folder / JOB).write_text(SMALL_JOB)
        self._write_environment(folder / ENVIRONMENT)
        self._write_replies(folder / REPLIES)

    def _write_environment(self, folder: Path) -> None:
        """The tasks of the bundled family, graded by a file of the folder."""
        folder.mkdir(parents=True)
        with closing(load_environment("reverse")) as bundled:
            rows = chain.from_iterable(
                (
                    {
                        "question": item.task.main_query,
                        "answer": bundled.solution(item),
                        "part": split.value,
                    }
                    for item in islice(bundled.tasks(split), TASKS_PER_SPLIT)
                )
                for split in Split
            )
            (folder / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (folder / "environment.toml").write_text(TOML)
        (folder / "grade.py").write_text(GRADE)

    def _write_replies(self, folder: Path) -> None:
        """What the language model answers, as ReplyServer reads it."""
        folder.mkdir(parents=True)
        baseline, *others = [f"lr={rate:g}" for rate in self.rates]
        framed = {
            "question": f"{self.topic}?",
            "family": ENVIRONMENT,
            "vary": [f"lr={','.join(f'{rate:g}' for rate in self.rates)}"],
            "baseline": [baseline],
            "compared_at": "steps",
        }
        for name, answer in {
            "frame.1": framed,
            "interpret.1": {"claims": [{"claim": "opinion", "text": "Some of these learn less in so few steps."}]},
            "plan.1": self._plan(baseline, others),
            "decide.1": {"action": "stop", "reason": "Every value has its runs."},
        }.items():
            (folder / f"{name}.md").write_text(json.dumps(answer))
        for name in ("write_program", "repair_program"):
            (folder / f"{name}.1.md").write_text(PROGRAM)

    def _plan(self, baseline: str, others: Sequence[str]) -> dict[str, Any]:
        names = dict(zip((baseline, *others), self.rates, strict=True))
        return {
            "rationale": "The topic names the values; each is an arm.",
            "hypotheses": [
                {
                    "statement": f"{name} learns less than {baseline} in the same number of steps.",
                    "prediction": f"{name} scores lower on held-out words.",
                    "arms": [name],
                    "relation": "worse",
                    "against": [baseline],
                }
                for name in others
            ],
            "arms": [
                {"name": name, "settings": {"lr": rate}, "purpose": "A value of the topic."}
                for name, rate in names.items()
            ],
            "seeds": self.seeds,
        }
