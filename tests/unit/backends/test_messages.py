"""Frames between parent and worker: what is packed comes back equal, however the bytes are cut."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

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

grammars = st.builds(Grammar, st.sampled_from(GrammarKind), st.text(max_size=5))
params = st.builds(
    SamplingParams,
    max_tokens=st.integers(1, 9999),
    temperature=st.floats(0, 10),
    top_p=st.floats(0.01, 1),
    top_k=st.integers(0, 100),
    seed=st.none() | st.integers(0, 2**63),
    stop=st.lists(st.text(max_size=5), max_size=3).map(tuple),
    stop_token_ids=st.lists(st.integers(0, 2**20), max_size=3).map(tuple),
    min_p=st.floats(0, 1),
    presence_penalty=st.floats(-2, 2),
    frequency_penalty=st.floats(-2, 2),
    repetition_penalty=st.floats(0.1, 2),
    logit_bias=st.dictionaries(st.integers(0, 99), st.floats(-100, 100), max_size=3).map(lambda each: (*each.items(),)),
    min_tokens=st.integers(0, 9),
    ignore_eos=st.booleans(),
    grammar=st.none() | grammars,
    top_logprobs=st.integers(0, 20),
)
token_rows = st.lists(
    st.tuples(
        st.integers(0, 2**20),
        st.booleans(),
        st.floats(-99, 0),
        st.integers(-1, 9),
        st.integers(-1, 9),
        st.floats(0.1, 2),
    ),
    min_size=1,
    max_size=5,
)
constrained_turns = st.lists(
    st.builds(ConstrainedTurn, st.integers(0, 9), grammars, st.lists(st.integers(0, 2**20), max_size=2).map(tuple)),
    max_size=2,
)
samples = st.builds(
    lambda rows, turns: Sample(
        "episode", *(tuple(column) for column in zip(*rows, strict=True)), constrained_turns=tuple(turns)
    ),
    token_rows,
    constrained_turns,
)
episodes = st.builds(
    FinishedEpisode,
    episode_id=st.text(max_size=5),
    task_id=st.text(max_size=5),
    client_id=st.text(max_size=5),
    reward=st.floats(allow_nan=False, allow_infinity=False),
    is_success=st.none() | st.booleans(),
    samples=st.lists(samples, max_size=2).map(tuple),
    ended_at=st.floats(0, 2e9),
    data_source=st.text(max_size=5),
    turn_rewards=st.none() | st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=3).map(tuple),
    rewards=st.none()
    | st.dictionaries(st.text(max_size=5), st.floats(allow_nan=False, allow_infinity=False), max_size=3),
)
batches = st.builds(
    TrainBatch,
    batch_id=st.text(max_size=5),
    step=st.integers(0, 999),
    groups=st.lists(
        st.builds(Group, task_id=st.text(max_size=5), episodes=st.lists(episodes, max_size=3).map(tuple)), max_size=3
    ).map(tuple),
)


@given(params, batches, st.integers(1, 40))
def test_messages_survive_the_pipe_in_pieces_of_any_size(
    settings: SamplingParams, batch: TrainBatch, size: int
) -> None:
    sent = pack({"args": settings}) + pack({"args": pack_batch(batch)})
    unpacker = Unpacker()
    received = [message for start in range(0, len(sent), size) for message in unpacker.feed(sent[start : start + size])]
    assert msgspec.convert(received[0]["args"], SamplingParams) == settings
    assert unpack_batch(received[1]["args"]) == batch
    assert len(received) == 2


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
