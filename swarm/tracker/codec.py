"""The codec: messages to token ids and back, without tokenizing the model's own words a second time."""

from __future__ import annotations

import copy
import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from jinja2 import TemplateError

from swarm.errors import BadRequest, JobInvalid
from swarm.job import ReasoningParser, ToolParser
from swarm.tracker.conversation import canonical_message
from swarm.tracker.reply import ReplyRules, ReplyStream, ReplySyntax
from swarm.tracker.template import RenderRequest, template_options
from swarm.tracker.text import TextStream
from swarm.tracker.tokenizer import encode_within, generation_stops, load_tokenizer, special_ids
from swarm.types import FinishReason, ForkReason, Grammar, Message, ToolChoice, ToolSpec, Turn

# A stand-in for a reply, to find the text around replies. No template contains or trims it.
_PROBE = "\u2020probe\u2020"
_QUESTION: tuple[Message, ...] = ({"role": "user", "content": "."},)
# Enough tokens for the last words of a generation prompt with their white space.
_TAIL_TOKENS = 16

SHARED_PROMPTS = 64
"""The most prompts remembered with their ids: enough for the groups that begin at the same time."""

RENDERED_TEXTS = 256
"""The most conversations remembered with their texts."""

TemplateOptions = Mapping[str, Any]
"""Variables for the chat template, as {"enable_thinking": False}."""

_NO_OPTIONS: TemplateOptions = MappingProxyType({})
_ANY_CALLS = ToolChoice()


@dataclass(frozen=True, slots=True)
class PromptExtension:
    """A prompt that begins with the exact ids of an earlier turn.

    Without one, `prompt_ids` is None and `reason` tells why.
    """

    prompt_ids: tuple[int, ...] | None
    reason: ForkReason | None


