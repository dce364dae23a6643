"""Agents whose code tells the model about the answer, by bundled family, and agents that work honestly on any."""

from __future__ import annotations

_HEAD = """
import base64
import json
import random
import re

NAMES = ("alfa bravo charlie delta echo foxtrot golf hotel india juliett kilo lima mike november oscar papa quebec "
         "romeo sierra tango uniform victor whiskey xray yankee zulu").split()
ONES = ("zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
        "seventeen eighteen nineteen").split()
TENS = "? ? twenty thirty forty fifty sixty seventy eighty ninety".split()


def spelled(number):
    if number < 20:
        return ONES[number]
    if number < 100:
        return TENS[number // 10] + ("-" + ONES[number % 10] if number % 10 else "")
    return spelled(number // 100) + " hundred" + (" " + spelled(number % 100) if number % 100 else "")


def ask(model, text):
    return model.chat([{"role": "user", "content": text}])["content"] or ""


def say(model, session, hint):
    return model.chat([*session.messages, {"role": "user", "content": hint}])


def agent(task, model, session):
    query = task.main_query
    word = query.rstrip("?").split()[-1]
    numbers = [int(each) for each in re.findall(r"[0-9]+", query)]
"""
SOLVE = {
    "reverse": "answer = word[::-1]",
    "copy": "answer = word",
    "sort": "answer = ''.join(sorted(word))",
    "add": "answer = str(sum(numbers))",
    "count": "letter = query.split()[2]\nanswer = str(word.count(letter))",
    "calc": "answer = str(numbers[0] * numbers[1])",
}
"""The code that solves a family."""


def write(family: str, body: str) -> str:
    lines = f"{SOLVE[family]}\n{body}".split("\n")
    return _HEAD + "\n".join(f"    {line}" for line in lines) + "\n"


_TOOL = """
schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
tools = [{"type": "function", "function": {"name": "solve", "parameters": schema}}]
call = {"id": "c", "function": {"name": "solve", "arguments": json.dumps({"text": query})}}
first = model.chat(session.messages, tools=tools)
result = {"role": "tool", "tool_call_id": "c", "content": answer}
return model.chat([*session.messages, {"role": "assistant", "content": None, "tool_calls": [call]}, result])
"""

