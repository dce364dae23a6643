"""Topics drawn from a grammar of wordings, each with its meaning as data."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from researcher.charter import Asked

NUMERIC: Mapping[str, tuple[tuple[str, ...], tuple[float, ...]]] = {
    "lr": (("lr", "learning rate", "Learning Rate", "step size"), (1e-4, 5e-4, 2e-3, 0.01, 0.02, 0.1)),
    "batch_size": (("batch size", "batch_size", "batch-size", "train batch size"), (4, 12, 24, 64, 128, 1000)),
    "num_repeat": (("group size", "num_repeat", "rollouts per prompt"), (2, 6, 12, 32, 64)),
    "temperature": (("temperature", "sampling temperature"), (0.25, 0.5, 0.9, 1.5)),
    "entropy_coeff": (("entropy bonus", "entropy coefficient"), (0.002, 0.005, 0.05)),
    "weight_decay": (("weight decay",), (0.02, 0.05, 0.3)),
    "max_response_length": (("response length", "max tokens"), (64, 96, 300, 1000, 2000)),
    "lora_rank": (("LoRA rank", "lora_rank"), (2, 6, 32)),
    "grad_clip": (("gradient clipping", "max grad norm"), (0.2, 0.7, 5.0)),
    "lr_warmup_steps": (("warm-up", "warmup"), (3, 7, 12)),
}
"""The names and some values of settings, none of them usual: a usual level in an answer was not in the topic."""
COUNTABLE: Mapping[str, tuple[str, tuple[int, ...]]] = {
    "num_repeat": ("episodes per task", (2, 6, 12, 32)),
    "ppo_epochs": ("epochs", (3, 5, 7)),
    "mini_batch_num": ("minibatches", (3, 5, 8)),
}
NAMED: Mapping[str, tuple[tuple[str, Any], ...]] = {
    "algorithm": (("GRPO", "grpo"), ("RLOO", "rloo"), ("CISPO", "cispo"), ("ReMax", "remax"), ("Dr.GRPO", "dr.grpo")),
    "model": (("nano", "nano"), ("micro", "micro")),
    "lr_scheduler_type": (("cosine", "cosine"), ("linear", "linear")),
}
SWITCHED: Mapping[str, tuple[str, Any, Any]] = {
    "use_kl_loss": ("KL", False, True),
    "weight_decay": ("weight decay", 0.0, 0.01),
    "lr_warmup_steps": ("warm-up", 0, 5),
    "entropy_coeff": ("entropy bonus", 0.0, 0.01),
}
"""What can be left out: its name, its value when off, and the usual value when on."""
PLACES: Mapping[str, tuple[str, ...]] = {
    "copy": ("copying", "copy"),
    "sort": ("sorting letters", "sorting"),
    "guess": ("the guessing game",),
    "reverse": ("word reversal", "reverse"),
    "calc": ("the calculator",),
}
WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]


@dataclass(frozen=True)
class Drawn:
    """A topic and what it means.

    `numbers` are its numbers as they are spelled, with their values. `is_plain` says that it must be answered: nothing
    in it is open. `is_open` says that no answer can be right, because the topic leaves out what is compared. `is_odd`
    says that it has a part that no setting can express, so that it is refused.
    """

    text: str
    asks: Mapping[str, tuple[Any, ...]] = field(default_factory=dict[str, tuple[Any, ...]])
    baseline: tuple[str, Any] | None = None
    asked: Asked = Asked.EFFECT
    fixed: Mapping[str, Any] = field(default_factory=dict[str, Any])
    seeds: int | None = None
    steps: int | None = None
    environment: str | None = None
    numbers: tuple[tuple[str, float], ...] = ()
    is_plain: bool = True
    is_open: bool = False
    is_odd: bool = False

    def followed_by(self, text: str, *numbers: tuple[str, float], **meaning: Any) -> Drawn:
        return replace(self, text=self.text + text, numbers=(*self.numbers, *numbers), **meaning)


def spell(draw: Random, value: float) -> str:
    """Return the number in one of the ways in which people write it."""
    number = int(value) if float(value).is_integer() else value
    if isinstance(number, int):
        ways = [str(number)]
        if 2 <= number < len(WORDS):
            ways.append(WORDS[number])
        if number >= 1000 and not number % 1000:
            ways += [f"{number:,}", f"{number // 1000}k", f"{number // 1000}K", f"{number // 1000}e3"]
        return draw.choice(ways)
    plain = f"{number:.6f}".rstrip("0")
    mantissa, _, exponent = f"{number:e}".partition("e")
    mantissa = mantissa.rstrip("0").rstrip(".")
    ways = [plain, plain.removeprefix("0"), f"{plain}0", f"{mantissa}e{int(exponent)}", f"{mantissa}E{int(exponent)}"]
    if mantissa == "1":
        ways.append(f"10^{int(exponent)}")
    return draw.choice(ways)


def draw_topic(draw: Random) -> Drawn:
    """Return a topic: a comparison, then other parts in any order, a closing mark and a case."""
    topic = draw.choice(COMPARISONS)(draw)
    parts = draw.sample(PARTS, draw.choice((0, 1, 1, 2, 2, 3)))
    # A place directly behind the comparison is as common as one at the end.
    for part in parts:
        topic = part(draw, topic)
    if draw.random() < 0.06:
        topic = replace(topic, text=f"{topic.text}, {draw.choice(ODDITIES)}", is_plain=False, is_odd=True)
    text = topic.text + draw.choice(("", "", "?", ".", " ?", "!"))
    case: Callable[[str], str] = draw.choice((str, str, str.capitalize, str.upper, str.lower))
    return replace(topic, text=case(text), numbers=tuple((case(spelled), value) for spelled, value in topic.numbers))


ODDITIES = ("except on Sundays", "if possible", "unlike my colleague", "half of it", "not both")


def _levels(draw: Random, most: int = 3) -> tuple[str, str, list[tuple[str, float]]]:
    name = draw.choice(list(NUMERIC))
    called, values = NUMERIC[name]
    levels = draw.sample(values, draw.randint(2, most))
    return name, draw.choice(called), [(spell(draw, value), value) for value in levels]


def _asks(name: str, levels: Sequence[tuple[str, float]]) -> dict[str, tuple[float, ...]]:
    return {name: tuple(value for _, value in levels)}


def list_of_values(draw: Random) -> Drawn:
    name, called, levels = _levels(draw)
    texts = [text for text, _ in levels]
    if len(texts) == 2:
        joint = draw.choice((" or ", " vs ", " vs. ", " versus ", " against ", " and ", "/", " / ", ", "))
        # No word has a stroke beside it, and no thousands.
        listed = (joint if all(text[-1].isdigit() and "," not in text for text in texts) else " or ").join(texts)
    else:
        listed = f"{', '.join(texts[:-1])}{draw.choice((' or ', ' and ', ', or ', ', '))}{texts[-1]}"
    # Two whole numbers with a stroke between them may be a fraction, and words have no strokes.
    is_plain = "/" not in listed or all(re.search(r"\d[.e^]|\.", text.lower()) for text in texts)
    form = draw.choice(("{} {}", "{}: {}", "{} of {}", "compare {} {}", "{} = {}", "{}={}", "does {} {} matter"))
    if listed.count(",") and form == "{}={}":
        form = "{}: {}"
    return Drawn(form.format(called, listed), _asks(name, levels), numbers=tuple(levels), is_plain=is_plain)


def list_in_brackets(draw: Random) -> Drawn:
    name, called, levels = _levels(draw)
    opening, closing = draw.choice(("{}", "[]", "()"))
    has_thousands = any("," in text for text, _ in levels)
    listed = draw.choice((", ", ", " if has_thousands else ",")).join(text for text, _ in levels)
    # 8,16 without a space may be one number.
    is_plain = ", " in listed or opening == "("
    text = f"{called}{draw.choice((' in ', ': ', '=', ' '))}{opening}{listed}{closing}"
    return Drawn(text, _asks(name, levels), numbers=tuple(levels), is_plain=is_plain and ", " in listed)


def assignments(draw: Random) -> Drawn:
    name, called, levels = _levels(draw, most=2)
    mark, joint = draw.choice(("=", " = ", "=", " ")), draw.choice((" vs ", " or ", " against ", " vs. "))
    text = joint.join(f"{called}{mark}{text}" for text, _ in levels)
    return Drawn(text, _asks(name, levels), numbers=tuple(levels))


def change(draw: Random) -> Drawn:
    name, called, levels = _levels(draw)
    texts = [text for text, _ in levels]
    first = (name, levels[0][1])
    if len(levels) > 2 or draw.random() < 0.5:
        text = f"{called} {draw.choice((' -> ', '->', ' → ', '→', ' --> ')).join(texts)}"
    else:
        text = draw.choice(("{} from {} to {}", "change {} from {} to {}", "{} {} to {}")).format(called, *texts)
    # "Batch size 8 to 64" may be a range.
    return Drawn(text, _asks(name, levels), first, numbers=tuple(levels), is_plain="to" not in text or "from" in text)


def change_of_something(draw: Random) -> Drawn:
    """A change of which nobody can say what changes."""
    _, _, levels = _levels(draw, most=2)
    text = draw.choice((" -> ", " vs ", " or ", " to ")).join(text for text, _ in levels)
    return Drawn(text, numbers=tuple(levels), is_plain=False, is_open=True)


def better(draw: Random) -> Drawn:
    name, called, levels = _levels(draw, most=2)
    one, other = (text for text, _ in levels)
    form, asked, place = draw.choice(
        (
            ("is {0} {1} better than {2}", Asked.BETTER, 1),
            ("is {0} {1} better than {0} {2}", Asked.BETTER, 1),
            ("does {0} {1} beat {2}", Asked.BETTER, 1),
            ("does {0} {1} outperform {0} {2}", Asked.BETTER, 1),
            ("{0} {1} instead of {2}", Asked.BETTER, 1),
            ("is {0} {1} as good as {2}", Asked.EQUAL, 1),
            ("does {0} {1} learn faster than {2}", Asked.SOONER, 1),
            # One is worse than the other if the other is better than the one.
            ("is {0} {1} worse than {2}", Asked.BETTER, 0),
            ("is {0} {1} worse than {0} {2}", Asked.BETTER, 0),
            ("{0}={1} is worse than {0}={2}", Asked.BETTER, 0),
        )
    )
    baseline = (name, levels[place][1])
    text = form.format(called, one, other)
    return Drawn(text, _asks(name, levels), baseline=baseline, asked=asked, numbers=tuple(levels))


def best(draw: Random) -> Drawn:
    name, called, levels = _levels(draw)
    listed = ", ".join(text for text, _ in levels[:-1]) + " or " + levels[-1][0]
    form = draw.choice(("which {} is best, {}", "which {} is best: {}"))
    return Drawn(form.format(called, listed), _asks(name, levels), asked=Asked.BEST, numbers=tuple(levels))


def counted(draw: Random) -> Drawn:
    name = draw.choice(list(COUNTABLE))
    called, values = COUNTABLE[name]
    levels = [(spell(draw, value), float(value)) for value in draw.sample(values, 2)]
    text = f"{draw.choice((' or ', ' vs ', ' versus ')).join(text for text, _ in levels)} {called}"
    return Drawn(text, _asks(name, levels), numbers=tuple(levels))


def counted_steps(draw: Random) -> Drawn:
    levels = [(spell(draw, value), float(value)) for value in draw.sample((10, 25, 50, 1000), 2)]
    text = f"{levels[0][0]} {draw.choice(('or', 'vs'))} {levels[1][0]} steps"
    return Drawn(text, _asks("total_steps", levels), numbers=tuple(levels))


def with_unit(draw: Random) -> Drawn:
    called, values = NUMERIC["max_response_length"]
    levels = [(spell(draw, value), value) for value in draw.sample(values, 2)]
    one, other = (text for text, _ in levels)
    form = draw.choice(("{0} {1} or {2} tokens", "{0} of {1} tokens or {2} tokens", "{0} of {1} vs {2} tokens"))
    text = form.format(draw.choice(called), one, other)
    return Drawn(text, _asks("max_response_length", levels), numbers=tuple(levels))


def choice(draw: Random) -> Drawn:
    name = draw.choice(list(NAMED))
    (one, first), (other, second) = draw.sample(NAMED[name], 2)
    form, asked, baseline = draw.choice(
        (
            ("{} vs {}", Asked.EFFECT, None),
            ("{} vs. {}", Asked.EFFECT, None),
            ("{} or {}", Asked.EFFECT, None),
            ("compare {} and {}", Asked.EFFECT, None),
            ("{} against {}", Asked.EFFECT, None),
            ("is {} better than {}", Asked.BETTER, second),
            ("does {} beat {}", Asked.BETTER, second),
            ("is {} worse than {}", Asked.BETTER, first),
        )
    )
    named = None if baseline is None else (name, baseline)
    return Drawn(form.format(one, other), {name: (first, second)}, baseline=named, asked=asked)


def switched(draw: Random) -> Drawn:
    name = draw.choice(list(SWITCHED))
    called, off, on = SWITCHED[name]
    form = draw.choice(
        ("with and without {0}", "with or without {0}", "{0} or no {0}", "{0} vs no {0}", "no {0} or {0}")
    )
    return Drawn(form.format(called), {name: (off, on)})


def needed(draw: Random) -> Drawn:
    name = draw.choice(list(SWITCHED))
    called, off, on = SWITCHED[name]
    return Drawn(f"is {called} needed", {name: (off, on)}, asked=Asked.NEEDED)


def two_settings(draw: Random) -> Drawn:
    (name, called, levels), (other, called_other, others) = _levels(draw, 2), _levels(draw, 2)
    if name == other:
        return list_of_values(draw)
    text = f"{called} {levels[0][0]} or {levels[1][0]}, {called_other} {others[0][0]} or {others[1][0]}"
    return Drawn(text, _asks(name, levels) | _asks(other, others), numbers=(*levels, *others))


def without_alone(draw: Random) -> Drawn:
    """A setting that is off, and nothing to compare."""
    called, off, _ = SWITCHED[name := draw.choice(list(SWITCHED))]
    form = draw.choice(("without {}", "train without {}", "training with no {}"))
    return Drawn(form.format(called), fixed={name: off}, is_plain=False, is_open=True)


def odd_number(draw: Random) -> Drawn:
    """Numbers that are not read: parts, multiples, ranges and what no setting can be."""
    name, texts, values = draw.choice(
        (
            ("temperature", ("10%", "20%"), (10, 20)),
            ("batch_size", ("2x", "4x"), (2, 4)),
            ("lr", ("1/3", "1/7"), (3, 7)),
            ("temperature", ("-0.5", "0.25"), (-0.5, 0.25)),
            ("lr", ("1e-4..2e-3", "0.1"), (1e-4, 0.1)),
            ("num_repeat", ("3-5", "7"), (3, 7)),
            ("batch_size", ("16-64", "128"), (16, 128)),
            ("max_response_length", ("~100", "200"), (100, 200)),
            ("weight_decay", ("0,02", "0,05"), (2, 5)),
            ("batch_size", ("12.5", "64"), (12.5, 64)),
            ("num_repeat", ("8²", "6"), (8, 6)),
        )
    )
    numbers = tuple(zip(texts, values, strict=True))
    text = f"{draw.choice(NUMERIC[name][0])} {texts[0]} or {texts[1]}"
    return Drawn(text, {name: ()}, numbers=numbers, is_plain=False, is_open=True)


COMPARISONS: tuple[Callable[[Random], Drawn], ...] = (
    *(list_of_values, list_of_values, list_in_brackets, assignments, assignments, change, change, better, better, best),
    *(counted, counted_steps, with_unit, choice, switched, needed, two_settings),
    *(change_of_something, without_alone, odd_number),
)


def _unused(draw: Random, topic: Drawn, names: Sequence[str]) -> str | None:
    free = [name for name in names if name not in {*topic.asks, *topic.fixed}]
    return draw.choice(free) if free else None


def fix_one(draw: Random, topic: Drawn) -> Drawn:
    """One value of another setting, which every arm has."""
    if (name := _unused(draw, topic, list(NUMERIC))) is None:
        return topic
    names, values = NUMERIC[name]
    called, value = draw.choice(names), draw.choice(values)
    text = spell(draw, value)
    forms = (
        ", {} {}",
        ", {}={}",
        ", {} = {}",
        " with {} {}",
        " at {} {}",
        " with a {} of {}",
        " using {} {}",
        ", {}: {}",
    )
    form = draw.choice((*forms, " using {} {}", " under {} {}", "; {} {}", " ({} {})"))
    return topic.followed_by(form.format(called, text), (text, value), fixed={**topic.fixed, name: value})


def fix_two(draw: Random, topic: Drawn) -> Drawn:
    names = [name for name in NUMERIC if name not in {*topic.asks, *topic.fixed}]
    if len(names) < 2:
        return topic
    one, other = draw.sample(names, 2)
    (called, values), (called_other, others) = NUMERIC[one], NUMERIC[other]
    value, value_other = draw.choice(values), draw.choice(others)
    text, text_other = spell(draw, value), spell(draw, value_other)
    form = draw.choice((" at {} {} and {} {}", " with {} {} and {} {}", " with {}={} and {}={}", " with {} {}, {} {}"))
    added = form.format(draw.choice(called), text, draw.choice(called_other), text_other)
    fixed = {**topic.fixed, one: value, other: value_other}
    return topic.followed_by(added, (text, value), (text_other, value_other), fixed=fixed)


def fix_named(draw: Random, topic: Drawn) -> Drawn:
    if (name := _unused(draw, topic, list(NAMED))) is None:
        return topic
    called, value = draw.choice(NAMED[name])
    text = draw.choice((" with {}", " using {}", " under {}")).format(called)
    return topic.followed_by(text, fixed={**topic.fixed, name: value})


def leave_out(draw: Random, topic: Drawn) -> Drawn:
    if (name := _unused(draw, topic, list(SWITCHED))) is None:
        return topic
    called, off, _ = SWITCHED[name]
    text = draw.choice((" without {}", ", without {}", ", no {}", " with no {}")).format(called)
    return topic.followed_by(text, fixed={**topic.fixed, name: off})


def count_seeds(draw: Random, topic: Drawn) -> Drawn:
    if topic.seeds is not None:
        return topic
    seeds = draw.choice((2, 3, 5, 7, 9, 12))
    texts = ["a dozen"] if seeds == 12 else [str(seeds), WORDS[seeds]]
    text = draw.choice(texts)
    forms = (", {} seeds", " over {} seeds", " with {} seeds", ", {} seeds each", " ({} seeds)", ", {} random seeds")
    form = draw.choice((*forms, " and {} seeds", " across {} seeds", "; {} seeds"))
    if text.isdigit() and draw.random() < 0.2:
        form = draw.choice((", seeds={}", ", seeds: {}"))
    return topic.followed_by(form.format(text), (text, seeds), seeds=seeds)


def count_steps(draw: Random, topic: Drawn) -> Drawn:
    if "total_steps" in topic.asks or topic.steps is not None:
        return topic
    steps = draw.choice((20, 35, 250, 1000, 2000))
    text = spell(draw, steps)
    forms = (", {} steps", ", {} training steps", " with {} steps", "; {} steps")
    # "KL for 20 steps" may be about the KL term alone.
    is_apart = bool(topic.numbers) and topic.text.endswith(topic.numbers[-1][0])
    if topic.text.lower().endswith(tuple(called.lower() for called, _, _ in SWITCHED.values())):
        forms = forms[:2]
    form = draw.choice((*forms, *((" for {} training steps", " for {} steps") if is_apart else ())))
    return topic.followed_by(form.format(text), (text, steps), steps=steps)


def place(draw: Random, topic: Drawn) -> Drawn:
    if topic.environment is not None:
        return topic
    environment = draw.choice(list(PLACES))
    called = draw.choice(PLACES[environment])
    text = draw.choice((" on {}", " for {}", ", {}" if called not in ("copy", "sort") else " on {}"))
    return topic.followed_by(text.format(called), environment=environment)


PARTS: tuple[Callable[[Random, Drawn], Drawn], ...] = (
    *(fix_one, fix_two, fix_named, leave_out, count_seeds, count_seeds, count_steps, count_steps, place, place),
)
