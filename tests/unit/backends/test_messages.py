"""Frames between parent and worker: what is packed comes back equal, however the bytes are cut."""

from __future__ import annotations

import msgspec
import pytest

from swarm.backends.process.wire import (
    Unpacker,
    join_deltas,
    pack,
    pack_batch,
    pack_error,
    unpack_batch,
    unpack_delta,
    unpack_error,
)
from swarm.errors import CheckpointError, UnknownParameter
from swarm.types import (
    ConstrainedTurn,
    FinishedEpisode,
    FinishReason,
    Grammar,
    GrammarKind,
    Group,
    Sample,
    SamplingParams,
    TokenDelta,
    TrainBatch,
)

GRAMMAR = Grammar(GrammarKind.REGEX, "é+")
PARAMS = SamplingParams(
    max_tokens=9, temperature=0.7, top_p=0.9, top_k=3, seed=2**63, stop=("a", "ü"), stop_token_ids=(2**20,), min_p=0.1,
    presence_penalty=-2.0, frequency_penalty=2.0, repetition_penalty=1.1, logit_bias=((5, -100.0),), min_tokens=4,
    ignore_eos=True, grammar=GRAMMAR, top_logprobs=20,
)  # fmt: skip
TURNS = (ConstrainedTurn(1, GRAMMAR, (7,)),)
SAMPLE = Sample("e", (4, 2**20), (False, True), (0.0, -0.1), (-1, 3), (-1, 1), (1.0, 0.7), TURNS)
EPISODES = (
    FinishedEpisode("e", "task", "client", 0.1 + 0.2, True, (SAMPLE, SAMPLE), 1e9, "source", (0.5, -1e-9), {"r": 1.0}),
    FinishedEpisode("é", "task", "client", -1.0, None, (), 0.0),
)
GREEDY = FinishedEpisode("greedy", "task", "client", 0.5, False, (SAMPLE,), 2e9, is_greedy=True)
BATCH = TrainBatch("batch", 3, (Group("task", EPISODES, GREEDY), Group("other", ())))


@pytest.mark.parametrize("size", [1, 7, 64, 10_000])
def test_messages_survive_the_pipe_in_pieces_of_any_size(size: int) -> None:
    settings = (PARAMS, SamplingParams(max_tokens=1))
    sent = b"".join(pack({"args": each}) for each in (*settings, pack_batch(BATCH), pack_batch(TrainBatch("b", 0, ()))))
    unpacker = Unpacker()
    received = [message for start in range(0, len(sent), size) for message in unpacker.feed(sent[start : start + size])]
    assert [msgspec.convert(message["args"], SamplingParams) for message in received[:2]] == list(settings)
    assert [unpack_batch(message["args"]) for message in received[2:]] == [BATCH, TrainBatch("b", 0, ())]


def test_errors_keep_class_message_and_parameter() -> None:
    for error in (UnknownParameter("top_k: too large", param="top_k"), CheckpointError("gone")):
        again = unpack_error(pack_error(error))
        assert type(again) is type(error)
        assert (again.message, again.param) == (error.message, error.param)


def test_pieces_of_a_completion_join_to_one_with_their_likeliest_tokens() -> None:
    pieces = [
        unpack_delta([[5], [-0.5], None, [[[5, -0.5], [6, -1.5]]]], 3),
        unpack_delta([[6], [-1.5], "stop", [[[5, -0.5]]]], 4),
    ]
    assert join_deltas(pieces) == TokenDelta(
        (5, 6), (-0.5, -1.5), (3, 4), FinishReason.STOP, (((5, -0.5), (6, -1.5)), ((5, -0.5),))
    )
    plain = [unpack_delta([[5, 6], [-0.5, -1.5], None], 3), unpack_delta([[], [], "abort"], 0)]
    assert join_deltas(plain) == TokenDelta((5, 6), (-0.5, -1.5), (3, 3), FinishReason.ABORT)
