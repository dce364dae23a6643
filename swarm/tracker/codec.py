"""Messages to token ids and back, without ever tokenizing a model's own words a second time.

Place in the flow: between the chat messages of the gateway and the token ids of the engine. Works with any Hugging Face
tokenizer that has a chat template; which template it is, it does not know: all it needs is the text that the template
renders for a conversation and for the beginning of that conversation. Knows nothing of episodes or HTTP.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from jinja2 import TemplateError

from swarm.errors import BadRequest, JobInvalid
from swarm.tracker.conversation import canonical_message, prefix_fingerprints, same_tools
from swarm.tracker.hermes import TAGS
from swarm.tracker.reply import ReplyStream
from swarm.tracker.template import template_options
from swarm.tracker.text import TextStream
from swarm.types import FinishReason, ForkReason, Message, ToolSpec, Turn

# Stands for a reply when the text around replies is wanted; no template contains or trims it.
_PROBE = "\u2020probe\u2020"


@dataclass(frozen=True, slots=True)
class Extension:
    """A prompt that begins with an earlier turn's exact ids; `prompt_ids` is None if there is none, for `reason`."""

    prompt_ids: tuple[int, ...] | None
    reason: ForkReason | None


class Codec:
    """One tokenizer with its chat template. Stateless apart from caches; made once per model."""

    def __init__(self, tokenizer: Any, stop_token_ids: Iterable[int] = ()) -> None:
        """`tokenizer` is a transformers tokenizer; `stop_token_ids` are added to those it names itself."""
        self._tokenizer = tokenizer
        self._special_ids = _special_ids(tokenizer)
        self._roles_by_template = "developer" in str(tokenizer.chat_template)
        self._options = template_options(str(tokenizer.chat_template)).difference(tokenizer.special_tokens_map)
        self._token_texts: dict[int, str] = {}
        self.stop_token_ids: tuple[int, ...] = self._find_stop_tokens(stop_token_ids)
        added: dict[str, int] = tokenizer.get_added_vocab()
        self._hidden_ids = self._special_ids.union(self.stop_token_ids) - {added[tag] for tag in TAGS if tag in added}
        stops = "|".join(re.escape(text) for text in self.token_text(self.stop_token_ids) if text)
        self._closing = re.compile(rf"({stops})(?:\s*(?:{stops}))*") if stops else None

    @classmethod
    def load(cls, tokenizer_path: str | Path) -> Codec:
        """Read a tokenizer from local files. Raises JobInvalid if it cannot be read or has no chat template."""
        try:
            tokenizer = _tokenizer_class(Path(tokenizer_path)).from_pretrained(
                str(tokenizer_path), local_files_only=True
            )
        except (OSError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise JobInvalid(f"tokenizer {tokenizer_path} cannot be loaded: {reason}", param="model") from error
        if not getattr(tokenizer, "chat_template", None):
            raise JobInvalid(
                f"tokenizer {tokenizer_path} has no chat template: name an instruction-tuned model", param="model"
            )
        return cls(tokenizer, _generation_stops(Path(tokenizer_path)))

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), options=None) -> tuple[int, ...]:
        """The prompt for a conversation, tokenized once. Raises BadRequest if the template refuses the messages."""
        return self._encode(self.render_text(messages, tools, generation_prompt=True))

    def render_text(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], options=None, *, generation_prompt: bool
    ) -> str:
        """What the chat template makes of a conversation. Raises BadRequest if the template refuses the messages."""
        try:
            text: str = self._tokenizer.apply_chat_template(
                [self._for_template(message) for message in messages],
                tools=[dict(tool) for tool in tools] or None,
                add_generation_prompt=generation_prompt,
                tokenize=False,
            )
            # JSON escapes can spell lone surrogates, which no tokenizer takes.
            text.encode()
        # A template is the model author's code and fails in any of these ways on messages it was not written for.
        except (TemplateError, TypeError, ValueError, LookupError, AttributeError, RecursionError) as error:
            reason = " ".join(str(error).split())
            raise BadRequest(f"the model's chat template refuses these messages: {reason}", param="messages") from error
        return text

    def encode_text(self, text):
        return self._encode(text)

    def forced_grammar(self, tools, choice):
        return None

    def raw_reply_stream(self, *, turn_index, stop=()):
        return ReplyStream(self.text_stream(stop), parse_tools=False, turn_index=turn_index)

    def extend(
        self, previous: Turn, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), options=None
    ) -> Extension:
        """The prompt for `messages` that begins with the exact ids of `previous`, if they go on from its reply.

        Raises BadRequest if the template refuses the messages.
        """
        history = prefix_fingerprints([*previous.messages, previous.reply])
        if prefix_fingerprints(messages)[: len(history)] != history:
            return Extension(None, ForkReason.EDITED_HISTORY)
        added = self._added_text(previous, messages, tools)
        if added is None:
            changed = not same_tools(previous.tools, tools)
            return Extension(None, ForkReason.TOOLS_CHANGED if changed else ForkReason.TEMPLATE_REWRITE)
        return Extension(previous.prompt_ids + previous.output_ids_T + self._encode_after(previous, added), None)

    def reads_option(self, name: str) -> bool:
        """Whether the chat template looks at a variable of this name that a request may set."""
        return name in self._options

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text a reader sees: without special tokens, except tool-call tags."""
        return self.raw_text([token for token in token_ids if self.is_visible(token)])

    def raw_text(self, token_ids: Sequence[int]) -> str:
        """The text of all tokens, special ones by their names."""
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)

    @property
    def vocabulary_size(self) -> int:
        """Token ids from here on stand for no text."""
        return len(self._tokenizer)

    def is_visible(self, token_id: int) -> bool:
        """False for special tokens, which end or frame a message and are no part of its text."""
        return token_id not in self._hidden_ids

    def token_text(self, token_ids: Sequence[int]) -> list[str]:
        """Each token by itself, for display. Half of a character shows as U+FFFD."""
        texts = self._token_texts
        for token in token_ids:
            if token not in texts:
                texts[token] = self.raw_text([token])
        return [texts[token] for token in token_ids]

    def parse_reply(
        self,
        output_ids: Sequence[int],
        tools: Sequence[ToolSpec] = (),
        *,
        turn_index: int,
        stop: Sequence[str] = (),
    ) -> dict[str, Any]:
        """The assistant message that a completion says: its text up to a stop string, and its tool calls.

        Without `tools` everything is text. A call that is not valid JSON stays text. Never raises.
        """
        stream = self.reply_stream(tools, turn_index=turn_index, stop=stop)
        stream.push(output_ids)
        stream.finish()
        return stream.message

    def reply_stream(
        self, tools: Sequence[ToolSpec] = (), *, choice=None, turn_index: int, stop: Sequence[str] = (), prompt_ids=()
    ) -> ReplyStream:
        """Makes the message of `parse_reply` while its tokens arrive."""
        return ReplyStream(
            self.text_stream(stop),
            parse_tools=bool(tools) and (choice is None or choice.mode != "none"),
            turn_index=turn_index,
        )

    def text_stream(self, stop: Sequence[str] = ()) -> TextStream:
        """A detokenizer for one completion."""
        return TextStream(self.raw_text, self.is_visible, stop)

    def _added_text(self, previous: Turn, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> str | None:
        """What the template puts behind the sampled tokens of `previous`; None if it rewrites what came before."""
        target = self.render_text(messages, tools, generation_prompt=True)
        prompt = self.render_text(previous.messages, previous.tools, generation_prompt=True)
        ended = self._has_stop_token(previous)
        # After a stop string the shown reply is shorter than the sampled text, which then proves nothing.
        if ended or previous.finish_reason is not FinishReason.STOP:
            sampled = prompt + self.raw_text(previous.output_ids_T)
            if target.startswith(sampled):
                return target[len(sampled) :]
        closed = self._try_render((*previous.messages, previous.reply), previous.tools)
        if closed is None or not closed.startswith(prompt) or not target.startswith(closed):
            return None
        closing, stop_text = self._closing_of(closed, len(prompt), previous)
        return closing[len(stop_text) if ended else 0 :] + target[len(closed) :]

    def _closing_of(self, closed: str, start: int, previous: Turn) -> tuple[str, str]:
        """What the template puts behind a reply, and the stop token this begins with ("" if it has none).

        A template without stop tokens shows it around a probe in the reply's place.
        """
        matches = list(self._closing.finditer(closed, start)) if self._closing else []
        if matches:
            return closed[matches[-1].start() :], matches[-1].group(1)
        return self._text_behind_reply(previous.messages, previous.tools), ""

    def _text_behind_reply(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> str:
        rendered = self._try_render((*messages, {"role": "assistant", "content": _PROBE}), tools)
        return rendered.rpartition(_PROBE)[2] if rendered and _PROBE in rendered else ""

    def _try_render(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> str | None:
        try:
            return self.render_text(messages, tools, generation_prompt=False)
        except BadRequest:
            return None

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))

    def _encode_after(self, previous: Turn, text: str) -> tuple[int, ...]:
        """Ids of `text` as they come out behind the stop token, where some tokenizers treat spaces differently."""
        if not self._has_stop_token(previous):
            return self._encode(text)
        anchor = previous.output_ids_T[-1:]
        anchored = self._encode(self.raw_text(anchor) + text)
        return anchored[1:] if anchored[:1] == anchor else self._encode(text)

    def _has_stop_token(self, turn: Turn) -> bool:
        return bool(turn.output_ids_T) and turn.output_ids_T[-1] in self.stop_token_ids

    def _find_stop_tokens(self, given: Iterable[int]) -> tuple[int, ...]:
        """The end-of-text token, the token with which the template ends a reply, and those `given`, sorted."""
        found = set(given)
        if self._tokenizer.eos_token_id is not None:
            found.add(int(self._tokenizer.eos_token_id))
        behind = self._encode(self._text_behind_reply(({"role": "user", "content": "."},), ()))
        found.update(token for token in behind[:1] if token in self._special_ids)
        return tuple(sorted(found))

    def _for_template(self, message: Message) -> dict[str, Any]:
        """The message as chat templates expect it: arguments as objects; `developer` is the newer name of `system`."""
        shaped = canonical_message(message)
        if shaped.get("role") == "developer" and not self._roles_by_template:
            shaped["role"] = "system"
        if calls := shaped.get("tool_calls"):
            shaped["tool_calls"] = [_with_parsed_arguments(call) for call in calls]
        return shaped


def _with_parsed_arguments(call: dict[str, Any]) -> dict[str, Any]:
    function = dict(call.get("function", {}))
    try:
        parsed = json.loads(function["arguments"])
    except (KeyError, TypeError, ValueError, RecursionError):
        return call
    if isinstance(parsed, dict):
        function["arguments"] = cast("dict[str, Any]", parsed)
    return {**call, "function": function}


def _special_ids(tokenizer: Any) -> frozenset[int]:
    added: dict[int, Any] = tokenizer.added_tokens_decoder
    return frozenset(tokenizer.all_special_ids) | {token for token, entry in added.items() if entry.special}


def _generation_stops(directory: Path) -> tuple[int, ...]:
    """The `eos_token_id`s of a model directory's generation_config.json, if it has one."""
    try:
        config = json.loads((directory / "generation_config.json").read_text(encoding="utf-8"))
        named: Any = config.get("eos_token_id")
    except (OSError, ValueError, AttributeError):
        return ()
    if isinstance(named, int):
        return (named,)
    return tuple(cast("list[int]", named)) if isinstance(named, list) else ()


def _tokenizer_class(directory: Path) -> Any:
    """The transformers class to load with. Imported here because it pulls torch in, which takes seconds.

    AutoTokenizer finds the right class of any model, at the price of importing every model's machinery, which doubles
    that; a tokenizer that names no class of its own does not need it.
    """
    import transformers

    try:
        settings: Any = json.loads((directory / "tokenizer_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        settings = None
    untyped: Any = transformers
    named: object = cast("dict[str, Any]", settings).get("tokenizer_class") if isinstance(settings, dict) else None
    if named in {"TokenizersBackend", "PreTrainedTokenizerFast"}:
        return untyped.PreTrainedTokenizerFast
    return untyped.AutoTokenizer