class Codec:
    """One tokenizer with its chat template. It has no state but caches, and is made once per model."""

    def __init__(
        self,
        tokenizer: Any,
        stop_token_ids: Iterable[int] = (),
        *,
        tool_parser: ToolParser = "auto",
        reasoning_parser: ReasoningParser = "auto",
    ) -> None:
        """Build a codec from a tokenizer of transformers or a plain one.

        `stop_token_ids` are added to those that the tokenizer names itself.
        """
        self._tokenizer = tokenizer
        self._context_length: Callable[[], int] = lambda: 0
        self._special_ids = special_ids(tokenizer)
        template = str(tokenizer.chat_template)
        self._roles_by_template = "developer" in template
        self._reasoning_by_template = "reasoning_content" in template
        taken = {*tokenizer.special_tokens_map, *inspect.signature(tokenizer.apply_chat_template).parameters}
        self._options = template_options(template).difference(taken)
        self._token_texts: dict[int, str] = {}
        # The episodes of a group begin with the same prompt. The cached ids depend on the text alone.
        self._encode_shared = lru_cache(SHARED_PROMPTS)(self._encode_all)
        self._render_once = lru_cache(RENDERED_TEXTS)(self._render_anew)
        added: dict[str, int] = tokenizer.get_added_vocab()
        self.syntax = ReplySyntax.of(template, added, self._special_ids, tool_parser, reasoning_parser)
        self.stop_token_ids: tuple[int, ...] = self._find_stop_tokens(stop_token_ids)
        marks = self.syntax.mark_ids.values()
        self._hidden_ids = self._special_ids.union(self.stop_token_ids).difference(marks)
        stops = "|".join(re.escape(text) for text in self.token_text(self.stop_token_ids) if text)
        self._closing = re.compile(rf"({stops})(?:\s*(?:{stops}))*") if stops else None

    @classmethod
    def load(
        cls,
        tokenizer_path: str | Path,
        *,
        tool_parser: ToolParser = "auto",
        reasoning_parser: ReasoningParser = "auto",
    ) -> Codec:
        """Read a tokenizer from local files. Raise JobInvalid if it cannot be read or has no chat template."""
        tokenizer = load_tokenizer(Path(tokenizer_path))
        if not getattr(tokenizer, "chat_template", None):
            raise JobInvalid(
                f"tokenizer {tokenizer_path} has no chat template: name an instruction-tuned model", param="model"
            )
        stops = generation_stops(Path(tokenizer_path))
        return cls(tokenizer, stops, tool_parser=tool_parser, reasoning_parser=reasoning_parser)

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec] = (),
        template_options: TemplateOptions = _NO_OPTIONS,
    ) -> tuple[int, ...]:
        """Return the prompt for a conversation, tokenized once.

        Raise BadRequest if the template refuses the messages.
        """
        text = self.render_text(messages, tools, template_options, generation_prompt=True)
        return encode_within(self._encode_shared, text, self._context_length())

    def render_text(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        template_options: TemplateOptions = _NO_OPTIONS,
        *,
        generation_prompt: bool,
    ) -> str:
        """Return the text that the chat template renders for a conversation.

        Raise BadRequest if the template refuses the messages, or does not read an option.
        """
        for name in template_options:
            if not self.reads_option(name):
                raise BadRequest(f"the model's chat template does not read the option {name}", param=name)
        asked = RenderRequest.of(messages, tools, template_options, generation_prompt)
        # A template that renders the time of day gives another text each time.
        is_fixed = "strftime_now" not in self._tokenizer.chat_template
        return self._render_once(asked) if is_fixed and asked.key is not None else self._render_anew(asked)

    def _render_anew(self, asked: RenderRequest) -> str:
        try:
            text: str = self._tokenizer.apply_chat_template(
                [self._for_template(message) for message in asked.messages],
                tools=[dict(tool) for tool in asked.tools] or None,
                add_generation_prompt=asked.generation_prompt,
                tokenize=False,
                **asked.options,
            )
            # JSON escapes can spell lone surrogates, which no tokenizer accepts.
            text.encode()
        # A template is code of the model's author. It can fail in any of these ways on messages it was not made for.
        except (TemplateError, TypeError, ValueError, LookupError, AttributeError, RecursionError) as error:
            reason = " ".join(str(error).split())
            raise BadRequest(f"the model's chat template refuses these messages: {reason}", param="messages") from error
        return text

    def encode_text(self, text: str) -> tuple[int, ...]:
        """Return the ids of a text, in which special tokens may be spelled out."""
        return encode_within(self._encode_all, text, self._context_length())

    def extend(
        self,
        previous: Turn,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec] = (),
        template_options: TemplateOptions = _NO_OPTIONS,
    ) -> PromptExtension:
        """Return the prompt for `messages`, which continue after the reply of `previous`.

        The prompt begins with the exact ids of `previous` and its reply. Raise BadRequest if the template refuses the
        messages.
        """
        added = self._added_text(previous, messages, tools, template_options)
        if added is None:
            changed = list(previous.tools) != list(tools)
            return PromptExtension(None, ForkReason.TOOLS_CHANGED if changed else ForkReason.TEMPLATE_REWRITE)
        return PromptExtension(previous.prompt_ids + previous.output_ids_T + self._encode_after(previous, added), None)

    def encode_reply(
        self, messages: Sequence[Message], reply: Message, tools: Sequence[ToolSpec] = ()
    ) -> tuple[int, ...]:
        """Return the ids of a given reply to `messages`, up to and with the token that ends it.

        They are the ids that a model would sample to say it. Raise BadRequest if the template refuses the messages, or
        does not put the reply behind the prompt.
        """
        prompt = self.render_text(messages, tools, generation_prompt=True)
        closed = self.render_text([*messages, reply], tools, generation_prompt=False)
        if not closed.startswith(prompt):
            raise BadRequest(
                f"the model's chat template does not render message {len(messages)} behind the prompt of that reply",
                param="messages",
            )
        matches = list(self._closing.finditer(closed, len(prompt))) if self._closing else []
        if matches:
            return self.encode_text(closed[len(prompt) : matches[-1].start()] + matches[-1].group(1))
        text = closed[len(prompt) :].removesuffix(self._text_behind_reply(messages, tools))
        return (*self.encode_text(text), *self.stop_token_ids[:1])

    def reads_option(self, name: str) -> bool:
        """Return whether the chat template reads a variable of this name that a request may set."""
        return name in self._options

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text that a reader sees: without special tokens, except marks of tool calls and reasoning."""
        return self.raw_text([token for token in token_ids if self.is_visible(token)])

    def raw_text(self, token_ids: Sequence[int]) -> str:
        """Return the text of all tokens, special ones by their names."""
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def bounded(self, context_length: Callable[[], int]) -> Codec:
        """Return a copy that raises ContextLengthExceeded for text far longer than the context.

        A `context_length` of 0 means that the length is not known yet.
        """
        bounded = copy.copy(self)
        bounded._context_length = context_length
        return bounded

    @property
    def vocabulary_size(self) -> int:
        """Number of token ids; this id and larger ones have no text."""
        return len(self._tokenizer)

    def is_visible(self, token_id: int) -> bool:
        """Return False for special tokens, which end or frame a message and are no part of its text."""
        return token_id not in self._hidden_ids

    def token_text(self, token_ids: Sequence[int]) -> list[str]:
        """Return each token by itself, for display. Half of a character shows as U+FFFD."""
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
        choice: ToolChoice = _ANY_CALLS,
        turn_index: int,
        stop: Sequence[str] = (),
        prompt_ids: Sequence[int] = (),
    ) -> dict[str, Any]:
        """Return the assistant message of a completion: its text up to a stop string, its reasoning and tool calls.

        Calls are text if there are no `tools` or `choice` allows none. A call that is not well-formed is text as well.
        Never raise.
        """
        stream = self.reply_stream(tools, choice=choice, turn_index=turn_index, stop=stop, prompt_ids=prompt_ids)
        stream.push(output_ids)
        stream.finish()
        return stream.message

    def reply_stream(
        self,
        tools: Sequence[ToolSpec] = (),
        *,
        choice: ToolChoice = _ANY_CALLS,
        turn_index: int,
        stop: Sequence[str] = (),
        prompt_ids: Sequence[int] = (),
    ) -> ReplyStream:
        """Return a stream that builds the message of `parse_reply` while its tokens arrive.

        `prompt_ids` tell whether the reply begins in reasoning. Where `choice` does not allow parallel calls, text
        after the first call is not shown.
        """
        rules = self.syntax.rules(tools, choice, is_inside=self._is_inside(prompt_ids))
        return ReplyStream(partial(self.text_stream, stop), rules, turn_index=turn_index)

    def raw_reply_stream(self, *, turn_index: int, stop: Sequence[str] = ()) -> ReplyStream:
        """Return a stream for a reply that is nothing but text."""
        return ReplyStream(partial(self.text_stream, stop), ReplyRules(), turn_index=turn_index)

    def forced_grammar(
        self, tools: Sequence[ToolSpec], choice: ToolChoice, prompt_ids: Sequence[int] | None = None
    ) -> Grammar | None:
        """Return the grammar of a reply that calls a tool as `choice` forces it to; None if it forces none.

        The grammar lets a reasoning model reason first. `prompt_ids`, or else the template, tell whether the reply
        begins in reasoning. Raise BadRequest for a named tool that is not among the tools, or if there are none.
        """
        prompt = self.render(_QUESTION) if prompt_ids is None else prompt_ids
        return self.syntax.forced_grammar(tools, choice, is_inside=self._is_inside(prompt))

    def text_stream(self, stop: Sequence[str] = ()) -> TextStream:
        """Return a detokenizer for one completion."""
        return TextStream(self.raw_text, self.is_visible, stop)

    def _is_inside(self, prompt_ids: Sequence[int]) -> bool:
        return self.syntax.is_inside(self.raw_text(prompt_ids[-_TAIL_TOKENS:]))

    def _added_text(
        self, previous: Turn, messages: Sequence[Message], tools: Sequence[ToolSpec], options: TemplateOptions
    ) -> str | None:
        """Return the text that the template puts after the sampled tokens of `previous`.

        Return None if the template rewrites what came before.
        """
        target = self.render_text(messages, tools, options, generation_prompt=True)
        prompt = self.render_text(previous.messages, previous.tools, options, generation_prompt=True)
        if self._options and not self._was_rendered_so(previous, prompt, options):
            return None
        ended = self._has_stop_token(previous)
        # After a stop string the shown reply is shorter than the sampled text, so a difference proves nothing.
        if ended or previous.finish_reason is not FinishReason.STOP:
            sampled = prompt + self.raw_text(previous.output_ids_T)
            if target.startswith(sampled):
                return target[len(sampled) :]
        closed = self._try_render((*previous.messages, previous.reply), previous.tools, options)
        if closed is None or not closed.startswith(prompt) or not target.startswith(closed):
            return None
        if self._hides_what_was_sampled(previous, closed[len(prompt) :]):
            return None
        closing, stop_text = self._closing_of(closed, len(prompt), previous)
        return closing[len(stop_text) if ended else 0 :] + target[len(closed) :]

    def _was_rendered_so(self, previous: Turn, prompt: str, options: TemplateOptions) -> bool:
        """Return whether `previous` was sampled from `prompt`, whose replies are as they were sampled.

        White space does not count: tokenizers that put blanks before words do not give it back.
        """
        sampled_from = _squeezed(self.raw_text(previous.prompt_ids))
        if sampled_from == _squeezed(self.raw_text(self.encode_text(prompt))):
            return True
        replies = [index for index, message in enumerate(previous.messages) if message.get("role") == "assistant"]
        if not replies:
            return False
        head = _squeezed(self._try_render(previous.messages[: replies[0]], previous.tools, options) or "")
        last = self._try_render(previous.messages[: replies[-1] + 1], previous.tools, options)
        tail = _squeezed(prompt[len(last) :]) if last and prompt.startswith(last) else ""
        return sampled_from.startswith(head) and sampled_from.endswith(tail)

    def _hides_what_was_sampled(self, previous: Turn, shown: str) -> bool:
        """Return whether the reply in the template's form lacks sampled reasoning or calls."""
        reply, form = previous.reply, self.syntax.reasoning
        if form is not None and (reasoning := reply.get("reasoning_content")):
            is_closed = form.closing in self.raw_text(previous.output_ids_T)
            if reasoning not in shown or not is_closed:
                return True
        if len(reply.get("tool_calls") or ()) != 1:
            return False
        whole = self.parse_reply(
            previous.output_ids_T,
            previous.tools,
            turn_index=previous.index,
            stop=previous.params.stop,
            prompt_ids=previous.prompt_ids,
        )
        return len(whole.get("tool_calls", ())) > 1 or whole["content"] != reply.get("content")

    def _closing_of(self, closed: str, start: int, previous: Turn) -> tuple[str, str]:
        """Return the text that the template puts after a reply, and the stop token that it begins with, or "".

        A template without stop tokens shows that text around a probe in place of the reply.
        """
        matches = list(self._closing.finditer(closed, start)) if self._closing else []
        if matches:
            return closed[matches[-1].start() :], matches[-1].group(1)
        return self._text_behind_reply(previous.messages, previous.tools), ""

    def _text_behind_reply(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> str:
        rendered = self._try_render((*messages, {"role": "assistant", "content": _PROBE}), tools)
        return rendered.rpartition(_PROBE)[2] if rendered and _PROBE in rendered else ""

    def _try_render(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], options: TemplateOptions = _NO_OPTIONS
    ) -> str | None:
        try:
            return self.render_text(messages, tools, options, generation_prompt=False)
        except BadRequest:
            return None

    def _encode_all(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))

    def _encode_after(self, previous: Turn, text: str) -> tuple[int, ...]:
        """Return the ids of `text` after the stop token, where some tokenizers treat spaces differently."""
        if not self._has_stop_token(previous):
            return self.encode_text(text)
        anchor = previous.output_ids_T[-1:]
        anchored = self.encode_text(self.raw_text(anchor) + text)
        return anchored[1:] if anchored[:1] == anchor else self.encode_text(text)

    def _has_stop_token(self, turn: Turn) -> bool:
        return bool(turn.output_ids_T) and turn.output_ids_T[-1] in self.stop_token_ids

    def _find_stop_tokens(self, given: Iterable[int]) -> tuple[int, ...]:
        """Return, sorted, the end-of-text token, the token with which the template ends a reply, and those `given`."""
        found = set(given)
        if self._tokenizer.eos_token_id is not None:
            found.add(int(self._tokenizer.eos_token_id))
        behind = self.encode_text(self._text_behind_reply(_QUESTION, ()))
        found.update(token for token in behind[:1] if token in self._special_ids)
        return tuple(sorted(found))

    def _for_template(self, message: Message) -> dict[str, Any]:
        """Return a message in the form that chat templates expect.

        Arguments become objects, and `developer` becomes `system`, its older name. A template that has no separate
        field for reasoning gets the reasoning in the content, as the model wrote it.
        """
        shaped = canonical_message(message)
        if shaped.get("role") == "developer" and not self._roles_by_template:
            shaped["role"] = "system"
        reasoning, form = shaped.get("reasoning_content"), self.syntax.reasoning
        if reasoning and isinstance(reasoning, str) and form is not None and not self._reasoning_by_template:
            shaped["content"] = form.written(reasoning, shaped["content"])
        if calls := shaped.get("tool_calls"):
            shaped["tool_calls"] = [_with_parsed_arguments(call) for call in calls]
        return shaped


def _squeezed(text: str) -> str:
    return "".join(text.split())


def _with_parsed_arguments(call: dict[str, Any]) -> dict[str, Any]:
    function = dict(call.get("function", {}))
    try:
        parsed = json.loads(function["arguments"])
    except (KeyError, TypeError, ValueError, RecursionError):
        return call
    if isinstance(parsed, dict):
        function["arguments"] = cast("dict[str, Any]", parsed)
    return {**call, "function": function}
