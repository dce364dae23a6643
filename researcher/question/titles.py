"""The checks of a topic beside flags: a study must not differ from its title."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from researcher.charter import Question
from researcher.errors import TopicInvalid
from researcher.question.reader import Reading
from researcher.question.scopes import describe_excess, describe_scope
from researcher.question.wording import title_of, title_of_environment
from researcher.scope import Scope
from swarm.tasks import TASK_FAMILIES


def check_title(reading: Reading, question: Question, fix: Sequence[str]) -> None:
    """Raise TopicInvalid if the topic names a setting that no flag varies or fixes."""
    # A named algorithm sets settings with other names, so compare the names in the flags too.
    fixed = {text.partition("=")[0].strip() for text in fix}
    known = {*(factor.name for factor in question.factors), *question.varied, *question.fixed, *fixed}
    for name in sorted(reading.names - known):
        raise TopicInvalid(
            f"the topic names {title_of(name)}, which no flag varies or fixes: add --vary {name}=VALUE,VALUE or "
            f"--fix {name}=VALUE, or leave it out of the topic"
        )


def check_environment(reading: Reading, environment: str | None, *, by_rules: bool) -> None:
    """Raise TopicInvalid if the topic names another environment than a flag does.

    A topic for a language model is prose, whose words for a bundled environment may be about one of the person's own.
    """
    if environment is None or not (named := reading.environments):
        return
    is_about = by_rules or environment in TASK_FAMILIES or not {*named} <= TASK_FAMILIES.keys()
    if is_about and not any(_is_same(name, environment) for name in named):
        raise TopicInvalid(
            f"the topic is about {title_of_environment(named[0])}, the flag --env about {environment}: name one of them"
        )


def _is_same(named: str, environment: str) -> bool:
    """Return whether a flag's environment is the named one, or a folder of a person's own with its name in it."""
    named, environment = named.partition("?")[0], environment.partition("?")[0]
    path = Path(named).expanduser()
    is_own = environment not in TASK_FAMILIES and named in TASK_FAMILIES
    return (
        named == environment
        or (path.exists() and str(path.resolve()) == environment)
        or (is_own and named in Path(environment).name.lower())
    )


def check_model(reading: Reading, question: Question) -> None:
    """Raise TopicInvalid if the topic names another model than the study trains."""
    if "model" in question.varied:
        return
    named, trained = reading.values.get("model", ()), question.fixed.get("model")
    if reading.foreign_model and trained is None:
        raise TopicInvalid(
            f"the topic names the model {reading.foreign_model}, which is not on this machine: add it by `swarm models "
            "add`, name its folder with --train-model, or leave it out of the topic"
        )
    if len(named) == 1 and trained not in (None, named[0]):
        raise TopicInvalid(f"the topic names the model {named[0]}, the flags train {trained}: name one of them")


def check_sought(reading: Reading, question: Question, said: str | None) -> None:
    """Raise TopicInvalid if arms may differ in more than the topic looks for."""
    if not reading.sought:
        return
    sought = Scope.of(reading.sought)
    if excess := describe_excess(question.scope, sought):
        flags = f"--scope says {said}" if said else f"the arms of the flags differ in {excess}"
        raise TopicInvalid(f"the topic looks for {describe_scope(sought)}, and {flags}: say the same in both")
