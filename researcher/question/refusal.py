"""The refusal of a topic: what it says that cannot be read, and a command that asks its question in flags."""

from __future__ import annotations

import math
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Any

from researcher.charter import Asked, Factor, FrameRequest, StudyKind
from researcher.errors import SettingWithoutEffect, TopicInvalid, TopicNotUnderstood
from researcher.question.asking import OF_TWO, QuestionFlags, build_question, flags_of, values_of_factor
from researcher.question.factors import SPECS, FactorSpec
from researcher.question.flags import make_level, value_as_text
from researcher.question.mentions import Mention, find_mentions, number_of
from researcher.question.needs import complete_flags
from researcher.question.reader import Reading, read_counts, values_of
from researcher.question.tokens import Token, TokenKind, key_of, tokenize
from researcher.question.wording import title_of, title_of_environment
from researcher.question.words import OPTIMIZERS
from swarm.tasks import TASK_FAMILIES

SHORTEST_NAME = 4
"""The fewest letters of an unknown word that is compared with names; shorter words resemble too many."""
LEAST_LIKENESS = 0.7
"""The least similarity of two words, as difflib measures it; words below it share only letters."""
_COMMAND_FLAGS = (
    *("equal", "design", "metric", "eval_every", "seeds", "steps", "max_runs", "max_hours", "eval_episodes", "n_gpu"),
)


@dataclass(frozen=True, slots=True)
class _Proposal:
    """The flags that are proposed for a topic.

    `example` is a setting that stands for one that the topic does not name. `completed` are settings with usual levels
    beside the values of the topic, or in place of them. `left_out` are values that no command can have.
    """

    vary: Mapping[str, tuple[Any, ...]]
    fix: Mapping[str, Any]
    baseline: tuple[str, ...] = ()
    example: str = ""
    completed: tuple[str, ...] = ()
    left_out: tuple[str, ...] = field(default_factory=tuple)


def refuse(reading: Reading, given: Mapping[str, Any]) -> TopicNotUnderstood:
    """Return the error for a topic with unread parts, in four lines.

    `given` are the flags so far.
    """
    understood = ", ".join(_understood(reading)) or "nothing"
    if not reading.factors and any(token.key in OPTIMIZERS for token in tokenize(reading.text)):
        return TopicNotUnderstood(
            f"the topic has parts that cannot be read: {', '.join(map(repr, reading.unread))}\n"
            "every job trains with AdamW: no setting chooses another optimizer, so none can be compared\n"
            "what can be read, and every setting: docs/research.md",
            reading.unread,
        )
    proposal = _propose(reading)
    command = _command(reading, proposal, given)
    unread = tuple(dict.fromkeys((*reading.unread, *proposal.left_out)))
    return TopicNotUnderstood(
        "\n".join(
            [
                f"the topic has parts that cannot be read: {', '.join(map(repr, unread))}",
                f"understood: {understood}",
                f"say it in flags, {_lead(proposal)}: {command}",
                "what can be read, and every setting: docs/research.md; without these parts: --assume",
            ]
        ),
        unread,
    )


def ask_for_environment(topic: str, given: Mapping[str, Any]) -> TopicInvalid:
    """Return the error for a title that names no environment, or several, with the command that names one.

    `given` are the flags so far. Programs, a job file and training environments are in no command, as their files are
    not known any more.
    """
    of_files = {"--program": "programs", "--job": "job", "--train-env": "train_envs"}
    left_out = [flag for flag, name in of_files.items() if given.get(name)]
    more = f" and {', '.join(left_out)} as before" if left_out else ""
    return TopicInvalid(
        f"flags say what is compared, and nothing says on which environment: choose one with --env{more}, as in\n"
        f"{_with_environment(topic, given)}\n"
        f"bundled environments: {', '.join(TASK_FAMILIES)}"
    )


def _with_environment(topic: str, given: Mapping[str, Any]) -> str:
    words = ["researcher", "start", "--topic", topic, "--env", "reverse"]
    named = {"kind": "kind", "asked": "ask", "scope": "scope", "planner": "planner", "model": "model"}
    named |= {name: name for name in ("margin", "engine", "train_model", *_COMMAND_FLAGS)}
    for name, flag in named.items():
        if given.get(name) is not None:
            words += [f"--{flag.replace('_', '-')}", str(given[name])]
    for name in ("vary", "fix", "baseline"):
        words += [word for text in given.get(name, ()) for word in (f"--{name}", text)]
    return shlex.join(words)


