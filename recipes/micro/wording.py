"""The wording of questions: very many ways to ask about an item of a kind of task."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from types import MappingProxyType

from recipes.micro.forms import Form, draw_form, usual_form
from recipes.micro.kinds.base import Item, Kind, draw_sentence
from recipes.micro.words import NAMES

_WORDINGS = Path(__file__).with_name("wordings.toml")
_CHOICE = re.compile(r"\[([^][]*)\]")
_SLOT = re.compile(r"\{(\w+)\}")
# Subjects that are whole sentences, which are put beside a wording and not into it.
_STORIES = frozenset({"story", "question"})


@dataclass(frozen=True, slots=True)
class Wording:
    """One way to ask about a kind of task, with its choices made and its slots still open."""

    line: str

    @property
    def needs_only_subject(self) -> bool:
        """True if the subject is the only open slot, so that the same line suits any other subject."""
        return set(_SLOT.findall(self.line)) == {"o"}


@dataclass(frozen=True, slots=True)
class WordedQuestion:
    text: str
    wording: Wording
    form: Form


@cache
def wordings() -> Mapping[str, Mapping[str, Sequence[str]]]:
    """Return the `trained` and `held_out` wordings of each kind, either of which may be missing."""
    return MappingProxyType(tomllib.loads(_WORDINGS.read_text(encoding="utf-8")))


def draw_wording(kind: Kind, rng: Random, part: str = "trained") -> Wording:
    """Draw a wording of `kind` from the part `trained` or `held_out`."""
    return Wording(_choose(rng.choice(wordings()[kind.name][part]), rng))


def ask(kind: Kind, item: Item, rng: Random, part: str = "trained", around: float = 1.0) -> WordedQuestion:
    """Draw a whole question, which may have text around it with probability `around`."""
    wording = draw_wording(kind, rng, part)
    if rng.random() >= around:
        return WordedQuestion(_place(kind, wording, item, rng), wording, usual_form(item, wording.line))
    form = draw_form(item, wording.line, rng)
    return WordedQuestion(_surround(kind, wording, item, form, rng), wording, form)


def ask_again(kind: Kind, question: WordedQuestion, item: Item, rng: Random) -> str:
    """Draw a short question that follows `question`, about another item of the same kind."""
    if question.wording.needs_only_subject and kind.nouns[0] not in _STORIES and rng.random() < 0.8:
        return rng.choice(("{}", "{}", "Now {}", "Next: {}", "And {}?", "The same for {}")).format(item.subject)
    return _place(kind, question.wording, item, rng)


def instruct(kind: Kind, wording: Wording, form: Form, rng: Random) -> str:
    """Draw a question without its subject, for a system message after which the user sends subjects alone."""
    noun = rng.choice(kind.nouns)
    phrase = rng.choice((f"the {noun} of the user", f"each {noun}", f"the given {noun}", "what you are given"))
    return " ".join(filter(None, (_ended(wording.line.replace("{o}", phrase), rng), form.request)))


def _choose(line: str, rng: Random) -> str:
    """Return `line` with each `[one|other]` replaced by one of its choices."""
    while "[" in line:
        line = _CHOICE.sub(lambda found: rng.choice(found.group(1).split("|")), line, count=1)
    return re.sub(" +", " ", line)


def _fill(line: str, item: Item) -> str:
    return _SLOT.sub(lambda found: found.group(0) if found.group(1) == "o" else item.slots[found.group(1)], line)


def _place(kind: Kind, wording: Wording, item: Item, rng: Random) -> str:
    """Return the wording with its slots filled, and with the subject inside, after or before it."""
    line, noun, subject = _fill(wording.line, item), rng.choice(kind.nouns), item.subject
    if "{o}" not in line:
        return _ended(line, rng)
    if noun in _STORIES:
        return _ended(line.replace("{o}", subject), rng)
    luck = rng.random()
    if "\n" in subject or (luck < 0.35 and len(line) > 8):
        return _place_after(line, noun, subject, rng)
    if luck < 0.5 and len(line) > 8:
        return _place_before(line, noun, subject, rng)
    if line.endswith(" {o}") and rng.random() < 0.35:
        return f"{line.removesuffix(' {o}')}: {subject}"
    quoted = (subject, subject, f'"{subject}"', f"'{subject}'")
    named = (f'the {noun} "{subject}"', f"the {noun} {subject}", f"the {noun} '{subject}'", f"the {noun}: {subject}")
    phrase = rng.choice(quoted if line.startswith("{o}") else quoted + named)
    return _ended(line.replace("{o}", phrase), rng)


def _place_after(line: str, noun: str, subject: str, rng: Random) -> str:
    phrase = rng.choice((f"the following {noun}", _this(noun), f"the {noun} below", f"the given {noun}"))
    line = _capital(line.replace("{o}", phrase))
    label = rng.choice(("", "", "", f"{noun.capitalize()}: ", "Input: "))
    if line.endswith("?"):
        return line + rng.choice((" ", "\n", "\n\n")) + label + subject
    if label:
        return line + rng.choice((".\n", "\n", ".\n\n", ". ")) + label + subject
    return line + rng.choice((": ", ":\n", ":\n\n", ".\n", "\n")) + subject


def _place_before(line: str, noun: str, subject: str, rng: Random) -> str:
    phrase = rng.choice((_this(noun), f"the {noun}", f"the {noun} above", f"the given {noun}"))
    line = _ended(_capital(line.replace("{o}", phrase)), rng)
    opening = rng.choice(
        (
            f"{noun.capitalize()}: {subject}",
            f"Here is {_one(noun)}: {subject}",
            f"Input: {subject}",
            subject,
            f"Given: {subject}",
        )
    )
    return opening + rng.choice(("\n", "\n\n", ". " if not subject.endswith("]") else "\n")) + line


def _this(noun: str) -> str:
    return f"these {noun}" if noun.endswith("s") else f"this {noun}"


def _one(noun: str) -> str:
    return f"some {noun}" if noun.endswith("s") else f"a {noun}"


def _capital(line: str) -> str:
    return line[:1].upper() + line[1:]


def _ended(line: str, rng: Random) -> str:
    if line.endswith(("?", "=", "!", ".", "\n")) or line[-1:].isdigit():
        return line
    return line + rng.choice((".", ".", "", "", "!", ", please."))


def _surround(kind: Kind, wording: Wording, item: Item, form: Form, rng: Random) -> str:
    parts = [_place(kind, wording, item, rng)]
    if wording.needs_only_subject and kind.nouns[0] not in _STORIES and rng.random() < 0.12:
        parts.insert(rng.randint(0, 1), _examples(kind, form, rng))
    if form.request:
        parts.insert(0 if rng.random() < 0.25 else len(parts), form.request)
    for _ in range(rng.choices((0, 1, 2, 3, 7), (70, 15, 8, 4, 3))[0]):
        parts.insert(rng.randint(0, len(parts)), _irrelevant(rng))
    if rng.random() < 0.04:
        parts.append(rng.choice(("Answer:", "Output:", "A:", "Result:")))
    if rng.random() < 0.04:
        parts[0] = rng.choice(("Q: ", "Question: ", "Task: ", "Problem: ")) + parts[0]
    text = parts[0]
    for part in parts[1:]:
        text += (rng.choice(("\n", "\n\n")) if text[-1] not in ".?!" else rng.choice((" ", "\n", "\n\n", " "))) + part
    return text


def _examples(kind: Kind, form: Form, rng: Random) -> str:
    shape = rng.choice(("{} -> {}", "{} = {}", "Input: {}\nOutput: {}", "Q: {}\nA: {}", "Example: {} becomes {}"))
    items = [kind.draw(rng) for _ in range(rng.randint(1, 3))]
    lines = [shape.format(item.subject, form.write(item)) for item in items]
    return rng.choice(("", "Examples:\n", "For example:\n", "Example:\n")) + "\n".join(lines)


def _irrelevant(rng: Random) -> str:
    name = rng.choice(NAMES)
    return rng.choice(
        (
            "Think before you answer.", "Take your time.", "This is a simple question.", "Read the text with care.",
            "You are a helpful assistant.", "Do not explain.", "It is important that your answer is correct.",
            "Here is a task for you.", "Please help me with this.", f"{name} wants to know this.", "Be brief.",
            f"My name is {name}.", "There is just one right answer.", "I need this for my work.", "Look at it closely.",
            f"{name} asked me the same yesterday.", "Thank you for your help!", "Ignore everything else.",
            f"{draw_sentence(rng)}.", f"{draw_sentence(rng)}.", f"{draw_sentence(rng)}. {draw_sentence(rng)}.",
        )
    )  # fmt: skip
