"""What people ask for by name and nothing in a study stands for, with the way to say it if there is one.

Place in the flow: topic.py takes these out of a topic before it looks for settings, so that a "LoRA learning rate" is
no learning rate. A name that is missing here is found all the same: account.py finds every word that nothing stands
for. The table only gives such a name its whole length and a remedy of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What would have to stand for a part of a topic."""

    SETTING = "setting"
    PROGRAM = "program"
    ENVIRONMENT = "environment"
    MODEL = "model"
    MACHINE = "machine"
    NUMBER = "number"
    COMPARISON = "comparison"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a topic that is not understood: its text as it stands there, where it begins, and what to do."""

    text: str
    start: int
    kind: Kind
    remedy: str = ""

    @property
    def end(self) -> int:
        return self.start + len(self.text)


REMEDIES = {
    Kind.SETTING: "no setting of a job stands for it",
    Kind.PROGRAM: "it is written as a program: give the plain one and yours, --program plain.py --program changed.py",
    Kind.ENVIRONMENT: "it is no bundled environment: name its folder, file or library with --env",
    Kind.MODEL: "name the directory of the model with --train-model",
    Kind.MACHINE: "there are not so many here: leave it out, or name servers that have them with --servers",
    Kind.NUMBER: "it stands beside no name of a setting: write it after one, as in 'learning rate 1e-3 or 3e-3'",
    Kind.COMPARISON: "a study compares settings by their score on held-out tasks of one environment, and nothing else",
    Kind.UNKNOWN: "nothing that a study can vary or train on has this name",
}

_SIZE = r"\d+(?:\.\d+)?\s?(?:[bB]\b(?!atch)|[mM]\b(?!inutes?))(?:[- ]?(?:param(?:eter)?s?|models?))?"
_FAMILIES = r"(?:qwen|llama|mistral|mixtral|gemma|phi|smollm|pythia|gpt|deepseek|olmo|claude|gemini|bert|t5)"

FOREIGN: tuple[tuple[Kind, str], ...] = (
    (Kind.SETTING, r"qlora|lora[-_ ](?:alphas?|adapters?|dropout|learning rates?)|peft"),
    (Kind.SETTING, r"drop-?out(?:[- ]rates?)?|quanti[sz](?:ation|ed)|(?:b?f(?:loat|p)|int)[- ]?(?:4|8|16|32)\b"),
    (Kind.SETTING, r"(?:(?:learning[- ]rate|lr) )?(?:cosine|linear)(?:[- ](?:decay|schedule|annealing))+|cosine"),
    (Kind.SETTING, r"(?:learning[- ]rate|lr|temperature|entropy|kl)[- ](?:schedul\w*|decay|anneal\w*)"),
    (Kind.SETTING, r"sgd|muon|lion optimi[sz]er|adafactor|rmsprop|momentum|(?:choice of |which )optimi[sz]ers?"),
    (Kind.SETTING, r"top[-_ ]?[pk]\b|nucleus(?: sampling)?|min[-_ ]p\b|repetition penalt(?:y|ies)"),
    (Kind.SETTING, r"(?:attention|layer|hidden|network|model) (?:depths?|widths?)"),
    (Kind.SETTING, r"number of (?:layers|parameters|heads)"),
    (Kind.SETTING, r"dpo|ipo|kto|orpo|simpo|sft|supervised fine-?tuning|distillation|dynamic sampling"),
    (Kind.SETTING, r"gae|value (?:function|network|model)s?|critics?|actor[- ]critic|td[- ]lambda|ppo(?:-style)?"),
    (Kind.PROGRAM, r"(?:process |step[- ]wise |dense |sparse )?reward[- ](?:shaping|models?|functions?|design)"),
    (Kind.PROGRAM, r"(?:process|dense|sparse|length|format|partial)[- ](?:rewards?|penalt(?:y|ies)|credit)"),
    (Kind.PROGRAM, r"shap(?:ing|ed)|curricul(?:um|a)(?: learning)?|replay buffers?|task order(?:ing)?"),
    (Kind.PROGRAM, r"chain[- ]of[- ]thoughts?|cot|few[- ]shot(?: examples?| prompts?)?"),
    (Kind.PROGRAM, r"(?:system )?prompt (?:\w+ing|templates?)|system prompts?|majority vot(?:e|ing)|reflection"),
    (Kind.PROGRAM, r"self[- ](?:consistency|reflection|correction|play)|workflows?|debate|scaffolds?"),
    (Kind.PROGRAM, r"(?:two|three|multi|\d+)[- ]?agents?(?: (?:workflows?|systems?|debate))?"),
    (Kind.PROGRAM, r"(?:number of|max(?:imum)?) (?:turns|tool calls|retries|attempts)|best[- ]of[- ]n\b"),
    (Kind.ENVIRONMENT, r"gsm-?8k|math-?500|mmlu(?:-pro)?|humaneval|mbpp|aime(?: ?20\d\d)?|hotpotqa|gpqa"),
    (Kind.ENVIRONMENT, r"swe-?bench(?:[- ]\w+)?|arc(?:-agi)?|livecodebench|countdown|sudoku|wordle|alfworld"),
    (Kind.ENVIRONMENT, r"webshop|frozen ?lake|blackjack"),
    (Kind.ENVIRONMENT, r"(?:my|our) (?:own )?(?:\w+ )?(?:data(?: ?sets?)?|tasks?|environments?|benchmarks?|logs)"),
    (Kind.COMPARISON, r"reward hacking|(?:catastrophic )?forgetting|choice of (?:the |a )?(?:random )?seeds?"),
    (Kind.COMPARISON, r"(?:seed|prompt) (?:choice|sensitivity|variance)|transfer(?:s|red)?(?: to)?"),
    (Kind.COMPARISON, r"generali[sz]\w+ to"),
    (Kind.MODEL, rf"(?:(?:an?|the) )?{_SIZE}(?:[- ]{_FAMILIES}[\w.-]*)?|{_FAMILIES}[- ]?[\w.-]*(?:[- ]{_SIZE})?"),
)  # fmt: skip
"""Patterns by what would have to stand for them; matched without regard to case, at word boundaries."""

_PATTERNS = tuple((kind, re.compile(rf"(?<![\w-])(?:{pattern})(?![\w-])", re.IGNORECASE)) for kind, pattern in FOREIGN)
_ARTICLE = re.compile(r"(?:an?|the)\s+", re.IGNORECASE)


def find_foreign(text: str) -> Iterator[Part]:
    """The foreign parts of a topic in order; of two that overlap the longer one."""
    found = [
        _part(match.group(), match.start(), kind) for kind, pattern in _PATTERNS for match in pattern.finditer(text)
    ]
    found.sort(key=lambda part: (part.start - part.end, part.start))
    chosen: list[Part] = []
    for part in found:
        if not any(part.start < other.end and other.start < part.end for other in chosen):
            chosen.append(part)
    yield from sorted(chosen, key=lambda part: part.start)


def _part(text: str, start: int, kind: Kind) -> Part:
    article = _ARTICLE.match(text)
    skipped = article.end() if article else 0
    return Part(text[skipped:].rstrip(), start + skipped, kind, REMEDIES[kind])