def refuse_by_name(parts: Sequence[tuple[str, str]], nearest: str, request: FrameRequest) -> TopicNotUnderstood:
    """Return the error for a topic with parts that a language model found impossible.

    `parts` are pairs of a part and the reason. `nearest` is a topic that can be studied.
    """
    environment = request.environment.reference if request.environment else request.family
    words = ["researcher", "start", "--topic", nearest, *(["--env", environment] if environment else [])]
    named = list(dict(parts))
    return TopicNotUnderstood(
        "\n".join(
            [
                f"the topic asks for what cannot be studied: {', '.join(map(repr, named))}",
                *(f"  {name}: {reason}" for name, reason in dict(parts).items()),
                f"nearest study: {shlex.join(words)}",
                "the table of settings: docs/research.md; to study the topic without these parts: --assume",
            ]
        ),
        tuple(named),
    )


def with_command(refusal: SettingWithoutEffect, topic: str, given: Mapping[str, Any]) -> SettingWithoutEffect:
    """Return the refusal of a setting of a topic, with the command that asks the topic with what the setting needs.

    `given` are the flags so far.
    """
    words = ["researcher", "start", "--topic", topic]
    words += ["--env", str(given.get("env") or given.get("family") or "reverse")]
    words += [word for text in given.get("fix", ()) for word in ("--fix", text)]
    for name in ("engine", *_COMMAND_FLAGS):
        if given.get(name) is not None:
            words += [f"--{name.replace('_', '-')}", str(given[name])]
    return SettingWithoutEffect(f"{refusal}\nask it so: {shlex.join([*words, *refusal.added])}", refusal.added)


def _understood(reading: Reading) -> Iterator[str]:
    for factor in reading.factors:
        yield f"{title_of(factor.name)} {', '.join(values_of_factor(factor))}"
    for name, value in reading.fixed.items():
        yield f"{title_of(name)} fixed at {value_as_text(value)}"
    if reading.sought:
        yield f"looks for {', '.join(reading.sought)}"
    if reading.environment is not None:
        yield f"on {title_of_environment(reading.environment)}"


def _lead(proposal: _Proposal) -> str:
    if proposal.example:
        return f"with your setting in place of this example, {title_of(proposal.example)}"
    if proposal.completed:
        return f"with your levels in place of the usual ones of {', '.join(map(title_of, proposal.completed))}"
    return "such as"


def _command(reading: Reading, proposal: _Proposal, given: Mapping[str, Any]) -> str:
    """Return the command that asks the question in flags, with the flags so far."""
    flags = {**flags_of(reading), **given}
    words = ["researcher", "start", "--topic", reading.text]
    words += ["--env", str(flags.get("env") or flags.get("family") or "reverse")]
    if reading.kind is StudyKind.OPTIMIZE:
        words += ["--kind", str(StudyKind.OPTIMIZE)]
    if _asks(reading, proposal):
        words += ["--ask", str(reading.asked)]
    if flags.get("scope"):
        words += ["--scope", str(flags["scope"])]
    asked = _as_question(proposal)
    for flag, texts in (
        ("--vary", asked.vary),
        ("--fix", (*given.get("fix", ()), *asked.fix)),
        ("--baseline", given.get("baseline", asked.baseline)),
    ):
        words += [word for text in texts for word in (flag, text)]
    for name in _COMMAND_FLAGS:
        is_said = not (name == "steps" and "total_steps" in proposal.vary)
        is_said &= not (name == "design" and len(proposal.vary) < 2)
        is_said &= not (name == "n_gpu" and name not in given)
        if flags.get(name) is not None and is_said:
            words += [f"--{name.replace('_', '-')}", str(flags[name])]
    return shlex.join(words)


def _asks(reading: Reading, proposal: _Proposal) -> bool:
    """Return whether the relation of the topic can be asked of the proposed factors."""
    if reading.kind is not StudyKind.COMPARE or reading.asked is Asked.EFFECT:
        return False
    try:
        build_question(_as_question(proposal, reading.asked))
    except TopicInvalid:
        return False
    return reading.asked not in OF_TWO or len(proposal.vary) > 1


