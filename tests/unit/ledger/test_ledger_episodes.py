"""Episodes and turns: what is written is read back, and an episode ends exactly once."""

from __future__ import annotations

import asyncio
import struct
import uuid
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swarm.errors import EpisodeEnded, IdempotencyMismatch, LedgerError, NotFound, UnknownParameter
from swarm.ledger import EpisodeRow, Ledger
from swarm.schemas import EpisodeState
from swarm.types import EpisodeType, ForkReason, Grammar, GrammarKind, SamplingParams

PARAMS = SamplingParams(
    max_tokens=8,
    temperature=0.5,
    stop=("end",),
    stop_token_ids=(2,),
    min_p=0.1,
    presence_penalty=0.5,
    frequency_penalty=-0.5,
    repetition_penalty=1.2,
    logit_bias=((3, -100.0), (4, 1.5)),
    min_tokens=1,
    grammar=Grammar(GrammarKind.JSON_SCHEMA, '{"type": "integer"}'),
    top_logprobs=3,
)
TOKEN_IDS = st.integers(min_value=-1, max_value=2**31 - 1)


def test_begun_episode_is_running_with_nothing_else_known(script: Any, ledger: Ledger) -> None:
    script.begin("e1")
    row = script.wait(ledger.episode("e1"))
    assert (row.state, row.reward, row.turns, row.weight_versions) == (EpisodeState.RUNNING, None, 0, ())
    assert row.api_key_sha256 == "0" * 64
    assert row.last_seen_at == row.begun_at


def test_begin_without_a_job_is_refused(ledger: Ledger) -> None:
    row = EpisodeRow("e1", EpisodeType.TRAIN, "c", "0" * 64, 1.0, 240.0, 2.0)
    with pytest.raises(LedgerError, match="no job is on record"):
        asyncio.run(ledger.begin_episode(row))


def test_taken_episode_id_is_refused_and_the_first_stays(script: Any, ledger: Ledger) -> None:
    script.begin("e1", client_id="first")
    with pytest.raises(LedgerError, match="UNIQUE"):
        script.begin("e1", client_id="second")
    assert script.wait(ledger.episode("e1")).client_id == "first"


def test_end_is_recorded_once_and_replayed_to_the_same_key(script: Any, ledger: Ledger) -> None:
    script.begin("e1")
    first, again = script.end("e1", reward=0.25), script.end("e1", reward=0.25)
    assert (first.replayed, again.replayed) == (False, True)
    assert again.episode.ended_at == first.episode.ended_at
    row = script.wait(ledger.episode("e1"))
    assert (row.state, row.reward, row.is_success, row.metadata) == (EpisodeState.COMPLETED, 0.25, True, {"note": "é"})


def test_end_with_another_payload_or_key_is_refused_and_the_first_stands(script: Any, ledger: Ledger) -> None:
    script.begin("e1")
    script.end("e1", reward=1.0, digest="a")
    with pytest.raises(IdempotencyMismatch):
        script.end("e1", reward=0.0, digest="b")
    with pytest.raises(EpisodeEnded, match="it is completed"):
        script.end("e1", reward=0.0, key="another")
    assert script.wait(ledger.episode("e1")).reward == 1.0


def test_concurrent_ends_complete_the_episode_once(script: Any, ledger: Ledger) -> None:
    script.begin("e1")

    async def end_often() -> list[Any]:
        return await asyncio.gather(*(ledger.end_episode(script.result("e1", ended_at=float(n))) for n in range(50)))

    receipts = script.wait(end_often())
    assert [receipt.replayed for receipt in receipts].count(False) == 1
    assert len({receipt.episode.ended_at for receipt in receipts}) == 1


@pytest.mark.parametrize("state", [EpisodeState.ABORTED, EpisodeState.EXPIRED])
def test_late_result_is_told_what_became_of_the_episode(script: Any, ledger: Ledger, state: Any) -> None:
    script.begin("e1")
    assert script.wait(ledger.close_episode("e1", state, "idle_timeout", ended_at=5.0, last_seen_at=4.0))
    with pytest.raises(EpisodeEnded, match=rf"{state} \(idle_timeout\)"):
        script.end("e1")
    row = script.wait(ledger.episode("e1"))
    assert (row.ended_at, row.last_seen_at, row.outcome, row.reward) == (5.0, 4.0, "idle_timeout", None)


def test_repeated_abort_changes_nothing_and_abort_of_a_completed_episode_is_refused(
    script: Any, ledger: Ledger
) -> None:
    script.begin("e1")
    assert script.wait(ledger.close_episode("e1", EpisodeState.ABORTED, "first", ended_at=1.0))
    assert not script.wait(ledger.close_episode("e1", EpisodeState.ABORTED, "second", ended_at=2.0))
    assert script.wait(ledger.episode("e1")).outcome == "first"
    script.complete("e2")
    with pytest.raises(EpisodeEnded, match="completed"):
        script.wait(ledger.close_episode("e2", EpisodeState.ABORTED, "late", ended_at=3.0))


@pytest.mark.parametrize("call", ["end", "close", "read"])
def test_unknown_episode_is_not_found(script: Any, ledger: Ledger, call: str) -> None:
    calls = {
        "end": lambda: script.end("nobody"),
        "close": lambda: script.wait(ledger.close_episode("nobody", EpisodeState.ABORTED, "x", ended_at=1.0)),
        "read": lambda: script.wait(ledger.episode("nobody")),
    }
    with pytest.raises(NotFound, match="nobody"):
        calls[call]()


