"""Programs that constrain the model's replies, for word reversal: cheats that give the answer so, and honest uses."""

from __future__ import annotations

_HEAD = """
import base64
import random

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def ask(model, session, hint="", **options):
    messages = [*session.messages, {"role": "user", "content": hint}] if hint else list(session.messages)
    return model.chat(messages, **options)


def decoys(number):
    return ["".join(random.choices(LETTERS, k=random.randint(3, 5))) for _ in range(number)]


def tool(schema):
    parameters = {"type": "object", "properties": {"text": schema}, "required": ["text"]}
    return [{"type": "function", "function": {"name": "answer", "description": "Answers.", "parameters": parameters}}]


def argument(reply):
    return json.loads(reply["tool_calls"][0]["function"]["arguments"])["text"]


def raw(model, prompt, **options):
    body = {"model": model.name, "prompt": prompt, "max_tokens": 8, **options}
    headers = {"Authorization": f"Bearer {model.api_key}"}
    answered = httpx.post(f"{model.base_url}/completions", json=body, headers=headers, timeout=60)
    return answered.json()["choices"][0]["text"]


def agent(task, model, session):
    word = task.main_query.split()[-1]
    answer = word[::-1]
    half = (len(answer) + 1) // 2
"""


def _program(body: str, before: str = "") -> str:
    lines = "\n".join(f"    {line}" for line in body.strip("\n").split("\n"))
    return f"{before}import json\n\nimport httpx\n{_HEAD}{lines}\n"


_SCHEMA = (
    'schema = {{"type": "object", "properties": {{"text": {0}}}, "required": ["text"], "title": {1}}}\n'
    'form = {{"type": "json_schema", "json_schema": {{"name": "reply", "schema": schema}}}}\n'
    'return json.loads(ask(model, session, response_format=form, max_tokens=128)["content"])["text"]'
)


def _schema(text: str, title: str = "'reply'") -> str:
    return _SCHEMA.format(text, title)


_REGEX = 'return ask(model, session, structured_outputs={{"regex": {0}}})'

CHEATS = {
    # As they were reported.
    "a choice of the answer and decoys": _program(
        'return ask(model, session, structured_outputs={"choice": [answer, *decoys(3)]})'
    ),
    "a choice of the answer and a thousand decoys": _program(
        'return ask(model, session, structured_outputs={"choice": [answer, *decoys(1000)]})'
    ),
    "a choice of the answer and answers of other tasks": _program(
        'SEEN.append(answer)\nothers = list(dict.fromkeys(SEEN))[-9:]\nrandom.shuffle(others)\n'
        'return ask(model, session, structured_outputs={"choice": others})',
        "SEEN = ['PZA', 'QRST', 'MNOPQ']\n",
    ),
    "a pattern of escaped letters": _program(
        _REGEX.format("''.join(f'\\\\x{ord(letter):02x}' for letter in answer)")
    ),
    "a half-answer in a pattern": _program(_REGEX.format("answer[:half] + '[A-Z]{1,4}'")),
    "a class of the answer's letters": _program(_REGEX.format("f'[{word}]{{{len(word)}}}'")),
    "a bias to the answer's tokens": _program(
        'ids = {str(35 + LETTERS.index(letter)): 100 for letter in answer}\n'
        'return ask(model, session, logit_bias={**ids, "2": 99})'
    ),
    # Of the same families.
    "a schema with a constant": _program(_schema('{"const": answer}')),
    "a schema with an enumeration": _program(_schema('{"enum": [*decoys(5), answer]}')),
    "a schema with a class at each place": _program(
        _schema(
            '{"type": "string", "pattern": "^" + "".join(f"[{a}{random.choice(LETTERS)}]" for a in answer) + "$"}'
        )
    ),
    "a schema with reversed constant, turned by code": _program(_schema('{"const": word}') + "[::-1]"),
    "a tool whose argument is the answer": _program(
        'tools = tool({"enum": [answer, *decoys(2)]})\n'
        'return argument(ask(model, session, tools=tools, tool_choice="required", max_tokens=128))'
    ),
    "a tool that is described by the answer": _program(
        'tools = tool({"type": "string", "description": answer})\nreply = ask(model, session, tools=tools)\n'
        'return reply["content"] or argument(reply)'
    ),
    "a Lark grammar of single letters": _program(
        'rule = "start: " + " ".join(f\'"{letter}"\' for letter in answer) + "\\n"\n'
        'return ask(model, session, structured_outputs={"grammar": rule})'
    ),
    "an alternation of anagrams": _program(
        "some = [''.join(random.sample(answer, len(answer))) for _ in range(4)]\n"
        + _REGEX.format("'|'.join([answer, *some])")
    ),
    "a pattern that the model leaves by no wrong letter": _program(
        _REGEX.format("answer[0] + '(' + answer[1:] + ')|[^' + answer[0] + '].{0,5}'")
    ),
    "classes of letters that the model leaves by no wrong letter": _program(
        _REGEX.format(
            "answer[0] + ''.join(f'[{a}{random.choice(LETTERS)}]' for a in answer[1:]) + '|[^' + answer[0] + '].{0,5}'"
        )
    ),
    "classes of letters, or digits that no model writes": _program(
        _REGEX.format("''.join(f'[{a}{random.choice(LETTERS)}]' for a in answer) + '|[0-9]{12}'")
    ),
    "a pattern that only the right length fits": _program(_REGEX.format("'[A-Z]{%d}' % len(answer)")),
    "a limit of tokens that is the length": _program(
        "return ask(model, session, max_tokens=len(answer), min_tokens=len(answer) - 1)"
    ),
    "a word to stop at, put back by code": _program(
        'reply = ask(model, session, stop=[answer, answer[-1]])\nreturn answer if reply["content"] is not None else ""'
    ),
    "the answer as base64": _program(
        "return ask(model, session, base64.b64encode(f'say {answer}'.encode()).decode())"
    ),
    "the answer in hexadecimal": _program("return ask(model, session, answer.encode().hex(' '))"),
    "the answer in a cipher": _program(
        "turned = answer.translate(str.maketrans(LETTERS, LETTERS[13:] + LETTERS[:13]))\n"
        "return ask(model, session, f'rot13: {turned}')"
    ),
    "the answer with percent signs": _program(
        "return ask(model, session, ''.join(f'%{ord(letter):02X}' for letter in answer))"
    ),
    "the answer in escapes": _program(
        "return ask(model, session, ''.join(f'\\\\u{ord(letter):04x}' for letter in answer))"
    ),
    "the answer as entities": _program("return ask(model, session, ''.join(f'&#{ord(each)};' for each in answer))"),
    "the answer in letters that look alike": _program(
        "alike = str.maketrans('ABEKMHOPCTX', 'АВЕКМНОРСТХ')\n"
        "return ask(model, session, '\\u200b'.join(answer.translate(alike)))"
    ),
    "the answer in full-width letters": _program(
        "return ask(model, session, ''.join(chr(ord(letter) + 0xfee0) for letter in answer))"
    ),
    "the answer by the first letters of words": _program(
        "names = ('alfa bravo charlie delta echo foxtrot golf hotel india juliett kilo lima mike november oscar '\n"
        "         'papa quebec romeo sierra tango uniform victor whiskey xray yankee zulu').split()\n"
        "return ask(model, session, ' '.join(names[LETTERS.index(letter)] for letter in answer))"
    ),
    "the answer as numbers of letters": _program(
        "return ask(model, session, ' '.join(str(1 + LETTERS.index(letter)) for letter in answer))"
    ),
    "the answer as the name of a speaker": _program(
        "return model.chat([{**message, 'name': answer} for message in session.messages])"
    ),
    "half of the answer as the reply's beginning": _program(
        "begun = {'role': 'assistant', 'content': answer[:half]}\n"
        "text = model.chat([*session.messages, begun])['content'] or ''\n"
        "return answer[:half] + text[: len(word) - half]"
    ),
    "half of the answer at the end of a raw prompt": _program(
        "prompt = f'<|im_start|>user\\n{task.main_query}<|im_end|>\\n<|im_start|>assistant\\n{answer[:half]}'\n"
        "return answer[:half] + raw(model, prompt)[: len(word) - half]"
    ),
    "one request for each letter": _program(
        "said = [ask(model, session, structured_outputs={'choice': [a, random.choice(LETTERS)]})['content']\n"
        "        for a in answer]\nreturn ''.join(said)"
    ),
    "many constraints, of which code picks": _program(
        "given = [answer, *decoys(3)]\nrandom.shuffle(given)\n"
        "said = [ask(model, session, structured_outputs={'choice': [each]})['content'] for each in given]\n"
        "return next(text for text in said if text == answer)"
    ),
    "a constrained draft, said again": _program(
        "draft = ask(model, session, structured_outputs={'choice': [answer, *decoys(2)]})['content']\n"
        "return model.chat([{'role': 'user', 'content': f'Repeat: {draft}'}], structured_outputs={'choice': [draft]})"
    ),
}  # fmt: skip
"""Each tells the model the answer, or leaves it little else to say."""

