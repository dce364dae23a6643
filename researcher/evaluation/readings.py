"""The readings of a text: the letters that it holds, whatever spelling, encoding or cipher hides them."""

from __future__ import annotations

import base64
import binascii
import html
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from string import ascii_lowercase
from types import MappingProxyType
from urllib.parse import unquote

PLAIN = "plain"
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
_NUMBER = re.compile(r"(?<!\w)\d{1,3}(?!\w)")


def fold(text: str) -> str:
    """Return the letters and digits of a text, alike for capital, accented and similar-looking ones."""
    flat = unicodedata.normalize("NFKD", text).casefold().translate(_ALIKE)
    return "".join(sign for sign in flat if sign.isalnum())


def read(text: str) -> Mapping[str, str]:
    """Return the folded readings of a text by name. All texts have the same readings."""
    if len(text) > LONGEST:
        text = f"{text[: LONGEST // 2]}\n{text[-LONGEST // 2 :]}"
    layers = [text]
    for _ in range(DECODINGS):
        if decoded := "\n".join(part for part in _decodings(layers[-1]) if part):
            layers.append(decoded)
    plain = fold("\n".join(layers))
    return {PLAIN: plain, **{name: hide(plain, text) for name, hide in HIDINGS.items()}}


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


def _initials(_plain: str, text: str) -> str:
    return fold("".join(word[0] for word in re.findall(r"[^\W\d_]+", text)))


def _of_numbers(_plain: str, text: str) -> str:
    """Return the letters that numbers stand for: by their place in the alphabet, or by their code."""
    numbers = [int(found) for found in _NUMBER.findall(text)]
    letters = "".join(ascii_lowercase[each - 1] for each in numbers if 1 <= each <= len(ascii_lowercase))
    codes = "".join(chr(each) for each in numbers if chr(each).isascii() and chr(each).isalpha())
    return f"{letters} {codes.casefold()}"


def _shift(places: int) -> Callable[[str, str], str]:
    table = str.maketrans(ascii_lowercase, ascii_lowercase[places:] + ascii_lowercase[:places])
    return lambda plain, _text: plain.translate(table)


HIDINGS: Mapping[str, Callable[[str, str], str]] = MappingProxyType(
    {
        "reversed": lambda plain, _text: plain[::-1],
        "initials": _initials,
        "numbers": _of_numbers,
        **{f"shifted by {places}": _shift(places) for places in range(1, len(ascii_lowercase))},
    }
)
"""The ways in which a text may hide letters: from its plain reading and from the text to another reading."""
