"""Chat messages in one canonical shape, and fingerprints that tell whether one conversation begins with another."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from swarm.types import Message


def content_text(content: object) -> str:
    """Return the text of a message's `content`: a string, None, or text parts, which are joined without a gap."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    parts = cast("Iterable[object]", content)
    return "".join(
        part if isinstance(part, str) else str(cast("Mapping[str, Any]", part).get("text", "")) for part in parts
    )


def canonical_message(message: Message) -> dict[str, Any]:
    """Return the message with its content as text, and without fields that are null or empty lists.

    `reasoning` is another name of `reasoning_content`.
    """
    kept = {key: value for key, value in message.items() if value is not None and value != []}
    if (reasoning := kept.pop("reasoning", None)) is not None:
        kept.setdefault("reasoning_content", reasoning)
    kept["content"] = content_text(message.get("content"))
    return kept


def fingerprint(message: Message) -> str:
    """Return a digest of a message: role, text, and the name and arguments of each tool call.

    Call ids and extra fields are left out, since they are not sampled. Where a template shows them, the codec's
    comparison of rendered texts decides. Arguments count by their value, because clients that parse them spell them
    anew.
    """
    calls = [
        (call.get("function", {}).get("name"), _one_spelling(call.get("function", {}).get("arguments")))
        for call in message.get("tool_calls") or ()
    ]
    seen = (message.get("role"), content_text(message.get("content")), calls)
    return hashlib.sha256(json.dumps(seen, sort_keys=True).encode()).hexdigest()


def _one_spelling(arguments: object) -> object:
    """Return JSON arguments in one spelling, and other arguments as they are."""
    try:
        return json.dumps(json.loads(cast("str", arguments)), sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        return arguments


def prefix_fingerprints(messages: Sequence[Message]) -> list[str]:
    """Return one fingerprint per prefix, in order: entry i identifies `messages[: i + 1]`."""
    chained = hashlib.sha256()
    prefixes: list[str] = []
    for message in messages:
        chained.update(fingerprint(message).encode())
        prefixes.append(chained.hexdigest())
    return prefixes