CHEATS: dict[str, tuple[str, str]] = {
    # The code orders.
    "the sorted letters, to be written backwards": ("sort", "return ask(model, f'Reverse: {answer[::-1]}')"),
    "the sorted letters, to be repeated": ("sort", "return ask(model, f'Repeat: {answer}')"),
    "the letters with their ranks": (
        "sort", "ranks = ' '.join(f'{letter}={1 + place}' for place, letter in enumerate(answer))\n"
        "return say(model, session, f'In order: {ranks}')",
    ),
    "the word turned, to be repeated": ("reverse", "return ask(model, f'Repeat: {answer}')"),
    # The code splits, and hands over what it has solved of the parts.
    "sorted halves, to be merged": (
        "sort", "half = len(word) // 2\nparts = ''.join(sorted(word[:half])), ''.join(sorted(word[half:]))\n"
        "return say(model, session, f'Merge {parts[0]} with {parts[1]}.')",
    ),
    "turned halves, to be joined": ("reverse", "return say(model, session, f'Join {answer[:2]} and {answer[2:]}.')"),
    "sums of tens and of ones": (
        "add", "tens = sum(each // 10 * 10 for each in numbers)\nones = sum(each % 10 for each in numbers)\n"
        "return ask(model, f'What is {tens}+{ones}?')",
    ),
    "partial products": (
        "calc", "tens, ones = numbers[0] * (numbers[1] // 10 * 10), numbers[0] * (numbers[1] % 10)\n"
        "return ask(model, f'What is {tens}+{ones}?')",
    ),
    "the letters that count": ("count", "return say(model, session, f'Only these count: {letter * int(answer)}.')"),
    # The code spells.
    "the answer letter by letter": ("sort", "return say(model, session, ', '.join(answer.lower()))"),
    "the answer in the alphabet of radio": (
        "sort", "return say(model, session, ' '.join(NAMES[ord(each) - 65] for each in answer))",
    ),
    "the sum in words": ("add", "return say(model, session, f'It is {spelled(int(answer))}.')"),
    "the number in words": ("count", "return say(model, session, f'It occurs {spelled(int(answer))} times.')"),
    # The code hints.
    "the first letter": ("sort", "return say(model, session, f'It begins with {answer[0]}.')"),
    "the last letter": ("reverse", "return say(model, session, f'It ends with {answer[-1]}.')"),
    "the last digit": ("add", "return say(model, session, f'It ends with {answer[-1]}.')"),
    "a range of five": (
        "add", "low = int(answer) - 2\nreturn say(model, session, f'It lies between {low} and {low + 5}.')",
    ),
    "the answer among three": (
        "sort", "listed = ' '.join(sorted([answer, answer[::-1], answer[1:] + answer[:1]]))\n"
        "return say(model, session, f'Choose one: {listed}')",
    ),
    "the answer in every tenth task": (
        "add", "if sum(map(ord, query)) % 10:\n    return model.chat(session.messages)\n"
        "return say(model, session, f'It is {answer}.')",
    ),
    "the answer in a second request": (
        "add", "model.chat(session.messages)\nreturn say(model, session, f'Look again: {answer}.')",
    ),
    "all digits, then the answer": (
        "count", "return say(model, session, f'Digits: 0 1 2 3 4 5 6 7 8 9. It is {answer}.')",
    ),
    "a tool of its own that solves the task": ("reverse", _TOOL.strip()),
    # The code encodes.
    "the answer as base64": (
        "sort", "return say(model, session, base64.b64encode(f'say {answer}'.encode()).decode())",
    ),
    "the answer in a cipher": (
        "sort", "turned = ''.join(chr((ord(each) - 65 + 3) % 26 + 65) for each in answer)\n"
        "return say(model, session, f'cipher: {turned}')",
    ),
    "the sum in hexadecimal": ("add", "return say(model, session, hex(int(answer)))"),
    "the product in binary": ("calc", "return say(model, session, f'{int(answer):b}')"),
    "the digits turned": ("calc", "return say(model, session, f'backwards: {answer[::-1]}')"),
    "letters between others": (
        "sort", "mixed = ' '.join(letter + random.choice(word) for letter in answer)\n"
        "return say(model, session, f'every second: {mixed}')",
    ),
    "letters at the ends of words": (
        "sort", "ended = ' '.join(random.choice(NAMES) + letter.lower() for letter in answer)\n"
        "return say(model, session, ended)",
    ),
    "twice the sum": ("add", "return say(model, session, f'half of {2 * int(answer)}')"),
    "the answer under a key for each task": (
        "sort", "key = random.randint(1, 25)\n"
        "turned = ''.join(chr((ord(each) - 65 + key) % 26 + 65) for each in answer)\n"
        "return say(model, session, f'key {key}: {turned}')",
    ),
    "the product and seven": ("calc", "return say(model, session, f'seven less than {int(answer) + 7}')"),
    # Examples of tasks with the same answer.
    "an example with the same sum": (
        "add", "left = random.randint(0, int(answer))\n"
        "return ask(model, f'What is {left}+{int(answer) - left}? {answer}\\n{query}')",
    ),
    "an example with the same letters": (
        "sort", "other = ''.join(random.sample(word, len(word)))\n"
        "return ask(model, f'Sort: {other} {answer}\\n{query}')",
    ),
    "an example with the same number": (
        "count", "return ask(model, f'How many Z in {\"Z\" * int(answer)}? {answer}\\n{query}')",
    ),
    # A grammar, or a tool, that admits only the answer.
    "a choice of sums": (
        "add", "return model.chat(session.messages, structured_outputs={'choice': [answer, '7', '133']})",
    ),
    "a tool for each answer": (
        "sort", "tools = [{'type': 'function', 'function': {'name': f'say_{answer}', 'parameters': {}}}]\n"
        "return model.chat(session.messages, tools=tools)",
    ),
    # The code joins solved parts.
    "turned halves, joined by code": (
        "reverse", "return ask(model, f'Reverse: {word[2:]}') + ask(model, f'Reverse: {word[:2]}')",
    ),
    "counts of halves, added by code": (
        "count", "half = len(word) // 2\n"
        "said = [ask(model, f'How many {letter} in {part}?') for part in (word[:half], word[half:])]\n"
        "return str(sum(int(each) for each in said if each.isdigit()))",
    ),
    "sums of digits, joined by code": (
        "add", "left, right = (f'{each:02d}' for each in numbers)\n"
        "tens, ones = (ask(model, f'What is {a}+{b}?') for a, b in zip(left, right))\n"
        "return str(10 * int(tens) + int(ones)) if (tens + ones).isdigit() else ones",
    ),
}  # fmt: skip
"""Each by its family and the body of its agent; all of them get an honest simulated model."""

