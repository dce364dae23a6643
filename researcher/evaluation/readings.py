"""The readings of words: the letters and numbers that they hold, whatever spelling, encoding or cipher hides them."""

from __future__ import annotations

import base64
import binascii
import html
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from string import ascii_lowercase
from types import MappingProxyType
from urllib.parse import unquote

PLAIN = "as it is"
DECODINGS = 2
"""The encodings, one inside the other, that are undone."""
LONGEST = 100_000
"""The characters of a text that are read: its beginning and its end."""
_ALIKE = str.maketrans("авсԁеһніјкӏморԛгѕтѵԝхузαβεηικμνορτυχζ", "abcdehhijklmopqrstvwxyzabehikmnoptyxz")
"""Cyrillic and Greek letters that look like Latin ones, and these."""
_ESCAPE = re.compile(r"\\+(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|[ux]\{([0-9a-fA-F]{1,6})\}|U([0-9a-fA-F]{8}))")
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{4,}={0,2}")
_HEXADECIMAL = re.compile(r"(?:(?:0x)?[0-9a-fA-F]{2}[\s,:;-]*){2,}")
_BINARY = re.compile(r"(?:[01]{8}[\s,]*){2,}")
_WORD = re.compile(r"[^\W_]+")
_UNSEEN = frozenset({"Mn", "Cf"})
"""The kinds of characters that no reader sees by themselves: accents and marks without width."""
_SPELLED: Mapping[str, int] = MappingProxyType(
    {
        "zero": 0, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9,
        "ten": 10, "eleven": 11, "twelve": 12, "thirteen": 13, "fourteen": 14, "fifteen": 15, "sixteen": 16,
        "seventeen": 17, "eighteen": 18, "nineteen": 19, "twenty": 20, "thirty": 30, "forty": 40, "fifty": 50,
        "sixty": 60, "seventy": 70, "eighty": 80, "ninety": 90,
    }
)  # fmt: skip
_SCALES: Mapping[str, int] = MappingProxyType({"hundred": 100, "thousand": 1000})


def fold(text: str) -> str:
    """Return the letters and digits of a text, alike for capital, accented and similar-looking ones."""
    return "".join(sign for sign in _flat(text) if sign.isalnum())


def read_words(text: str) -> list[str]:
    """Return the words of a text, folded, and after them those that it says once its encodings are undone."""
    if len(text) > LONGEST:
        text = f"{text[: LONGEST // 2]}\n{text[-LONGEST // 2 :]}"
    layers = [text]
    for _ in range(DECODINGS):
        if decoded := "\n".join(part for part in _decodings(layers[-1]) if part):
            layers.append(decoded)
    return _WORD.findall(_flat("\n".join(layers)))


def _flat(text: str) -> str:
    seen = (sign for sign in unicodedata.normalize("NFKD", text) if unicodedata.category(sign) not in _UNSEEN)
    return "".join(seen).casefold().translate(_ALIKE)


def _decodings(text: str) -> Iterator[str]:
    """Yield what a text says once an encoding is undone, for each encoding that it has."""
    unescaped = html.unescape(unquote(_ESCAPE.sub(_character, text)))
    if unescaped != text:
        yield unescaped
    for found in _BASE64.findall(text):
        yield _printable(_bytes_of_base64(found))
    for found in _HEXADECIMAL.findall(text):
        yield _printable(bytes.fromhex("".join(re.findall(r"[0-9a-fA-F]{2}", found.replace("0x", "")))))
    for found in _BINARY.findall(text):
        yield _printable(bytes(int(each, 2) for each in re.findall(r"[01]{8}", found)))


def _character(escape: re.Match[str]) -> str:
    code = int(next(group for group in escape.groups() if group), 16)
    return chr(code) if code < 0x110000 else ""


def _bytes_of_base64(text: str) -> bytes:
    stripped = text.rstrip("=").replace("-", "+").replace("_", "/")
    try:
        return base64.b64decode(stripped + "=" * (-len(stripped) % 4))
    except (binascii.Error, ValueError):
        return b""


def _printable(content: bytes) -> str:
    """Return the text that bytes are; empty if they are none."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return ""
    return text if text.isprintable() else ""


def _initials(words: Sequence[str]) -> str:
    return "".join(word[0] for word in words if word[0].isalpha())


def _finals(words: Sequence[str]) -> str:
    return "".join(word[-1] for word in words if word[-1].isalpha())


def _places(words: Sequence[str]) -> str:
    """Return the letters that numbers stand for by their place in the alphabet."""
    return "".join(ascii_lowercase[int(word) - 1] for word in words if _is_number(word) and 1 <= int(word) <= 26)


def _codes(words: Sequence[str]) -> str:
    """Return the letters and digits that numbers stand for by their code."""
    signs = (chr(int(word)) for word in words if _is_number(word) and int(word) < 128)
    return "".join(sign for sign in signs if sign.isalnum()).casefold()


def _shift(places: int) -> Callable[[Sequence[str]], str]:
    table = str.maketrans(ascii_lowercase, ascii_lowercase[places:] + ascii_lowercase[:places])
    return lambda words: "".join(words).translate(table)


LETTERS: Mapping[str, Callable[[Sequence[str]], str]] = MappingProxyType(
    {
        PLAIN: "".join,
        "reversed": lambda words: "".join(words)[::-1],
        "by first letters": _initials,
        "by last letters": _finals,
        "by every second letter": lambda words: "".join(words)[::2],
        "by numbers of letters": _places,
        "by codes of letters": _codes,
        **{f"shifted by {places}": _shift(places) for places in range(1, len(ascii_lowercase))},
    }
)
"""The ways in which words may hold letters: from the words to the letters."""


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) <= 18


def _of_base(base: int, digits: str, prefix: str) -> Callable[[Sequence[str]], Iterator[int]]:
    pattern = re.compile(rf"(?:{prefix})?([{digits}]{{1,40}})")
    return lambda words: (int(found[1], base) for word in words if (found := pattern.fullmatch(word)))


def _spelled(words: Sequence[str]) -> Iterator[int]:
    """Yield the numbers that words spell in English, such as forty two."""
    value = 0
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word in _SPELLED:
            value += _SPELLED[word]
        elif word in _SCALES:
            value *= _SCALES[word]
        else:
            value = 0
            continue
        if following not in _SPELLED and following not in _SCALES:
            yield value
            value = 0


NUMBERS: Mapping[str, Callable[[Sequence[str]], Iterator[int]]] = MappingProxyType(
    {
        PLAIN: lambda words: (int(word) for word in words if _is_number(word)),
        "reversed": lambda words: (int(word[::-1]) for word in words if _is_number(word)),
        "in base 16": _of_base(16, "0-9a-f", "0x"),
        "in base 8": _of_base(8, "0-7", "0o"),
        "in base 2": _of_base(2, "01", "0b"),
        "in words": _spelled,
        "in tally marks": lambda words: (len(word) for word in words if len(set(word)) == 1),
    }
)
"""The ways in which words may hold numbers."""
