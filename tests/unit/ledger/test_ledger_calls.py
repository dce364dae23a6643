"""The choices of one model call are on record together or not at all."""

from __future__ import annotations

import pytest

from swarm.errors import LedgerError


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