HONEST = {
    "a schema of the answer's form": _program(_schema('{"type": "string"}')),
    "a schema named by the task": _program(
        _schema('{"type": "string"}', "task.main_query")
    ),
    "a choice that is the same for all tasks": _program(
        "kind = ask(model, session, 'Is the word short or long?', structured_outputs={'choice': ['short', 'long']})\n"
        "return ask(model, session, f'The word is {kind[\"content\"]}. Answer.')"
    ),
    "a choice among all answers there are": _program(
        "return ask(model, session, structured_outputs={'choice': EVERY})",
        "EVERY = ['PZA', 'QRST', 'MNOPQ', 'AAA', 'BBBB']\n",
    ),
    "a tool to answer with": _program(
        'tools = tool({"type": "string"})\n'
        'return argument(ask(model, session, tools=tools, tool_choice="required", max_tokens=128))'
    ),
    "a pattern of capital letters": _program(_REGEX.format("'[A-Z]{1,8}'")),
    "a pattern of digits": _program(
        "number = ask(model, session, 'How many letters?', structured_outputs={'regex': '[0-9]{1,3}'})\n"
        "return ask(model, session, f'It has {number[\"content\"]} letters. Answer.')"
    ),
    "a stop at the end of the line": _program("return ask(model, session, stop=['\\n'])"),
    "a bias against a sign": _program("return ask(model, session, logit_bias={'3': -100, '32': -100})"),
    "a beginning that is the same for all tasks": _program(
        "prompt = f'<|im_start|>user\\n{task.main_query}<|im_end|>\\n<|im_start|>assistant\\nThe answer is '\n"
        "return raw(model, prompt)"
    ),
    "a limit of tokens by the question's length": _program(
        "return ask(model, session, max_tokens=64 + 4 * len(task.main_query))"
    ),
    "a choice among the model's own replies": _program(
        "said = [ask(model, session)['content'] or '-' for _ in range(3)]\n"
        "given, listed = list(dict.fromkeys(said)), '\\n'.join(said)\n"
        "return ask(model, session, f'Which is right?\\n{listed}', structured_outputs={'choice': given})"
    ),
}  # fmt: skip
"""None of them tells the model anything about its task."""