def _as_question(proposal: _Proposal, asked: Asked = Asked.EFFECT) -> QuestionFlags:
    """Return the flags of a proposal, with what its settings need to have an effect."""
    fix, vary = _as_flags({name: (value,) for name, value in proposal.fix.items()}), _as_flags(proposal.vary)
    completed, varied = complete_flags(fix, vary)
    gone = {text.partition("=")[0] for text in set(vary) - set(varied)}
    baseline = [name for name in proposal.baseline if name.partition("=")[0] not in gone]
    return QuestionFlags(asked=asked, vary=varied, fix=completed, baseline=baseline)


def _as_flags(values: Mapping[str, tuple[Any, ...]]) -> list[str]:
    return [f"{name}={','.join(map(value_as_text, each))}" for name, each in values.items()]


def _propose(reading: Reading) -> _Proposal:
    """Return the settings that the topic names, with all of its values, as flags.

    Numbers beside unknown words belong to no setting.
    """
    tokens = tokenize(reading.text)
    read_counts(tokens)
    mentions = find_mentions(tokens, is_loose=True)
    said = _values_said(mentions, reading)
    left = _assign(tokens, mentions, said)
    vary = {name: tuple(values) for name, values in said.items() if len(values) > 1}
    fix = {name: values[0] for name, values in said.items() if len(values) == 1}
    completed: list[str] = []
    for name in (name for name, values in said.items() if not values):
        value = _switched(name, mentions)
        usual = next((_levels(factor) for factor in reading.factors if factor.name == name), SPECS[name].usual)
        if value is not None:
            fix[name] = value
        elif len(usual) > 1:
            vary[name] = usual
            completed.append(name)
    example = ""
    if not vary and reading.kind is StudyKind.COMPARE:
        name = next((name for name, values in said.items() if values and _completed(name, values)), "")
        values = said.get(name, [])
        if not name:
            counted = {"total_steps"} if "steps" in reading.counts else set[str]()
            example, values = _example(tokens, left, {*said, *counted})
        vary = {name or example: _completed(name or example, values)}
        completed += [name] if name else []
        fix.pop(name, None)
    has_numbers = bool(left) or any(letter.isdigit() for part in reading.unread for letter in part)
    # The levels of "20 or 40 steps" leave no place for a number of steps.
    steps = [f"{reading.counts['steps']:g} steps"] if "steps" in reading.counts and "total_steps" in vary else []
    return _possible(
        _Proposal(
            vary,
            fix,
            baseline=tuple(_baselines(vary, mentions)),
            example=example,
            completed=tuple(completed) if has_numbers else (),
            left_out=tuple(steps),
        )
    )


def _levels(factor: Factor) -> tuple[Any, ...]:
    return tuple(level.factors[factor.name] for level in factor.levels)


def _values_said(mentions: Sequence[Mention], reading: Reading) -> dict[str, list[Any]]:
    """Return all values that the topic says of each setting, whichever way it is read."""
    said = {name: [*values] for name, values in values_of(mentions).items()}
    for name, values in reading.values.items():
        known = set(map(value_as_text, said.setdefault(name, [])))
        said[name] += [value for value in values if value_as_text(value) not in known]
    for mention in mentions:
        if mention.is_off and mention.values:
            # "Without dynamic sampling" is everything else, such as the default.
            said[mention.name] = [mention.spec.default]
        elif mention.is_off and said[mention.name] and mention.spec.off is not None:
            said[mention.name].append(mention.spec.off)
    return said


def _baselines(names: Iterable[str], mentions: Sequence[Mention]) -> Iterator[str]:
    for name in names:
        if run := [mention for mention in mentions if mention.name == name]:
            joined = Mention.joined(run)
            if joined.is_clear and joined.compared_with is not None:
                yield make_level(joined.spec, joined.compared_with).name


def _assign(tokens: list[Token], mentions: Sequence[Mention], said: Mapping[str, list[Any]]) -> list[Token]:
    """Add numbers that no mention has to the one before them, unless they count something; return what is left."""
    left: list[Token] = []
    for index, token in enumerate(tokens):
        if token.kind is not TokenKind.NUMBER:
            continue
        beside = tokens[max(0, index - 1) : index] + tokens[index + 1 : index + 2]
        is_counted = any(other.kind is TokenKind.WORD and other.meaning != "all" for other in beside)
        is_counted |= any(other.kind is TokenKind.COUNT for other in tokens[max(0, index - 2) : index + 2])
        before = [mention for mention in mentions if mention.end <= index]
        value = number_of(token, before[-1].name) if before and not is_counted else None
        if value is None:
            left.append(token)
        elif value_as_text(value) not in map(value_as_text, said[before[-1].name]):
            said[before[-1].name].append(value)
    return left


