"""Where a request continues in its episode, and why it forks."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest

from swarm.tracker.conversation import fingerprint
from swarm.tracker.tree import EpisodeTree
from swarm.types import ForkReason

SYSTEM = {"role": "system", "content": "Be brief."}
QUESTION = {"role": "user", "content": "What is the weather?"}
FOLLOW_UP = {"role": "user", "content": "And tomorrow?"}
CALCULATOR = {"type": "function", "function": {"name": "calculator", "parameters": {"type": "object"}}}


@pytest.fixture
def tree():
    return EpisodeTree("episode")


@pytest.fixture
def take_turn(tree, chatml, make_turn):
    """Locate, answer and add one turn, as the gateway does."""

    def take(messages, answer="sunny<|im_end|>", tools=()):
        prompt = tree.locate(messages, tools, chatml)
        turn = make_turn(
            chatml,
            messages,
            chatml.encode_text(answer),
            tools=tools,
            index=prompt.index,
            prompt_ids=prompt.prompt_ids,
            parent=prompt.parent,
            fork_reason=prompt.fork_reason,
        )
        tree.add(turn)
        return turn

    return take


def _after(turn, *messages):
    return [*turn.messages, turn.reply, *messages]


def test_the_first_turn_starts_a_conversation(take_turn):
    turn = take_turn([QUESTION])

    assert (turn.index, turn.parent, turn.fork_reason) == (0, None, ForkReason.NEW_CONVERSATION)


def test_a_conversation_is_a_chain_of_exact_prefixes(take_turn):
    turns = [take_turn([SYSTEM, QUESTION])]
    for _ in range(3):
        turns.append(take_turn(_after(turns[-1], FOLLOW_UP)))

    assert [turn.parent for turn in turns] == [None, 0, 1, 2]
    for parent, child in itertools.pairwise(turns):
        before = parent.prompt_ids + parent.output_ids_T
        assert child.prompt_ids[: len(before)] == before


def test_a_shortened_conversation_branches_off_the_longest_turn_it_extends(take_turn):
    first = take_turn([QUESTION])
    second = take_turn(_after(first, FOLLOW_UP))
    take_turn(_after(second, FOLLOW_UP))

    branch = take_turn(_after(first, {"role": "user", "content": "In Paris?"}))

    assert (branch.parent, branch.fork_reason) == (0, None)


def test_the_same_request_twice_gives_siblings(take_turn):
    first = take_turn([QUESTION])
    siblings = [take_turn(_after(first, FOLLOW_UP)) for _ in range(2)]

    assert [turn.parent for turn in siblings] == [0, 0]
    assert take_turn([QUESTION]).fork_reason is ForkReason.NEW_CONVERSATION


def test_of_turns_that_said_the_same_the_latest_is_extended(take_turn):
    take_turn([QUESTION])
    latest = take_turn([QUESTION])

    assert take_turn(_after(latest, FOLLOW_UP)).parent == latest.index


def test_an_edited_reply_forks(take_turn):
    first = take_turn([QUESTION])

    forked = take_turn([QUESTION, {**first.reply, "content": "rainy"}, FOLLOW_UP])

    assert (forked.parent, forked.fork_reason) == (None, ForkReason.EDITED_HISTORY)


def test_an_edited_question_before_an_earlier_reply_forks(take_turn):
    first = take_turn([QUESTION])

    assert take_turn([FOLLOW_UP, first.reply, FOLLOW_UP]).fork_reason is ForkReason.EDITED_HISTORY


def test_another_agent_with_the_same_instructions_starts_a_conversation(take_turn):
    take_turn([SYSTEM, QUESTION])

    assert take_turn([SYSTEM, FOLLOW_UP]).fork_reason is ForkReason.NEW_CONVERSATION


def test_examples_in_the_prompt_are_no_edited_history(take_turn):
    take_turn([QUESTION])
    examples = [FOLLOW_UP, {"role": "assistant", "content": "unknown"}, QUESTION]

    assert take_turn(examples).fork_reason is ForkReason.NEW_CONVERSATION


def test_changed_tools_fork(take_turn):
    first = take_turn([QUESTION], tools=[CALCULATOR])

    assert take_turn(_after(first, FOLLOW_UP)).fork_reason is ForkReason.TOOLS_CHANGED


def test_a_template_that_rewrites_history_forks(tree, codecs, make_turn):
    codec = codecs["qwen3"]
    prompt = tree.locate([QUESTION], (), codec)
    tree.add(make_turn(codec, [QUESTION], codec.encode_text("<think>Hm</think>\nsunny<|im_end|>"), index=prompt.index))

    forked = tree.locate(_after(tree.turns[0], FOLLOW_UP), (), codec)

    assert (forked.parent, forked.fork_reason) == (None, ForkReason.TEMPLATE_REWRITE)


def test_overlapping_requests_get_their_own_indices_and_only_finished_turns_are_extended(tree, chatml, make_turn):
    first, second = (tree.locate([QUESTION], (), chatml) for _ in range(2))
    later = make_turn(chatml, [QUESTION], chatml.encode_text("rainy<|im_end|>"), index=second.index)
    tree.add(later)

    unfinished = [QUESTION, {"role": "assistant", "content": "sunny"}, FOLLOW_UP]

    assert (first.index, second.index) == (0, 1)
    assert tree.locate(unfinished, (), chatml).parent is None
    assert tree.locate(_after(later, FOLLOW_UP), (), chatml).parent == 1


def test_a_turn_is_added_once_and_behind_its_parent(tree, chatml, make_turn):
    turn = make_turn(chatml, [QUESTION], chatml.encode_text("sunny"))
    tree.add(turn)

    with pytest.raises(ValueError, match="added before"):
        tree.add(turn)
    with pytest.raises(ValueError, match="no parent 7"):
        tree.add(dataclasses.replace(turn, index=1, parent=7))


def test_turns_added_from_a_record_go_on_with_the_next_index(tree, chatml, make_turn):
    tree.add(make_turn(chatml, [QUESTION], chatml.encode_text("sunny<|im_end|>"), index=4))

    assert tree.locate([QUESTION], (), chatml).index == 5


def test_arguments_spelled_anew_by_the_client_are_the_same_call() -> None:
    def called(arguments: str) -> dict[str, Any]:
        return {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}

    assert fingerprint(called('{"a": 6, "b": [1]}')) == fingerprint(called('{"b":[1],"a":6}'))
    assert fingerprint(called('{"a": 6}')) != fingerprint(called('{"a": 7}'))
    assert fingerprint(called("{broken")) != fingerprint(called("broken}"))