def test_metadata_that_is_not_json_is_refused_and_the_episode_runs_on(script: Any, ledger: Ledger) -> None:
    script.begin("e1")
    with pytest.raises(LedgerError, match="JSON"):
        script.wait(ledger.end_episode(script.result("e1", metadata={"what": object()})))
    assert script.wait(ledger.episode("e1")).state is EpisodeState.RUNNING


def test_turns_are_on_disk_before_the_end_of_their_episode(script: Any, ledger: Ledger) -> None:
    script.begin("e1")
    turns = (script.turn("e1", 0), script.turn("e1", 1, weight_versions_T=(3, 1)))
    for turn in turns:
        script.wait(ledger.add_turns([turn]))
    receipt = script.end("e1")
    assert receipt.episode.weight_versions == (0, 1, 3)
    assert script.wait(ledger.turns("e1")) == turns
    row = script.wait(ledger.episode("e1"))
    assert (row.turns, row.weight_versions) == (2, (0, 1, 3))


def test_turn_of_an_unknown_episode_is_refused_and_harms_nobody(script: Any, ledger: Ledger) -> None:
    script.begin("e1")
    with pytest.raises(LedgerError, match="refused"):
        script.wait(ledger.add_turns([script.turn("nobody")]))
    assert not script.end("e1").replayed


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_turn_round_trip_is_exact_to_the_bit(script: Any, ledger: Ledger, data: st.DataObject) -> None:
    length = data.draw(st.integers(0, 30))
    exactly = {"min_size": length, "max_size": length}
    floats = st.floats(allow_nan=False, max_value=0.0)
    turn = script.turn(
        f"e{uuid.uuid4()}",
        prompt_ids=tuple(data.draw(st.lists(TOKEN_IDS, max_size=30))),
        output_ids_T=tuple(data.draw(st.lists(TOKEN_IDS, **exactly))),
        logprobs_T=tuple(data.draw(st.lists(floats, **exactly))),
        weight_versions_T=tuple(data.draw(st.lists(TOKEN_IDS, **exactly))),
        messages=({"role": "user", "content": data.draw(st.text())},),
        fork_reason=data.draw(st.sampled_from([None, *ForkReason])),
        params=data.draw(st.sampled_from([SamplingParams(max_tokens=8), PARAMS])),
    )
    script.begin(turn.episode_id)
    script.wait(ledger.add_turns([turn]))
    script.end(turn.episode_id)
    (stored,) = script.wait(ledger.turns(turn.episode_id))
    assert stored == turn
    assert [struct.pack("<d", value) for value in stored.logprobs_T] == [
        struct.pack("<d", value) for value in turn.logprobs_T
    ]


def test_token_id_too_large_for_the_record_is_refused_at_once(script: Any, ledger: Ledger) -> None:
    with pytest.raises(OverflowError):
        script.wait(ledger.add_turns([script.turn("e1", prompt_ids=(2**31,))]))


def test_pages_show_every_episode_once_newest_first(script: Any, ledger: Ledger) -> None:
    for number in range(7):
        script.begin(f"e{number}")
    seen: list[str] = []
    cursor = None
    while True:
        page = script.wait(ledger.episodes(cursor=cursor, limit=3))
        seen.extend(row.episode_id for row in page.episodes)
        cursor = page.next_cursor
        if cursor is None:
            break
    assert seen == [f"e{number}" for number in reversed(range(7))]


def test_episodes_are_filtered_by_every_given_field(script: Any, ledger: Ledger) -> None:
    script.begin("e1", client_id="a")
    script.begin("e2", client_id="b", episode_type=EpisodeType.EVAL)
    script.complete("e3")

    def found(**filters: Any) -> list[str]:
        return [row.episode_id for row in script.wait(ledger.episodes(**filters)).episodes]

    assert found(client_id="b") == ["e2"]
    assert found(episode_type=EpisodeType.EVAL) == ["e2"]
    assert found(state=EpisodeState.COMPLETED) == ["e3"]
    assert found(task_id="task", state=EpisodeState.COMPLETED) == ["e3"]
    assert found(batch_id="none") == []


@pytest.mark.parametrize("cursor", ["", "x", "-1", "1 OR 1", "9" * 30, "²"])
def test_cursor_of_somebody_else_is_refused(script: Any, ledger: Ledger, cursor: str) -> None:
    with pytest.raises(UnknownParameter, match="cursor"):
        script.wait(ledger.episodes(cursor=cursor))


def test_choices_are_recorded_together(script) -> None:
    script.begin("ep-1")
    turns = [script.turn("ep-1", index, choice=index, call_id="call") for index in range(3)]
    script.wait(script.ledger.add_turns(turns))
    assert script.wait(script.ledger.turns("ep-1")) == tuple(turns)
    assert script.wait(script.ledger.episode("ep-1")).turns == 3


def test_one_that_cannot_be_recorded_keeps_the_others_out(script) -> None:
    script.begin("ep-1")
    script.wait(script.ledger.add_turns([script.turn("ep-1", 1)]))
    with pytest.raises(LedgerError):
        script.wait(script.ledger.add_turns([script.turn("ep-1", index) for index in range(2)]))
    assert [turn.index for turn in script.wait(script.ledger.turns("ep-1"))] == [1]
    assert script.wait(script.ledger.episode("ep-1")).turns == 1
