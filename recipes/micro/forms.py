"""The forms of an answer that a question may ask for: bare, inside tags, as JSON, as a list in brackets and others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from types import MappingProxyType

from recipes.micro.kinds.base import Item, join_list

_TRUTHS: tuple[tuple[str, str, str], ...] = (
    ("yes", "no", "Answer yes or no."),
    ("Yes", "No", "Answer with Yes or No."),
    ("Yes", "No", 'Reply with "Yes" or "No" only.'),
    ("True", "False", "Answer True or False."),
    ("True", "False", "Your answer should be either True or False."),
    ("true", "false", "Reply true or false."),
    ("1", "0", "Answer 1 for yes and 0 for no."),
    ("0", "1", "Write 0 if so and 1 if not."),
    ("A", "B", "Answer A for yes, B for no."),
    ("right", "wrong", "Say right or wrong."),
)
_LIST_REQUESTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        ", ": ("Separate the items by commas.", "Answer with a list separated by commas.", "Use commas between them."),
        " ": ("Separate the items by spaces.", "Write them with spaces between."),
        "\n": ("Write each item on a line of its own.", "One per line."),
        "[, ]": ("Answer with a list in brackets.", "Write the list like [a, b, c]."),
        '["]': ("Answer with a JSON list of strings.", 'Write the list like ["a", "b"].'),
        "['']": ("Answer with a list of strings.", "Write the list like ['a', 'b']."),
    }
)
_ONLY = (
    "Answer with the result only.", "Only give the answer.", "Reply with nothing else.",
    "Just the answer, no explanation.", "Output only the answer.", "Your answer should be just the result.",
    "Return only the result.", "Give the final answer only.",
)  # fmt: skip
_WRAPPED: tuple[tuple[str, str], ...] = (
    ("Answer: {}", 'Begin your answer with "Answer: ".'),
    ("Answer: {}", "Write your answer as Answer: X."),
    ("<answer>{}</answer>", "Put your answer inside <answer> and </answer>."),
    ("<answer>{}</answer>", "Answer inside tags: <answer>...</answer>."),
    ("<answer>{}</answer>", "Give the final answer between <answer> </answer> tags."),
    ("[{}]", "Put the answer in square brackets."),
    ('"{}"', "Put the answer in quotes."),
    ("The answer is {}.", "Answer with a whole sentence."),
    ("{}.", "End your answer with a point."),
    ("({})", "Put the answer in parentheses."),
)
_JSON_REQUESTS = (
    'Reply with JSON: {"answer": ...}.', 'Answer as JSON with the key "answer".',
    'Use the format {"answer": your answer}.',
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Form:
    """A form of an answer, with the sentence that asks for it, which is empty for the usual form."""

    request: str
    truths: tuple[str, str]
    list_style: str | None
    wrapping: str
    is_json: bool

    def write(self, item: Item) -> str:
        """Return the right answer of `item` in this form."""
        text = self._plain(item)
        if self.is_json:
            is_number = text.isdigit() and str(int(text)) == text
            return f'{{"answer": {text}}}' if is_number or text.startswith('["') else f'{{"answer": "{text}"}}'
        return self.wrapping.replace("{}", text)

    def _plain(self, item: Item) -> str:
        match item.answer:
            case bool():
                return self.truths[0 if item.answer else 1]
            case str():
                return item.answer
            case items:
                return join_list(items, self.list_style or item.list_style)


def usual_form(item: Item, line: str) -> Form:
    """Return the form for a question that asks for none; its wording, `line`, may already mention true and false."""
    speaks_of_truth = "rue or false" in line or "True" in item.subject or "False" in item.subject
    return Form("", ("True", "False") if speaks_of_truth else ("Yes", "No"), None, "{}", is_json=False)


def draw_form(item: Item, line: str, rng: Random) -> Form:
    """Draw a form that suits the item, often the usual one of its wording."""
    requests: list[str] = []
    truths, list_style, wrapping, is_json = usual_form(item, line).truths, None, "{}", False
    if isinstance(item.answer, bool) and rng.random() < 0.5:
        first, second, request = rng.choice(_TRUTHS)
        truths = (first, second)
        requests.append(request)
    elif isinstance(item.answer, tuple) and rng.random() < 0.4:
        list_style = rng.choice(list(_LIST_REQUESTS))
        requests.append(rng.choice(_LIST_REQUESTS[list_style]))
    luck = rng.random()
    if luck < 0.14:
        requests.append(rng.choice(_ONLY))
    elif luck < 0.3:
        wrapping, request = rng.choice(_WRAPPED)
        requests.append(request)
    elif luck < 0.35 and not isinstance(item.answer, tuple):
        is_json = True
        requests.append(rng.choice(_JSON_REQUESTS))
    return Form(" ".join(requests), truths, list_style, wrapping, is_json)