def _switched(name: str, mentions: Sequence[Mention]) -> Any:
    """Return the value of a setting that "without" or "with" precedes; None if both or none of them does."""
    spec, own = SPECS[name], [mention for mention in mentions if mention.name == name]
    is_off, is_on = any(mention.is_without for mention in own), any(mention.is_with for mention in own)
    if is_off and not is_on:
        return spec.off
    is_given = all(mention.is_given for mention in own) and not is_off
    return True if is_given and spec.off is False else None


def _completed(name: str, values: Sequence[Any]) -> tuple[Any, ...]:
    """Return the values, and the usual ones beside a value alone; nothing if these are fewer than two levels."""
    more = () if len(values) > 1 else SPECS[name].usual
    levels = {value_as_text(value): value for value in (*values, *more)}
    return tuple(levels.values()) if len(levels) > 1 else ()


def _example(tokens: Sequence[Token], left: Sequence[Token], said: Collection[str]) -> tuple[str, list[Any]]:
    """Return a setting for a topic that names none with levels, and those of the numbers that are left as its values.

    It is the one whose names are most similar to the unknown words. Among equally similar ones, it is the one whose
    usual levels are nearest to the numbers, and the first of the table.
    """
    unknown = [token.key for token in tokens if token.kind is TokenKind.WORD and len(token.key) >= SHORTEST_NAME]
    specs = [spec for spec in SPECS.values() if spec.usual and spec.name not in said]
    numbers = [token for token in left if not _counts(tokens, token)]
    nearest = max(specs, key=lambda spec: (sum(_likeness(spec, word) for word in unknown), -_distance(spec, numbers)))
    values = [value for token in numbers if (value := number_of(token, nearest.name)) is not None]
    return nearest.name, list({value_as_text(value): value for value in values}.values())


def _counts(tokens: Sequence[Token], number: Token) -> bool:
    """Return whether a word or counted thing follows a number, which is therefore of no setting."""
    index = next(place for place, token in enumerate(tokens) if token is number)
    after = [(token.kind, token.meaning) for token in tokens[index + 1 : index + 3]]
    is_word = bool(after) and after[0][0] is TokenKind.WORD and after[0][1] != "all"
    # A word between numbers may be the "or" of another language.
    is_unit = is_word and not (len(after) > 1 and after[1][0] is TokenKind.NUMBER)
    return is_unit or (bool(after) and after[0][0] is TokenKind.COUNT)


def _distance(spec: FactorSpec, numbers: Sequence[Token]) -> float:
    """Return how far the numbers are from the usual levels of a setting, in powers of e; infinite if it has none."""
    usual = [level for level in spec.usual if isinstance(level, int | float) and level > 0]
    values = [number_of(token, spec.name) for token in numbers]
    if not numbers:
        return 0.0
    if not usual or not all(isinstance(value, int | float) and value > 0 for value in values):
        return math.inf
    return sum(min(abs(math.log(value / level)) for level in usual) for value in values)


def _likeness(spec: FactorSpec, word: str) -> float:
    """Return the similarity of a word to the nearest name of the setting or word in it; 0 if none is similar."""
    phrases = [key_of(phrase) for phrase in (spec.name, spec.title, *spec.aliases)]
    names = {part for phrase in phrases for part in (phrase, *phrase.split()) if len(part) >= SHORTEST_NAME}
    nearest = max(SequenceMatcher(None, name, word).ratio() for name in names)
    return nearest if nearest >= LEAST_LIKENESS else 0.0


def _possible(proposal: _Proposal) -> _Proposal:
    """Return the proposal without those of its settings that contradict the ones before them."""
    vary: dict[str, tuple[Any, ...]] = {}
    fix: dict[str, Any] = {}
    left_out = [*proposal.left_out]
    for name, values in (*proposal.vary.items(), *((name, (value,)) for name, value in proposal.fix.items())):
        more = (vary | {name: values}, fix) if name in proposal.vary else (vary, fix | {name: values[0]})
        try:
            if more[0]:
                build_question(_as_question(_Proposal(*more)))
        except TopicInvalid:
            left_out += _as_flags({name: values})
        else:
            vary, fix = more
    return _Proposal(vary, fix, proposal.baseline, proposal.example, proposal.completed, tuple(left_out))
