"""Sampling parameters come back from the ledger as the dataclasses that went in."""

from __future__ import annotations

from typing import Any

from swarm.ledger import Ledger
from swarm.types import Grammar, GrammarKind, SamplingParams

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


def test_params_of_a_turn_are_read_back_as_written(script: Any, ledger: Ledger) -> None:
    script.begin("e1")
    script.wait(ledger.add_turns([script.turn("e1", params=PARAMS)]))
    (turn,) = script.wait(ledger.turns("e1"))
    assert turn.params == PARAMS