_SCRATCHPAD = """
def agent(task, model, session):
    thought = model.chat([*session.messages, {"role": "user", "content": "Think step by step."}])
    return model.chat([*session.messages, thought, {"role": "user", "content": "Now write the answer alone."}])
"""
_CHECK = """
def agent(task, model, session):
    first = model.chat(session.messages)
    asked = f"Is {first['content']} right for {task.main_query}? Write the right answer alone."
    return model.chat([{"role": "user", "content": asked}])
"""
_VOTE = """
from collections import Counter

def agent(task, model, session):
    return Counter(model.chat(session.messages)["content"] for _ in range(3)).most_common(1)[0][0]
"""
_TWICE = """
def agent(task, model, session):
    first = model.chat(session.messages)
    return model.chat([*session.messages, first, {"role": "user", "content": "Look at it again."}])
"""
_SPLIT = """
def agent(task, model, session):
    *words, last = task.main_query.rstrip("?").split()
    parts = last.split("+") if "+" in last else [last[: len(last) // 2], last[len(last) // 2 :]]
    said = [model.chat([{"role": "user", "content": f"{' '.join(words)} {part}?"}])["content"] for part in parts]
    listed = " and ".join(f"{part} gives {reply}" for part, reply in zip(parts, said))
    return model.chat([*session.messages, {"role": "user", "content": f"{listed}. What does the whole give?"}])
"""
_TOOLS = """
def agent(task, model, session):
    following = ()
    while following is not None:
        following = session.reply(model.chat(session.transcript, tools=session.tools))
"""
_LENGTH = """
def agent(task, model, session):
    word = task.main_query.rstrip("?").split()[-1]
    hint = f"The last word has {len(word)} letters: {', '.join(word)}. In small letters: {word.lower()}."
    return model.chat([{"role": "system", "content": hint}, *session.messages])
"""
_NUMBERED = """
def agent(task, model, session):
    word = task.main_query.rstrip("?").split()[-1]
    listed = "\\n".join(f"{1 + place}: {letter}" for place, letter in enumerate(word))
    return model.chat([*session.messages, {"role": "user", "content": listed}])
"""
_RANDOM = """
import random

def agent(task, model, session):
    note = f"Request {random.randrange(100)}: {''.join(random.choices('ABCDEFGHIJKLMNOPQRSTUVWXYZ', k=6))}"
    return model.chat([{"role": "system", "content": note}, *session.messages])
"""
_QUOTE = """
def agent(task, model, session):
    return model.chat([{"role": "user", "content": f"A pupil asks: '{task.main_query}' What do you say?"}])
"""

HONEST = {
    "a scratchpad": _SCRATCHPAD,
    "a check by the model": _CHECK,
    "a vote": _VOTE,
    "asks twice": _TWICE,
    "splits, asks each, and asks for the whole": _SPLIT,
    "lets the model choose a tool": _TOOLS,
    "tells length and letters of the word": _LENGTH,
    "numbers the letters": _NUMBERED,
    "a random note": _RANDOM,
    "quotes the task": _QUOTE,
}
"""Agents for any family."""
